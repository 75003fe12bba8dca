"""What the programs share: child processes, a memory cgroup, intervals, the machine, JSON.

The loops that measure are in `problems`, which guards import without this file.
"""

import argparse
import contextlib
import datetime
import fnmatch
import importlib.metadata
import itertools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "ci" / "results"

#: Libraries whose versions results name.
LIBRARIES = (
    "dask",
    "distributed",
    "numpy",
    "scipy",
    "numba",
    "zarr",
    "ducc0",
    "mkl_fft",
    "pyFFTW",
    "cupy-cuda12x",
    "cupy-cuda13x",
)

#: Part of the probability that an interval holds, and bootstrap samples behind it.
LEVEL = 0.90
DRAWS = 4000


# --- intervals ------------------------------------------------------------------------------


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the median ratio within pairs, and its bootstrap interval.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0])["ratio"]
    2.0
    """
    ratios = np.array([a / b for a, b in zip(above, below, strict=False)])
    samples = np.random.default_rng(0).choice(ratios, (DRAWS, len(ratios)))
    medians = np.median(samples, axis=1)
    low, high = np.quantile(medians, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return {
        "ratio": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "n": len(ratios),
    }


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# --- the machine ----------------------------------------------------------------------------


def load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in psutil.getloadavg()]


def processor() -> str:
    """Return the model of the processor, or its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def describe(threads: int | None = None) -> dict[str, Any]:
    """Return the machine, the versions of libraries and the time, without any name."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    machine = {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "versions": versions,
        "load": load(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    if threads is not None:
        machine["threads"] = threads
    return machine


def commit(tree: Path) -> str:
    """Return the commit of a working tree, with a plus sign where files have changed.

    Results do not count: the program that asks may have written them.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tree), *arguments]
        with contextlib.suppress(OSError):  # no git
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            return process.stdout.strip()
        return ""

    state = git("rev-parse", "--short=10", "HEAD") or "unknown"
    if git("status", "--porcelain", "--untracked-files=no", ":(top,exclude)ci/results"):
        state += "+"
    return state


# --- JSON -----------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """Return JSON content with floats of five digits, which is more than any of them is worth."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def write(path: Path | None, content: Mapping[str, Any]) -> None:
    """Replace a JSON file at once; each row of a list or mapping takes one line."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(encode(rounded(content)) + "\n", encoding="utf-8")
    part.replace(path)


def encode(content: Any, depth: int = 0) -> str:
    """Return JSON text whose lines are short.

    >>> print(encode({"a": [1, 2]}))
    {"a": [1, 2]}
    """
    flat = json.dumps(content, ensure_ascii=False)
    if len(flat) + depth <= 118 or not isinstance(content, dict | list) or not content:
        return flat
    if isinstance(content, dict):
        brackets = "{}"
        lines = [f"{json.dumps(key)}: {encode(value, depth + 1)}" for key, value in content.items()]
    else:
        brackets = "[]"
        lines = [encode(value, depth + 1) for value in content]
    space = " " * depth
    entries = ",\n".join(f"{space} {line}" for line in lines)
    return f"{brackets[0]}\n{entries}\n{space}{brackets[1]}"


class Results:
    """Rows of one program, in a JSON file that is written after each.

    Parameters
    ----------
    args : Namespace
        Of `arguments`.
    program : str
        Name of the program.
    **conditions
        What holds for all rows.
    """

    def __init__(self, args: argparse.Namespace, program: str, **conditions: Any) -> None:
        self.path = args.out
        self.until = time.monotonic() + args.budget
        self.content: dict[str, Any] = {
            "program": program,
            "state": commit(ROOT),
            "machine": describe(args.threads),
            "scale": args.scale,
            **conditions,
            "sections": {},
        }
        if args.resume and self.path is not None and self.path.exists():
            earlier = json.loads(self.path.read_text(encoding="utf-8"))
            names = self.content.keys() - {"machine", "sections"}
            if all(earlier.get(name) == rounded(self.content[name]) for name in names):
                self.content["sections"] = earlier["sections"]

    def missing(self, section: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of `lacks`."""
        return (name for name in names if self.lacks(section, name))

    def lacks(self, section: str, name: str) -> bool:
        """Return whether a row is to be measured: it is missing, and the time is not over."""
        rows = self.content["sections"].get(section, [])
        return not self.over and all(row["name"] != name for row in rows)

    def add(self, section: str, name: str, **row: Any) -> None:
        """Add a row, or replace the one of this name; write and print it."""
        sections = self.content["sections"]
        others = [known for known in sections.get(section, []) if known["name"] != name]
        sections[section] = [*others, {"name": name, **row}]
        write(self.path, self.content)
        print(f"{section}: {json.dumps(rounded({'name': name, **row}))}", flush=True)

    @property
    def over(self) -> bool:
        """Whether the time is over, so that nothing more is begun."""
        return time.monotonic() > self.until

    @property
    def ok(self) -> bool:
        """Whether all results were right."""
        rows = itertools.chain.from_iterable(self.content["sections"].values())
        return all(row.get("ok", True) and "failed" not in row for row in rows)


def outcome(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says of the check of its results."""
    return {"error": check["samples"], "ok": check["ok"]}


def arguments(program: str, document: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all programs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {program}", description=document.splitlines()[0]
    )
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="rows, by name or pattern")
    add("--repeat", type=int, default=5, metavar="N", help="turns that count (default: 5)")
    kernels = [name for name in ("scipy", "ducc0") if find_spec(name)]
    add("--kernels", nargs="+", default=kernels, metavar="NAME", help="FFT libraries of ours")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    add("--scale", type=float, default=1.0, metavar="F", help="part of the elements, to try things")
    add("--budget", type=float, default=math.inf, metavar="S", help="begin nothing after these")
    add("--out", type=Path, metavar="PATH", help="JSON")
    add("--resume", action="store_true", help="keep rows of --out that were measured on this state")
    parser.set_defaults(**defaults)
    return parser


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns; exit where none does."""
    matching = [
        name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    if not matching:
        raise SystemExit(f"no row matches {' '.join(patterns)}: {' '.join(names)}")
    return matching


# --- child processes ------------------------------------------------------------------------


def call(
    function: Callable[..., Any],
    *arguments: Any,
    memory: str = "freed",
    limit: int = 0,
    seconds: float = 1800.0,
) -> dict[str, Any]:
    """Return the result of a program's function in a new process.

    Parameters
    ----------
    function : callable
        Function of a module of this package, with arguments and a result that JSON can hold.
    *arguments
        Its arguments.
    memory : str
        Name in `MEMORY`: what the process does with memory that it frees.
    limit : int
        Bytes of a memory cgroup around the process, 0 for none.
    seconds : float
        Time limit.
    """
    program = function.__module__.rpartition(".")[2]
    text = json.dumps(arguments, default=str)
    command = ["-m", "benchmarks", "--call", program, function.__name__, text]
    return child(
        command,
        environment(memory),
        limit=limit,
        seconds=seconds,
    )


def in_turns(
    labels: Sequence[str],
    processes: int,
    run: Callable[[str], dict[str, Any]],
) -> dict[str, list[dict[str, Any]]]:
    """Return the results of each contestant's processes; each turn begins with another contestant.

    Parameters
    ----------
    labels : sequence of str
        Names of the contestants.
    processes : int
        Number of turns.
    run : callable
        Returns the result of a new process of a contestant.
    """
    results: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    for turn in range(processes):
        first = turn % len(labels)
        for label in [*labels[first:], *labels[:first]]:
            results[label].append(run(label))
    return results


def memory_mode(label: str) -> str:
    """Return the memory mode that the name of a contestant ends with, or that of glibc.

    >>> memory_mode("da.fft, memory kept"), memory_mode("ours")
    ('kept', 'freed')
    """
    _, _, mode = label.partition(", memory ")
    return mode or "freed"


#: Variables of glibc by what a process does with freed memory. By default it gives large blocks
#: back to the system, and the next allocation takes page faults. It keeps them if all threads
#: allocate from the main heap: another thread's arena holds no block above 64 MiB.
MEMORY: dict[str, dict[str, str]] = {
    "freed": {},
    "kept": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    },
}


def environment(memory: str = "freed", **extra: str) -> dict[str, str]:
    """Return the environment of a child that gives freed memory back or keeps it.

    `benchmarks.__main__` has dropped the variables that limit threads. Children keep bytecode, so
    that an import is as fast as that of an installed package.
    """
    dropped = {"GLIBC_TUNABLES", "PYTHONDONTWRITEBYTECODE", *MEMORY["kept"]}
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, **MEMORY[memory], **extra}


def child(
    command: Sequence[str],
    env: Mapping[str, str],
    limit: int = 0,
    seconds: float = 1800.0,
) -> dict[str, Any]:
    """Return the JSON object that a new process prints last, or ``{"error": ...}``.

    Parameters
    ----------
    command : sequence of str
        Arguments of the Python interpreter.
    env : mapping
        Environment variables.
    limit : int
        Bytes of a memory cgroup around it and its children, 0 for none.
    seconds : float
        Time limit.
    """
    arguments = [sys.executable, *command]
    with memory_cgroup(limit) if limit else contextlib.nullcontext() as group:
        if group is not None:
            arguments = group.command(arguments)
        process = subprocess.Popen(
            arguments,
            env=dict(env),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {seconds:.0f} s"}
        finally:  # it, and the workers that it may have started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        lines = errors.strip().splitlines() or [""]
        return {"error": f"exit status {process.returncode}: {lines[-1]}"[:300]}
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    if limit:
        answer["cgroup"] = group is not None
    return answer


# --- memory cgroups -------------------------------------------------------------------------


class Cgroup:
    """A group of processes with a memory limit, the page cache included, and without swap."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder
        self.version = version

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs another one inside the group."""
        join = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"'
        return ["sh", "-c", join, "sh", *arguments]

    @property
    def peak(self) -> int | None:
        """Most bytes that the group has used."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        try:
            return int((self.folder / name).read_text())
        except (OSError, ValueError):
            return None

    def limit_memory(self, limit: int) -> None:
        """Limit the memory, and swap if possible; raise OSError where that is not allowed."""
        if self.version == 2:
            (self.folder / "memory.max").write_text(str(limit))
            swap_file = self.folder / "memory.swap.max"
            swap_limit = 0
        else:
            (self.folder / "memory.limit_in_bytes").write_text(str(limit))
            swap_file = self.folder / "memory.memsw.limit_in_bytes"
            swap_limit = limit
        with contextlib.suppress(OSError):
            swap_file.write_text(str(swap_limit))

    def remove(self) -> None:
        """Remove the group once its processes have ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.1)


def cgroup_parents() -> Iterator[tuple[Path, int]]:
    """Yield groups in which this process may make one: its own, then the root."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.strip("/"), 1
            yield root / "memory", 1
        elif not controllers:
            yield root / path.strip("/"), 2
            yield root, 2


def new_cgroup(parent: Path, version: int, limit: int) -> Cgroup | None:
    """Return a new group below another one, or None where it cannot be made or limited."""
    group = Cgroup(parent / f"dask_bigfft_{os.getpid()}_{uuid.uuid4().hex[:8]}", version)
    try:
        group.folder.mkdir()
        if limit:
            group.limit_memory(limit)
    except OSError:
        with contextlib.suppress(OSError):
            group.folder.rmdir()
        return None
    if not limit and group.peak is None:
        group.remove()
        return None
    return group


@contextlib.contextmanager
def memory_cgroup(limit: int = 0) -> Iterator[Cgroup | None]:
    """Give a memory cgroup, with a limit unless that is 0; None where none can be made."""
    group = None
    for parent, version in cgroup_parents():
        group = new_cgroup(parent, version, limit)
        if group is not None:
            break
    try:
        yield group
    finally:
        if group is not None:
            group.remove()

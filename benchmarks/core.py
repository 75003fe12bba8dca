"""What the programs share: child processes, a memory cgroup, intervals, the machine, JSON.

The loops that measure are in `problems`, which guards import without this file.
"""

import argparse
import contextlib
import datetime
import fnmatch
import importlib.metadata
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
LIBRARIES = "dask distributed numpy scipy numba zarr ducc0 mkl_fft pyFFTW cupy-cuda12x cupy-cuda13x"

#: Part of the probability that an interval holds, and bootstrap samples behind it.
LEVEL = 0.90
DRAWS = 4000


# --- intervals ------------------------------------------------------------------------------


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the median ratio within pairs, and its bootstrap interval.

    >>> ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0])["ratio"]
    2.0
    """
    found = np.array([a / b for a, b in zip(above, below, strict=False)])
    drawn = np.random.default_rng(0).choice(found, (DRAWS, len(found)))
    edges = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low, high = np.quantile(np.median(drawn, axis=1), edges)
    middle = float(np.median(found))
    return {"ratio": middle, "low": float(low), "high": float(high), "n": len(found)}


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


# --- the machine ----------------------------------------------------------------------------


def load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in psutil.getloadavg()]


def describe(threads: int | None = None) -> dict[str, Any]:
    """Return the machine, the versions of libraries and the time, without any name."""
    cpu = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
        cpu = next(models, cpu)
    versions = {}
    for name in LIBRARIES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    machine = {
        "cpu": cpu,
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

    def git(*command: str) -> str:
        full = ["git", "-C", str(tree), *command]
        with contextlib.suppress(OSError):  # no git
            return subprocess.run(full, capture_output=True, text=True, check=False).stdout.strip()
        return ""

    changed = git("status", "--porcelain", "--untracked-files=no", ":(top,exclude)ci/results")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


# --- JSON -----------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """Return JSON content with floats of five digits, which is more than any of them is worth."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


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
    space = " " * depth
    inner = " " * (depth + 1)
    if isinstance(content, dict):
        items = [f"{json.dumps(key)}: {encode(item, depth + 1)}" for key, item in content.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{space}}}"
    return "[\n" + ",\n".join(inner + encode(item, depth + 1) for item in content) + f"\n{space}]"


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
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            same = self.content.keys() - {"machine", "sections"}
            if all(kept.get(name) == rounded(self.content[name]) for name in same):
                self.content["sections"] = kept["sections"]

    def missing(self, section: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the names of `lacks`."""
        return (name for name in names if self.lacks(section, name))

    def lacks(self, section: str, name: str) -> bool:
        """Return whether a row is to be measured: it is missing, and the time is not over."""
        rows = self.content["sections"].get(section, [])
        return not self.over and all(row["name"] != name for row in rows)

    def add(self, section: str, name: str, **row: Any) -> None:
        """Add a row, or replace the one of this name; write and print it."""
        rows = self.content["sections"].setdefault(section, [])
        rows[:] = [known for known in rows if known["name"] != name]
        rows.append({"name": name, **row})
        write(self.path, self.content)
        print(f"{section}: {json.dumps(rounded(rows[-1]))}", flush=True)

    @property
    def over(self) -> bool:
        """Whether the time is over, so that nothing more is begun."""
        return time.monotonic() > self.until

    @property
    def ok(self) -> bool:
        """Whether all results were right."""
        rows = [row for rows in self.content["sections"].values() for row in rows]
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
    found = [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]
    if not found:
        raise SystemExit(f"no row matches {' '.join(patterns)}: {' '.join(names)}")
    return found


# --- child processes ------------------------------------------------------------------------


def call(
    function: Callable[..., Any], *given: Any, memory: str = "freed", limit: int = 0
) -> dict[str, Any]:
    """Return the result of a program's function in a new process.

    Parameters
    ----------
    function : callable
        Function of a module of this package, with arguments and a result that JSON can hold.
    *given
        Its arguments.
    memory : str
        Name in `MEMORY`: what the process does with memory that it frees.
    limit : int
        Bytes of a memory cgroup around the process, 0 for none.
    """
    program = function.__module__.rpartition(".")[2]
    text = json.dumps(given, default=str)
    command = ["-m", "benchmarks", "--call", program, function.__name__, text]
    return child(command, environment(memory), limit=limit)


def in_turns(
    labels: Sequence[str], processes: int, run: Callable[[str], dict[str, Any]]
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

    `benchmarks.__main__` has dropped the variables that limit threads.
    """
    allocator = {"GLIBC_TUNABLES", *MEMORY["kept"]}
    inherited = {name: value for name, value in os.environ.items() if name not in allocator}
    return {**inherited, **MEMORY[memory], **extra}


def child(
    command: Sequence[str], env: Mapping[str, str], limit: int = 0, seconds: float = 1800.0
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
    full = [sys.executable, *command]
    with memory_cgroup(limit) if limit else contextlib.nullcontext() as group:
        if group is not None:
            full = group.command(full)
        process = subprocess.Popen(
            full,
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
            last = errors.strip().splitlines()[-1:] or [""]
            return {"error": f"exit status {process.returncode}: {last[0]}"[:300]}
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


def made_cgroup(parent: Path, version: int, limit: int) -> Cgroup | None:
    group = Cgroup(parent / f"dask_bigfft_{os.getpid()}_{uuid.uuid4().hex[:8]}", version)
    names = (
        ("memory.max", "memory.swap.max")
        if version == 2
        else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    )
    try:
        group.folder.mkdir()
        if limit:
            (group.folder / names[0]).write_text(str(limit))
    except OSError:
        with contextlib.suppress(OSError):
            group.folder.rmdir()
        return None
    if not limit and group.peak is None:
        group.remove()
        return None
    with contextlib.suppress(OSError):
        if limit:
            (group.folder / names[1]).write_text("0" if version == 2 else str(limit))
    return group


@contextlib.contextmanager
def memory_cgroup(limit: int = 0) -> Iterator[Cgroup | None]:
    """Give a memory cgroup, with a limit unless that is 0; None where none can be made."""
    made = (made_cgroup(parent, version, limit) for parent, version in cgroup_parents())
    found = next((group for group in made if group is not None), None)
    try:
        yield found
    finally:
        if found is not None:
            found.remove()

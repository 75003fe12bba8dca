"""Compare two source trees: every row in alternating pairs of processes.

``python -m benchmarks guard`` holds this tree against commit c3e018b, the state before the
redesign, of which it makes a working tree in ``ci/out``. Each process runs one row of `rows` with
PYTHONPATH set to its tree and caches of its own. A figure fails if the whole interval of its median
ratio, after over before, lies above the bound: 1.05, or 1.10 for 64 blocks. The JSON is written
after every pair, and ``--resume`` goes on with the rows that it lacks. All rows take about three
hours on two cores. Exit status 1: a figure failed, or a row did not
give a right answer.
"""

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import core
from benchmarks.rows import ROWS

BEFORE = "c3e018b"
SIDES = ("before", "after")

#: Pairs below which no figure fails: their interval says too little.
LEAST_PAIRS = 5


@dataclass
class Guard:
    """Two trees, and how each row is run on them."""

    trees: dict[str, Path]
    folder: Path
    scale: float
    threads: int
    repeat: int
    kernel: str

    def call(self, side: str, row: str, prepare: bool = False) -> dict[str, Any]:
        """Return what a process on one of the trees finds."""
        tree = self.trees[side]
        cache = self.folder / f"cache-{side}"  # measured speeds and compiled code
        task = {
            "row": row,
            "prepare": prepare,
            "scale": self.scale,
            "threads": self.threads,
            "repeat": self.repeat,
            "kernel": self.kernel,
            "folder": str(self.folder / "files"),
        }
        env = core.environment(
            PYTHONPATH=str(tree), XDG_CACHE_HOME=str(cache), NUMBA_CACHE_DIR=str(cache / "numba")
        )
        for name in [name for name in env if name.startswith("DASK_BIGFFT")]:
            del env[name]
        program = str(Path(__file__).with_name("rows.py"))
        answer = core.child(
            ["-P", program, json.dumps(task)], env, limit=0 if prepare else ROWS[row].limit
        )
        if "error" not in answer and Path(answer["package"]).resolve() != tree.resolve():
            raise RuntimeError(f"{side}: dask_bigfft was imported from {answer['package']}")
        return answer

    def pair(self, number: int, row: str) -> dict[str, dict[str, Any]]:
        """Run a row on both trees; the order changes from pair to pair."""
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        return {side: self.call(side, row) for side in order}


def summary(pairs: Sequence[dict[str, dict[str, Any]]], bound: float) -> dict[str, Any]:
    """Return the medians, ratios and verdicts of a row, or what went wrong.

    >>> def pair(seconds):
    ...     return {side: {"figures": {"seconds": t}, "check": {"ok": True}}
    ...             for side, t in zip(("before", "after"), seconds)}
    >>> found = summary([pair((1.0, 1.2 + i / 100)) for i in range(9)], 1.05)
    >>> found["figures"]["seconds"]["verdict"], found["ok"]
    ('slower', False)
    """
    for pair in pairs:
        for side, answer in pair.items():
            if "error" in answer:
                return {"ok": False, "error": f"{side}: {answer['error']}"}
            if not answer["check"]["ok"]:
                return {"ok": False, "error": f"{side}: wrong result: {answer['check']}"}
    figures = {}
    names = [pair[side]["figures"] for pair in pairs for side in SIDES]
    for name in [name for name in names[0] if all(name in found for found in names)]:
        before, after = ([pair[side]["figures"][name] for pair in pairs] for side in SIDES)
        found = core.ratio(after, before)
        verdict = "ok" if found["high"] <= bound else "open"
        if found["low"] > bound and len(pairs) >= LEAST_PAIRS:
            verdict = "slower"
        figures[name] = {
            "before": core.median(before),
            "after": core.median(after),
            **found,
            "verdict": verdict,
        }
    cgroup = [a["cgroup"] for pair in pairs for a in pair.values() if "cgroup" in a]
    ok = all(figure["verdict"] != "slower" for figure in figures.values())
    limited = {"cgroup": all(cgroup)} if cgroup else {}
    return {"ok": ok, "bound": bound, **limited, "figures": figures}


def show(row: str, found: dict[str, Any]) -> None:
    """Print the figures of a row."""
    if "error" in found:
        print(f"{row:28} FAILED  {found['error']}", flush=True)
        return
    for name, one in found["figures"].items():
        print(
            f"{row:28} {name:18} {one['before']:.4g} -> {one['after']:.4g}  x{one['ratio']:.3f} "
            f"({one['low']:.3f} to {one['high']:.3f}, {one['n']} pairs, bound {found['bound']}) "
            f"{one['verdict']}",
            flush=True,
        )


def tree_of(text: str) -> Path:
    """Return a folder as it is, or that of a working tree of a commit, made if need be."""
    if Path(text, "dask_bigfft").is_dir():
        return Path(text).resolve()
    tree = core.ROOT / "ci" / "out" / f"tree-{text}"
    if not tree.is_dir():
        tree.parent.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(core.ROOT), "worktree"]
        subprocess.run([*git, "prune"], check=True)
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), text], check=True)
    return tree


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks guard", description=__doc__.splitlines()[0]
    )
    add = made.add_argument
    add("--before", default=BEFORE, metavar="TREE", help="folder or commit (default: %(default)s)")
    add("--after", default=str(core.ROOT), metavar="TREE", help="folder or commit (default: here)")
    add("--rows", nargs="+", default=["*"], metavar="PATTERN", help="rows, by name or pattern")
    add("--list", action="store_true", help="print the rows")
    add("--pairs", type=int, default=9, metavar="N", help="pairs of processes (default: 9)")
    add("--repeat", type=int, default=3, metavar="N", help="turns in a process (default: 3)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    add(
        "--kernel",
        default="ducc0" if find_spec("ducc0") else "scipy",
        metavar="NAME",
        help="FFT library of both (default: %(default)s)",
    )
    add("--scale", type=float, default=1.0, metavar="F", help="part of the elements, to try things")
    add(
        "--folder",
        type=Path,
        metavar="PATH",
        help="disk for arrays larger than memory, about 40 GiB (default: a temporary folder)",
    )
    add("--out", type=Path, metavar="PATH", help="JSON")
    add("--resume", action="store_true", help="keep complete rows of --out")
    return made


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    rows = [name for name in ROWS if any(fnmatch.fnmatch(name, p) for p in args.rows)]
    if args.list or not rows:
        print("\n".join(ROWS))
        return int(not rows)
    if core.load()[0] > 0.5 * args.threads:
        print(f"the machine is busy (load {core.load()[0]}): ratios may be noise", file=sys.stderr)
    trees = {side: tree_of(getattr(args, side)) for side in SIDES}
    same = {
        "scale": args.scale,
        "repeat": args.repeat,
        "kernel": args.kernel,
        **{side: core.commit(tree) for side, tree in trees.items()},
    }
    results: dict[str, Any] = {
        "program": "guard",
        "machine": core.describe(args.threads),
        **same,
        "rows": {},
    }
    if args.resume and args.out is not None and args.out.exists():
        kept = json.loads(args.out.read_text(encoding="utf-8"))
        if all(kept.get(key) == value for key, value in same.items()):
            results["rows"] = kept["rows"]
    temporary = None if args.folder else tempfile.mkdtemp(prefix="guard-")
    folder = (args.folder or Path(temporary or "")).resolve()
    guard = Guard(trees, folder, args.scale, args.threads, args.repeat, args.kernel)
    try:
        for row in rows:
            if results["rows"].get(row, {}).get("pairs") == args.pairs:
                continue
            run_row(guard, row, args, results)
    finally:
        shutil.rmtree(temporary or folder / "files", ignore_errors=True)
    return int(not all(results["rows"][row]["ok"] for row in rows))


def run_row(guard: Guard, row: str, args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Run all pairs of a row; write what is known after each."""
    if ROWS[row].prepare is not None:
        prepared = guard.call("after", row, prepare=True)
        if "error" in prepared:
            results["rows"][row] = {"ok": False, "error": prepared["error"]}
            show(row, results["rows"][row])
            return
    pairs: list[dict[str, dict[str, Any]]] = []
    for number in range(args.pairs):
        pairs.append(guard.pair(number, row))
        results["rows"][row] = {**summary(pairs, ROWS[row].bound), "pairs": len(pairs)}
        core.write(args.out, results)
        if "error" in results["rows"][row]:
            break
    show(row, results["rows"][row])
    shutil.rmtree(guard.folder / "files", ignore_errors=True)

"""Compare two source trees: every row in alternating pairs of processes.

``python -m benchmarks guard`` holds this tree against commit c3e018b, the state before the
redesign, of which it makes a working tree in ``build``. Each process runs one row of this tree's
`rows` with the package of its tree and caches of its own. A figure fails if the whole interval of
its median ratio, after over before, lies above the bound: 1.05, or 1.10 for 64 blocks. The JSON is
written after every row, and ``--resume`` goes on with the rows that it lacks. All rows take about
three hours on two cores and 40 GiB of the temporary folder; both trees use the last of
``--kernels``.
Exit status 1: a figure failed, or a row did not give a right answer.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
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
    task: dict[str, Any]

    def call(self, side: str, row: str, prepare: bool = False) -> dict[str, Any]:
        """Return what a process on one of the trees finds."""
        tree = self.trees[side]
        cache = self.folder / f"cache-{side}"  # measured speeds and compiled code
        task = self.task | {"folder": str(self.folder / "files")}
        package = self.folder / side / "dask_bigfft"  # alone, so that benchmarks are those of here
        if not package.is_symlink():
            package.parent.mkdir()
            package.symlink_to(tree / "dask_bigfft")
        path = [str(package.parent), str(core.ROOT), os.environ.get("PYTHONPATH", "")]
        env = core.environment(
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            XDG_CACHE_HOME=str(cache),
            NUMBA_CACHE_DIR=str(cache / "numba"),
        )
        for name in [name for name in env if name.startswith("DASK_BIGFFT")]:
            del env[name]
        command = ["-P", "-m", "benchmarks.rows", json.dumps([row, task, prepare])]
        answer = core.child(command, env, limit=0 if prepare else ROWS[row].limit)
        if "error" not in answer and Path(answer["package"]).resolve() != tree.resolve():
            raise RuntimeError(f"{side}: dask_bigfft was imported from {answer['package']}")
        return answer

    def pair(self, number: int, row: str) -> dict[str, dict[str, Any]]:
        """Run a row on both trees; the order changes from pair to pair."""
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        return {side: self.call(side, row) for side in order}

    def row(self, row: str, pairs: int) -> dict[str, Any]:
        """Run all pairs of a row; return its summary."""
        if ROWS[row].prepare is not None:
            prepared = self.call("after", row, prepare=True)
            if "error" in prepared:
                return {"ok": False, "failed": prepared["error"]}
        found: list[dict[str, dict[str, Any]]] = []
        for number in range(pairs):
            found.append(self.pair(number, row))
            if any("error" in answer for answer in found[-1].values()):
                break
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        return summary(found, ROWS[row].bound)


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
                return {"ok": False, "failed": f"{side}: {answer['error']}"}
            if not answer["check"]["ok"]:
                return {"ok": False, "failed": f"{side}: wrong result: {answer['check']}"}
    figures = {}
    names = [pair[side]["figures"] for pair in pairs for side in SIDES]
    for name in [name for name in names[0] if all(name in found for found in names)]:
        before, after = ([pair[side]["figures"][name] for pair in pairs] for side in SIDES)
        found = core.ratio(after, before)
        verdict = "ok" if found["high"] <= bound else "open"
        if found["low"] > bound and len(pairs) >= LEAST_PAIRS:
            verdict = "slower"
        medians = {"before": core.median(before), "after": core.median(after)}
        figures[name] = {**medians, **found, "verdict": verdict}
    cgroup = [a["cgroup"] for pair in pairs for a in pair.values() if "cgroup" in a]
    ok = all(figure["verdict"] != "slower" for figure in figures.values())
    limited = {"cgroup": all(cgroup)} if cgroup else {}
    return {"ok": ok, "bound": bound, **limited, "figures": figures}


def tree_of(text: str) -> Path:
    """Return a folder as it is, or that of a working tree of a commit, made if need be."""
    if Path(text, "dask_bigfft").is_dir():
        return Path(text).resolve()
    tree = core.ROOT / "build" / f"tree-{text}"
    if not tree.is_dir():
        tree.parent.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(core.ROOT), "worktree"]
        subprocess.run([*git, "prune"], check=True)
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), text], check=True)
    return tree


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("guard", __doc__, repeat=3)
    add = parser.add_argument
    add("--before", default=BEFORE, metavar="TREE", help="folder or commit (default: %(default)s)")
    add("--after", default=str(core.ROOT), metavar="TREE", help="folder or commit (default: here)")
    add("--rows", nargs="+", dest="only", metavar="PATTERN", help="the same as --only")
    add("--gpu", action="store_true", help="run the rows for a GPU, and only these")
    add("--pairs", type=int, default=9, metavar="N", help="pairs of processes (default: 9)")
    args = parser.parse_args(argv)
    rows = core.chosen([name for name, row in ROWS.items() if row.gpu == args.gpu], args.only)
    if core.load()[0] > 0.5 * args.threads:
        print(f"the machine is busy (load {core.load()[0]}): ratios may be noise", file=sys.stderr)
    trees = {side: tree_of(getattr(args, side)) for side in SIDES}
    commits = {side: core.commit(tree) for side, tree in trees.items()}
    kernel = args.kernels[-1]
    results = core.Results(args, "guard", pairs=args.pairs, kernel=kernel, **commits)
    task = {name: getattr(args, name) for name in ("scale", "threads", "repeat")}
    with tempfile.TemporaryDirectory(prefix="guard-", ignore_cleanup_errors=True) as folder:
        guard = Guard(trees, Path(folder).resolve(), task | {"kernel": kernel})
        for row in results.missing("rows", rows):
            results.add("rows", row, **guard.row(row, args.pairs))
    for row in results.content["sections"].get("rows", []):
        for line in report(row):
            print(line)
    return int(not results.ok)


def report(row: dict[str, Any]) -> list[str]:
    """Return a line for each figure of a row."""
    if "failed" in row:
        return [f"{row['name']:28} FAILED  {row['failed']}"]
    return [
        f"{row['name']:28} {name:18} {one['before']:.4g} -> {one['after']:.4g}  "
        f"x{one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f}, {one['n']} pairs, "
        f"bound {row['bound']}) {one['verdict']}"
        for name, one in row["figures"].items()
    ]

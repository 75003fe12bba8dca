"""Compare two source trees: every row in alternating pairs of processes.

``python -m benchmarks guard`` holds this tree against commit c3e018b, the state before the
redesign, of which it makes a working tree in ``build``. Each process runs one row of this tree's
`rows` with the package of its tree and caches of its own, which a first process of each tree fills
that is not counted. The two processes of a pair live at the same time and take turns, because the
noise of a shared machine changes within seconds. Rows with a memory limit or on a GPU have one
process after the other. A figure fails if the whole interval of its median ratio, after over
before, lies above the bound: 1.05, or 1.10 for 64 blocks. The JSON is written after every row, and
``--resume`` goes on with the rows that it lacks. All rows take about three hours on two cores and
40 GiB of the temporary folder; both trees use the last of ``--kernels``.
Exit status 1: a figure failed, or a row did not give a right answer.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import core, problems
from benchmarks.rows import ROWS

BEFORE = "c3e018b"
SIDES = ("before", "after")

#: Pairs below which no figure fails: their interval says too little.
LEAST_PAIRS = 5

#: Turns that a process may have after the other one of its pair has ended.
MOST_TURNS = 4096


#: What a process of each side returned.
Pair = dict[str, dict[str, Any]]


@dataclass
class Guard:
    """Two trees, and how each row is run on them.

    Parameters
    ----------
    trees : dict of str to Path
        Source tree of each side.
    folder : Path
        Temporary folder for caches and files.
    task : dict
        Fields of `rows.Task` except for its folder.
    """

    trees: dict[str, Path]
    folder: Path
    task: dict[str, Any]

    def environment(self, side: str) -> dict[str, str]:
        """Return the variables of a process that imports the package of one of the trees."""
        cache = self.folder / f"cache-{side}"  # measured speeds and compiled code
        package = self.folder / side / "dask_bigfft"  # alone, so that benchmarks are those of here
        if not package.is_symlink():
            package.parent.mkdir()
            package.symlink_to(self.trees[side] / "dask_bigfft")
        path = [str(package.parent), str(core.ROOT), os.environ.get("PYTHONPATH", "")]
        variables = core.environment(
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            XDG_CACHE_HOME=str(cache),
            NUMBA_CACHE_DIR=str(cache / "numba"),
        )
        return {
            name: value for name, value in variables.items() if not name.startswith("DASK_BIGFFT")
        }

    def call(
        self,
        side: str,
        row: str,
        prepare: bool = False,
        more_environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the answer of a process that runs or prepares a row on one of the trees."""
        environment = self.environment(side) | dict(more_environment or {})
        task = self.task | {"folder": str(self.folder / "files")}
        command = ["-P", "-m", "benchmarks.rows", json.dumps([row, task, prepare])]
        limit = 0 if prepare else ROWS[row].limit
        answer = core.child(command, environment, limit=limit)
        if "error" in answer:
            return answer
        if Path(answer["package"]).resolve() != self.trees[side].resolve():
            raise RuntimeError(f"{side}: dask_bigfft was imported from {answer['package']}")
        return answer

    def pair(self, number: int, row: str) -> Pair:
        """Run a row on both trees; the order changes from pair to pair."""
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        if ROWS[row].limit or ROWS[row].gpu:
            return {side: self.call(side, row) for side in order}
        return self.call_in_turns(order, row)

    def call_in_turns(self, order: Sequence[str], row: str) -> Pair:
        """Return the answers of two processes that take turns in a row, see `problems.Turns`."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name, ExitStack() as stack:
            pipes: dict[str, int] = {}
            for side in order:
                os.mkfifo(Path(name, side))
                pipes[side] = os.open(Path(name, side), os.O_RDWR)
                stack.callback(os.close, pipes[side])

            def call(side: str, other: str) -> dict[str, Any]:
                paths = os.pathsep.join([f"{name}/{side}", f"{name}/{other}"])
                try:
                    return self.call(side, row, more_environment={problems.TURNS: paths})
                finally:  # the other one waits for this one no longer
                    os.write(pipes[other], b"." * MOST_TURNS)

            os.write(pipes[order[0]], b".")
            with ThreadPoolExecutor(len(order)) as pool:
                answers = pool.map(call, order, order[::-1])
                return dict(zip(order, answers, strict=True))

    def row(self, row: str, pairs: int) -> dict[str, Any]:
        """Run all pairs of a row; return its summary."""
        if ROWS[row].prepare is not None:
            prepared = self.call("after", row, prepare=True)
            if "error" in prepared:
                return {"ok": False, "failed": prepared["error"]}
        for side in SIDES:
            self.call(side, row)  # fills the caches of measured speeds and compiled code
        answers: list[Pair] = []
        for number in range(pairs):
            pair = self.pair(number, row)
            answers.append(pair)
            if any("error" in answer for answer in pair.values()):
                break
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        return summary(answers, ROWS[row].bound)


def failure_of(pairs: Sequence[Pair]) -> str | None:
    """Return what went wrong in the first process that gave no right result, if one did."""
    for pair in pairs:
        for side, answer in pair.items():
            if "error" in answer:
                return f"{side}: {answer['error']}"
            if not answer["check"]["ok"]:
                return f"{side}: wrong result: {answer['check']}"
    return None


def of_turns(figure: float | list[float]) -> list[float]:
    """Return the values of each turn of a figure of a process."""
    return figure if isinstance(figure, list) else [figure]


def compared(
    before: Sequence[list[float]],
    after: Sequence[list[float]],
    bound: float,
) -> dict[str, Any]:
    """Return the medians of a figure on both sides, their ratio, and the verdict.

    Turns of a pair are compared with each other, because one follows the other at once. The
    interval is that of the pairs.
    """
    ratios = [
        statistics.median(second / first for first, second in zip(*turns, strict=True))
        for turns in zip(before, after, strict=True)
    ]
    ratio = core.ratio(ratios, [1.0] * len(ratios))
    verdict = "open"
    if ratio["high"] <= bound:
        verdict = "ok"
    elif ratio["low"] > bound and len(before) >= LEAST_PAIRS:
        verdict = "slower"
    return {
        "before": statistics.median(map(statistics.median, before)),
        "after": statistics.median(map(statistics.median, after)),
        **ratio,
        "verdict": verdict,
    }


def summary(pairs: Sequence[Pair], bound: float) -> dict[str, Any]:
    """Return the medians, ratios and verdicts of a row, or what went wrong.

    >>> def pair(*seconds):
    ...     return {side: {"figures": {"seconds": t}, "check": {"ok": True}}
    ...             for side, t in zip(("before", "after"), seconds)}
    >>> row = summary([pair(1.0, 1.2 + i / 100) for i in range(9)], bound=1.05)
    >>> row["figures"]["seconds"]["verdict"], row["ok"]
    ('slower', False)
    """
    failure = failure_of(pairs)
    if failure is not None:
        return {"ok": False, "failed": failure}
    before = [pair["before"] for pair in pairs]
    after = [pair["after"] for pair in pairs]
    answers = [*before, *after]
    figures = {}
    for name in common_figures(answers):
        values_before = [of_turns(answer["figures"][name]) for answer in before]
        values_after = [of_turns(answer["figures"][name]) for answer in after]
        figures[name] = compared(values_before, values_after, bound)
    verdicts = [figure["verdict"] for figure in figures.values()]
    row: dict[str, Any] = {"ok": "slower" not in verdicts, "bound": bound}
    if "cgroup" in answers[0]:
        row["cgroup"] = all(answer["cgroup"] for answer in answers)
    return {**row, "figures": figures}


def common_figures(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the figures that all processes have; an older tree may lack one."""
    names = answers[0]["figures"]
    return [name for name in names if all(name in answer["figures"] for answer in answers)]


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
    names = [name for name, row in ROWS.items() if row.gpu == args.gpu]
    rows = core.chosen(names, args.only)
    load = core.load()[0]
    if load > 0.5 * args.threads:
        print(f"the machine is busy (load {load}): ratios may be noise", file=sys.stderr)
    trees = {side: tree_of(getattr(args, side)) for side in SIDES}
    commits = {side: core.commit(tree) for side, tree in trees.items()}
    kernel = args.kernels[-1]
    results = core.Results(args, "guard", pairs=args.pairs, kernel=kernel, **commits)
    task = {
        "scale": args.scale,
        "threads": args.threads,
        "repeat": args.repeat,
        "kernel": kernel,
    }
    with tempfile.TemporaryDirectory(prefix="guard-", ignore_cleanup_errors=True) as folder:
        guard = Guard(trees, Path(folder).resolve(), task)
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
        f"{row['name']:28} {name:18} {figure['before']:.4g} -> {figure['after']:.4g}  "
        f"x{figure['ratio']:.3f} ({figure['low']:.3f} to {figure['high']:.3f}, "
        f"{figure['n']} pairs, bound {row['bound']}) {figure['verdict']}"
        for name, figure in row["figures"].items()
    ]

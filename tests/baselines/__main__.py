"""Record baselines, check this tree against them, or compare two trees.

    python -m tests.baselines make                         all of `tests/baselines/data` anew
    python -m tests.baselines check                        this tree against the recorded data
    python -m tests.baselines compare --before COMMIT      two trees on this machine

``compare`` is the one for bits: it makes the digests of both trees here and now. A tree is a folder
or a commit. Exit status 1: there are differences.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask_bigfft

from . import begun_run, bits, recording, store
from . import surface as surfaces
from .compare import DIFFERENCES
from .environments import empty_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: What is compared. A begun run is only made.
PARTS = ("plans", "texts", "surface", "bits")


def content_of(part: str) -> Any:
    """Return the content of a part, of the package that is imported."""
    if part == "plans":
        return recording.plans()
    if part == "texts":
        return recording.texts()
    if part == "bits":
        return {"machine": bits.machine(), "digests": bits.digests()}
    return surfaces.surface()


def make(parts: Sequence[str], folder: Path) -> None:
    """Record parts in a folder."""
    print(f"package: {Path(dask_bigfft.__file__).resolve().parent}", flush=True)
    for part in parts:
        if part == "begun_run":
            make_begun_runs(folder)
            continue
        path = folder / store.NAMES[part]
        store.write(path, content_of(part))
        print(f"{path}: {path.stat().st_size} bytes", flush=True)


def make_begun_runs(folder: Path) -> None:
    """Record runs that are killed."""
    for when in begun_run.KILLED_AT:
        path = folder / store.NAMES["begun_run"].format(when)
        with empty_folder() as run:
            begun_run.begin_and_kill(run, when)
            begun_run.pack(run, path)
        print(f"{path}: {path.stat().st_size} bytes", flush=True)


def show(parts: Sequence[str], before: Path, after: Path) -> int:
    """Print the differences of two folders; return the number of lines."""
    count = 0
    for part in parts:
        contents = [store.read(folder / store.NAMES[part]) for folder in (before, after)]
        lines = DIFFERENCES[part](*contents)
        print(f"{part}: {'no differences' if not lines else f'{len(lines)} lines'}")
        print(*(f"  {line}" for line in lines), sep="\n", end="\n" if lines else "")
        if part == "bits":
            unlike = bits.unlike(contents[1]["machine"], contents[0]["machine"])
            print(
                *(f"  another machine, {line}" for line in unlike),
                sep="\n",
                end="\n" * bool(unlike),
            )
        count += len(lines)
    return count


def make_in_tree(
    tree: Path,
    parts: Sequence[str],
    folder: Path,
    program: Path,
) -> None:
    """Record parts of a tree's package by a program, in a process of its own.

    Parameters
    ----------
    tree : Path
        Folder that holds the package.
    parts : sequence of str
        Names of `PARTS`.
    folder : Path
        Folder for the files.
    program : Path
        Folder ``tests/baselines`` that is run.
    """
    with tempfile.TemporaryDirectory(prefix="bigfft-tree-") as name:
        root = Path(name)
        (root / "tests").mkdir()
        (root / "tests" / "baselines").symlink_to(program)
        (root / "dask_bigfft").symlink_to(tree / "dask_bigfft")
        environment = {key: value for key, value in os.environ.items() if "BIGFFT" not in key}
        command = ["-m", "tests.baselines", "make", "--out", str(folder), "--only", *parts]
        subprocess.run(
            [sys.executable, *command],
            cwd=root,
            env={**environment, "PYTHONPATH": str(root)},
            check=True,
        )


def commit_of(text: str) -> str:
    """Return a folder as it is, or the hash of a commit, whose tree stays the same."""
    if Path(text).is_dir():
        return text
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", f"{text}^{{commit}}"]
    return subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def compare(before: str, after: str, parts: Sequence[str]) -> int:
    """Print the differences of two trees; return the number of lines."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.guard import tree_of

    with tempfile.TemporaryDirectory(prefix="bigfft-compare-") as name:
        folders = []
        for side, text in (("before", before), ("after", after)):
            tree = tree_of(commit_of(text))
            folder = Path(name) / side
            folders.append(folder)
            # The adapter of a tree knows its classes. Digests have to come from one program.
            own = tree / "tests" / "baselines"
            adapted = [part for part in parts if part != "bits"]
            if adapted:
                make_in_tree(
                    tree,
                    adapted,
                    folder,
                    own if own.is_dir() else HERE,
                )
            if "bits" in parts:
                make_in_tree(tree, ["bits"], folder, HERE)
        return show(parts, *folders)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    described = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(
        "tests.baselines",
        None,
        __doc__,
        formatter_class=described,
    )
    commands = arguments.add_subparsers(required=True, dest="command", metavar="COMMAND")
    making = commands.add_parser("make", help="record baselines")
    making.add_argument(
        "--out",
        type=Path,
        default=store.DATA,
        help="folder (default: data)",
    )
    making.add_argument(
        "--only",
        nargs="+",
        choices=store.NAMES,
        default=list(store.NAMES),
    )
    making.add_argument("--final", action="store_true", help="tests fail from now on, not skip")
    checking = commands.add_parser("check", help="compare this tree with recorded baselines")
    checking.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
    )
    comparing = commands.add_parser("compare", help="compare two trees on this machine")
    comparing.add_argument(
        "--before",
        required=True,
        metavar="TREE",
        help="folder or commit",
    )
    comparing.add_argument(
        "--after",
        default=str(ROOT),
        metavar="TREE",
        help="folder or commit",
    )
    comparing.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
    )
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    args = parser().parse_args(argv)
    if args.command == "make":
        make(args.only, args.out)
        if args.final:
            store.PROVISIONAL.unlink(missing_ok=True)
        return 0
    if args.command == "compare":
        return int(compare(args.before, args.after, args.only) > 0)
    with empty_folder() as folder:
        make(args.only, folder)
        return int(show(args.only, store.DATA, folder) > 0)


if __name__ == "__main__":
    sys.exit(main())

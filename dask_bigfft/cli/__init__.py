"""The command line: ``dask-bigfft run IN OUT``, ``plan IN`` and ``calibrate``.

Exit status: 0 done, 1 failed while running, 2 an argument that is not allowed, 130 and 143
interrupted. Every outcome is reported in one line.
"""

import argparse
import errno
import os
import re
import signal
import sys
import time
from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path

from dask_bigfft import calibration, runs
from dask_bigfft.cli.arguments import joined, parser, requested
from dask_bigfft.cli.places import handled, place
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ScratchError
from dask_bigfft.planner.explain import human_bytes, human_count, human_seconds, speed_rows
from dask_bigfft.storage import targets
from dask_bigfft.watch.progress import TextDisplay

__all__ = ["Terminated", "main"]


def _plan(args: argparse.Namespace) -> None:
    wanted = requested(args)
    with place(args.scheduler, args.workers):
        print(runs.planned_input(wanted)[1].explain())


def _name_leftovers(path: Path) -> None:
    """Print the paths that killed runs have left."""
    if not path.parent.is_dir():
        return
    for left in targets.leftovers(path):
        print(f"note: {left} is what a killed run has left; it may be deleted", file=sys.stderr)
    for left in targets.leftovers(path, targets.REPLACED):
        text = f"{left} was {path} until a run replaced it that was killed, or is just ending"
        print(f"note: {text}", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    _name_leftovers(args.output)
    display = None if args.quiet else TextDisplay(sys.stderr)
    with place(args.scheduler, args.workers) as where:
        store = partial(where.store, display=display)
        _report(runs.execute(requested(args), store))


def _calibrate(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    with place(args.scheduler, args.workers) as where:
        profile = calibration.calibrate(where.client, args.output)
    print(f"{profile.name}, measured in {human_seconds(time.perf_counter() - started)}")
    rows = speed_rows(profile)
    width = 2 + max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:{width}}{value}")


def _report(done: runs.Done) -> None:
    spec, plan = done.plan.spec, done.plan
    what = f"{spec.name} of {spec.shape} {done.dtype}"
    if done.already:
        print(f"{done.path}: already done, {what}; nothing was computed or changed")
        return
    speed = human_count((done.read + done.written) / done.seconds, "B/s")
    rounds = f"{len(plan.rounds)} round{'' if len(plan.rounds) == 1 else 's'} {plan.notation}"
    sizes = f"read {human_bytes(done.read)}, wrote {human_bytes(done.written)}"
    seconds = human_seconds(done.seconds)
    print(f"{done.path}: {what} in {rounds}; {sizes} in {seconds} ({speed})")


_COMMANDS = {"run": _run, "plan": _plan, "calibrate": _calibrate}


class Terminated(KeyboardInterrupt):
    """Request to end the process (SIGTERM)."""


def _terminate(number: int, frame: object) -> None:
    """Raise an exception for SIGTERM."""
    raise Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.
    """
    args = parser().parse_args(joined(sys.argv[1:] if argv is None else argv))
    try:
        with handled(signal.SIGTERM, _terminate):
            _COMMANDS[args.command](args)
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if args.traceback:
            raise
        status, text = _failure(error, args)
        print(f"dask-bigfft: error: {text}", file=sys.stderr)
        return status
    return 0


# --- failures --------------------------------------------------------------------------------

#: Arguments of `run` and `calibrate` with another name on the command line.
_TYPED = {"source": "IN", "a": "IN", "destination": "OUT", "path": "--output", "axis": "--axes"}


def _failure(error: BaseException, args: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status and the error line, which names kept scratch files."""
    scratch, left = getattr(args, "scratch", None), "nothing was written"
    if scratch is not None and runs.has_begun(scratch):
        left = f"{scratch} keeps what is done: --resume goes on from there"
    if isinstance(error, Terminated):
        return 143, f"ended by a signal; {left}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {left}"
    if isinstance(error, ArgumentError | ArgumentTypeError):
        return 2, _as_typed(str(error), vars(args))
    text = _as_typed(" ".join(str(error).split()), vars(args)) or "no message"
    if isinstance(error, ScratchError):
        return 1, f"{text}; {left}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 1, f"the disk is full; {left} ({text})"
    if isinstance(error, MemoryError):
        return 1, f"out of memory; try --memory-limit ({error})"
    return 1, text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def _as_typed(text: str, options: Container[str] = ()) -> str:
    """Return an error text with the argument's name on the command line.

    >>> _as_typed("`destination`='b' is not allowed: need another path, or overwrite=True")
    "`OUT`='b' is not allowed: need another path, or --overwrite"
    >>> _as_typed("`memory_limit`='b' is not allowed: need a size", ["memory_limit"])
    "`--memory-limit`='b' is not allowed: need a size"
    >>> _as_typed("`resume`=True is not allowed: need a scratch folder", ["resume"])
    '`--resume` is not allowed: need a scratch folder'
    """

    def name(found: re.Match[str]) -> str:
        word, rest = found.groups()
        typed = f"--{word.replace('_', '-')}" if word in options else word
        return f"`{_TYPED.get(word, typed)}{rest}`="

    named = re.sub(r"`(\w+)((?:\.\w+)?)`=", name, text, count=1)
    named = re.sub(r"(`--[a-z]+`)=True", r"\1", named)
    return re.sub(r"\b(overwrite|resume|checksum)=True", r"--\1", named)

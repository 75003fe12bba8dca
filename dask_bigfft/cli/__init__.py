"""The command line: ``dask-bigfft run IN OUT``, ``plan IN`` and ``calibrate``.

Exit status: 0 done, 1 failed while running, 2 an argument that is not allowed, 130 and 143
interrupted. Whatever happens is said in one line. Imports `runs`, `calibration`, `storage`,
`watch` and this room.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dask_bigfft import calibration, runs
from dask_bigfft.cli.arguments import asked, joined, parser
from dask_bigfft.cli.failures import Terminated, failure
from dask_bigfft.cli.places import handled, place
from dask_bigfft.planner.explain import human_bytes, human_count, human_seconds, speed_rows
from dask_bigfft.storage import targets
from dask_bigfft.watch.progress import Display, TextDisplay

__all__ = ["main"]


def _plan(args: argparse.Namespace) -> None:
    wanted = asked(args)
    with place(args.scheduler, args.workers):
        print(runs.planned_input(wanted)[1].explain())


def _name_leftovers(path: Path) -> None:
    """Say what runs that were killed have left."""
    if not path.parent.is_dir():
        return
    for left in targets.leftovers(path):
        print(f"note: {left} is what a killed run has left; it may be deleted", file=sys.stderr)
    for left in targets.leftovers(path, targets.REPLACED):
        print(
            f"note: {left} was {path} until a run replaced it that was killed, or is just ending",
            file=sys.stderr,
        )


def _run(args: argparse.Namespace) -> None:
    _name_leftovers(args.output)
    with place(args.scheduler, args.workers) as where:
        done = runs.execute(
            asked(args),
            lambda result, sink: where.store(result, sink, _display(args)),
            scratch=args.scratch,
            resume=args.resume,
            overwrite=args.overwrite,
            checksum=args.checksum,
        )
    _report(done)


def _calibrate(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    with place(args.scheduler, args.workers) as where:
        profile = calibration.calibrate(where.client, args.output)
    print(f"{profile.name}, measured in {human_seconds(time.perf_counter() - started)}")
    rows = speed_rows(profile)
    width = 2 + max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:{width}}{value}")


def _display(args: argparse.Namespace) -> Display | None:
    return None if args.quiet else TextDisplay(sys.stderr)


def _report(done: runs.Done) -> None:
    if done.already:
        print(
            f"{done.path}: already done, {done.plan.spec.name} of {done.plan.spec.shape} "
            f"{done.dtype}; nothing was computed or changed"
        )
        return
    speed = human_count((done.read + done.written) / done.seconds, "B/s")
    spec, count = done.plan.spec, len(done.plan.rounds)
    print(
        f"{done.path}: {spec.name} of {spec.shape} {done.dtype} in {count} "
        f"round{'' if count == 1 else 's'} {done.plan.notation}; read {human_bytes(done.read)}, "
        f"wrote {human_bytes(done.written)} in {human_seconds(done.seconds)} ({speed})"
    )


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "run": _run,
    "plan": _plan,
    "calibrate": _calibrate,
}


def _terminate(number: int, frame: object) -> None:
    """Turn a request to end into an exception."""
    raise Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.
    """
    args = parser().parse_args(joined(sys.argv[1:] if argv is None else argv))
    try:
        with handled(signal.SIGTERM, _terminate):
            _COMMANDS[args.command](args)
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if args.traceback:
            raise
        status, text = failure(error, args)
        print(f"dask-bigfft: error: {text}", file=sys.stderr)
        return status
    return 0

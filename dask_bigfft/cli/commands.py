"""The commands, which take parsed arguments."""

import argparse
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

from dask_bigfft import calibration, runs
from dask_bigfft.arguments import Extras
from dask_bigfft.cli.places import place
from dask_bigfft.planner.explain import human_bytes, human_count, human_seconds, speed_rows, table
from dask_bigfft.storage import targets
from dask_bigfft.transforms.spec import takes_axes
from dask_bigfft.watch.progress import TextDisplay


def _requested(args: argparse.Namespace) -> runs.RunRequest:
    """Return the request of a run from parsed arguments."""
    given = vars(args)
    names = (field.name for field in fields(runs.RunRequest))
    known = {name: given[name] for name in names if name in given}
    options = {name: given[name] for name in Extras.__annotations__ if name in given}
    if args.axes is not None and not isinstance(args.axes, tuple):
        several = takes_axes(args.kind)
        known |= {"axes": (args.axes,)} if several else {"axis": args.axes, "axes": None}
    return runs.RunRequest(args.input, given.get("output", args.input), options=options, **known)


def _plan(args: argparse.Namespace) -> None:
    with place(args.scheduler, args.workers):
        print(runs.planned_input(_requested(args))[1].explain())


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
        _report(runs.execute(_requested(args), store))


def _calibrate(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    with place(args.scheduler, args.workers) as where:
        profile = calibration.calibrate(where.client, args.output)
    print(f"{profile.name}, measured in {human_seconds(time.perf_counter() - started)}")
    print(*table(speed_rows(profile)), sep="\n")


def _report(done: runs.Done) -> None:
    plan, what = done.plan, done.plan.spec.title
    if done.already:
        print(f"{done.path}: already done, {what}; nothing was computed or changed")
        return
    speed = human_count((done.read + done.written) / done.seconds, "B/s")
    rounds = f"{len(plan.rounds)} round{'' if len(plan.rounds) == 1 else 's'} {plan.notation}"
    sizes = f"read {human_bytes(done.read)}, wrote {human_bytes(done.written)}"
    seconds = human_seconds(done.seconds)
    print(f"{done.path}: {what} in {rounds}; {sizes} in {seconds} ({speed})")


COMMANDS = {"run": _run, "plan": _plan, "calibrate": _calibrate}

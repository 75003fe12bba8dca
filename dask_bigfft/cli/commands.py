"""The commands, which take parsed arguments."""

import argparse
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from dask.utils import format_bytes, format_time

from dask_bigfft import calibration, runs
from dask_bigfft.api.arguments import Extras
from dask_bigfft.cli.places import place
from dask_bigfft.planner.explain import speed_rows, speed_text, table
from dask_bigfft.runs.request import FILTER, INVERSE
from dask_bigfft.runs.texts import parse_transfer_text, parse_window_text
from dask_bigfft.storage import targets
from dask_bigfft.transforms.spec import takes_axes
from dask_bigfft.watch.progress import text_display


def _requested(args: argparse.Namespace) -> runs.RunRequest:
    """Return the request of a run from parsed arguments."""
    values = vars(args)
    options = {name: values[name] for name in Extras.__annotations__ if name in values}
    names = [field.name for field in fields(runs.RunRequest)]
    arguments = {name: values[name] for name in names if name in values}
    arguments |= _axes(args)
    arguments["transfer"] = parse_transfer_text(args.transfer)
    names_of_slices = [field.name for field in fields(runs.ShortTimeArguments)]
    slices = {name: values[name] for name in names_of_slices if name in values}
    for name in ("win", "dual_win"):
        slices[name] = parse_window_text(name, slices[name])
    return runs.request_of_variable(
        args.input,
        destination=values.get("output", args.input),  # a plan has none
        options=options,
        slices=runs.ShortTimeArguments(**slices),
        **arguments,
    )


def _axes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments `axis` and `axes` of a request."""
    if args.axes is None or isinstance(args.axes, tuple):
        return {"axes": args.axes}
    if takes_axes(args.kind) or args.kind == FILTER:
        return {"axes": (args.axes,)}
    return {"axis": args.axes, "axes": None}


def _plan(args: argparse.Namespace) -> None:
    """Print the explanation of a plan."""
    with place(args.scheduler, args.workers):
        request = _requested(args)
        if request.is_short_time:
            print(runs.planned_slices(request).explain())
            return
        _, plan = runs.planned_input(request)
        print(plan.explain(args.details))


def _name_leftovers(path: Path) -> None:
    """Print the paths that killed runs have left."""
    if not path.parent.is_dir():
        return
    for leftover in targets.leftovers(path):
        text = f"{leftover} is what a killed run has left; it may be deleted"
        print(f"note: {text}", file=sys.stderr)
    for replaced in targets.leftovers(path, targets.REPLACED):
        text = f"{replaced} was {path} until a run replaced it that was killed, or is just ending"
        print(f"note: {text}", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    """Transform a stored array and print a report."""
    _name_leftovers(args.output)
    display = None if args.quiet else text_display(sys.stderr)
    with place(args.scheduler, args.workers) as where:
        store = partial(where.store, display=display)
        _print_report(runs.execute(_requested(args), store))


def _calibrate(args: argparse.Namespace) -> None:
    """Measure speeds and print them."""
    started = time.perf_counter()
    with place(args.scheduler, args.workers) as where:
        profile = calibration.calibrate(where.client, args.output)
    seconds = time.perf_counter() - started
    print(f"{profile.name}, measured in {format_time(seconds)}")
    print(*table(speed_rows(profile)), sep="\n")


def _print_report(report: runs.Done) -> None:
    """Print the line that reports a run."""
    plan = report.plan
    title = report.name if report.columns else plan.spec.title
    if report.already:
        print(f"{report.path}: already done, {title}; nothing was computed or changed")
        return
    if report.columns:
        added = "samples" if report.name == INVERSE else "in all"
        rounds = f"{plan.notation}, {report.columns[1]} {added}"
    else:
        count = len(plan.rounds)
        rounds = f"{count} round{'' if count == 1 else 's'} {plan.notation}"
    sizes = f"read {format_bytes(report.read)}, wrote {format_bytes(report.written)}"
    seconds = format_time(report.seconds)
    speed = speed_text((report.read + report.written) / report.seconds)
    print(f"{report.path}: {title} in {rounds}; {sizes} in {seconds} ({speed})")


COMMANDS = {
    "run": _run,
    "plan": _plan,
    "calibrate": _calibrate,
}

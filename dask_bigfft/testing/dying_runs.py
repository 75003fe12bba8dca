"""Runs in real processes that kill themselves.

Each function is the target of its own process, which ends by `SIGKILL`. A run dies at one of its
events, which are the same every time on one thread.
"""

import itertools
import os
import pkgutil
import signal
import sys
from collections.abc import Mapping
from typing import Any

import dask

from dask_bigfft import events
from dask_bigfft.runs import run
from dask_bigfft.storage.targets import REPLACED


def run_and_die(at: int | str, threads: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process at a point of it.

    The point is the number of an event, or the call of a function: ``"os.rename"``,
    ``"package.module:Class.method"``.
    """
    if isinstance(at, int):
        _die_at_event(at)
    else:
        owner, _, name = at.rpartition(".")
        setattr(pkgutil.resolve_name(owner), name, _die)
    _run(threads, *args, **kwargs)


def _die_at_event(at: int) -> None:
    """Kill this process at an event, by its number from 1."""
    count = itertools.count(1)

    def sink(name: str, numbers: Mapping[str, Any]) -> None:
        if next(count) >= at:
            _die()

    events.add_sink(sink)


def _die(*_: Any, **__: Any) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


#: Audit events of the calls that replace an array.
_CHANGES = frozenset({"os.rename", "shutil.rmtree", "os.remove", "os.rmdir"})


def run_and_die_replacing(after: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process at change number `after` of the folders at its end.

    The first change moves the old array away from the destination.
    """
    count = itertools.count(1)
    has_begun = False

    def hook(name: str, values: tuple[Any, ...]) -> None:
        nonlocal has_begun
        if name not in _CHANGES:
            return
        if name == "os.rename" and REPLACED in str(values[1]):
            has_begun = True
        if has_begun and next(count) == after:
            _die()

    sys.addaudithook(hook)
    _run(1, *args, **kwargs)


def _run(threads: int, *args: Any, **kwargs: Any) -> None:
    """Do a run in threads of this process, with settings for dask if they are given."""
    settings = {
        "scheduler": "sync" if threads == 1 else "threads",
        "num_workers": threads,
        "bigfft.planner.whole-axis-floor": 1,
        **kwargs.pop("settings", {}),
    }
    with dask.config.set(settings):
        run(*args, **kwargs)

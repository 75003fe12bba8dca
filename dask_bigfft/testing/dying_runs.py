"""Runs that kill their own process at a given point.

Each function is the target of a separate process, which ends by `SIGKILL`. A run dies at one of its
events, so that runs on one thread are reproducible.
"""

import itertools
import os
import pkgutil
import signal
import sys
from typing import Any

import dask

from dask_bigfft import events
from dask_bigfft.runs import run
from dask_bigfft.storage.targets import REPLACED


def run_and_die(at: int | str, threads: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process at a given point.

    The point is the number of an event, or a function of a module or class that is called:
    ``"os.rename"``, ``"package.module:Class.method"``.
    """
    if isinstance(at, int):
        _die_at(at)
    else:
        owner, _, name = at.rpartition(".")
        setattr(pkgutil.resolve_name(owner), name, _die)
    _run(threads, *args, **kwargs)


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(after: int) -> None:
    count = itertools.count(1)
    events.add_sink(lambda name, numbers: _die() if next(count) >= after else None)


#: Audit events of system calls that replace one array by another.
_CHANGES = frozenset({"os.rename", "shutil.rmtree", "os.remove", "os.rmdir"})


def run_and_die_replacing(after: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process while it replaces the folder at its destination.

    `after` is the number of the file operation. The first one moves the previous folder away.
    """
    count, begun = itertools.count(1), False

    def hook(name: str, values: tuple[Any, ...]) -> None:
        nonlocal begun
        if name in _CHANGES:
            begun = begun or (name == "os.rename" and REPLACED in str(values[1]))
            if begun and next(count) == after:
                _die()

    sys.addaudithook(hook)
    _run(1, *args, **kwargs)


def _run(threads: int, *args: Any, **kwargs: Any) -> None:
    options = {"scheduler": "sync" if threads == 1 else "threads", "num_workers": threads}
    options |= {"bigfft.planner.whole-axis-floor": 1, **kwargs.pop("settings", {})}
    with dask.config.set(options):
        run(*args, **kwargs)

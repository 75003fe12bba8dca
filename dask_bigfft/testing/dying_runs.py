"""Faults for real processes: a run that kills itself.

Each function is the target of a process of its own, so that `SIGKILL` is what it says. The points
at which a run dies are its events, so they are the same every time on one thread.
"""

import itertools
import os
import signal
import sys
from typing import Any

import dask

from dask_bigfft import events
from dask_bigfft.runs import run
from dask_bigfft.storage.targets import REPLACED


def run_and_die(after: int, threads: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process at its event number `after` if it comes that far."""
    count = itertools.count(1)

    def sink(name: str, numbers: Any) -> None:
        if next(count) >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    events.add_sink(sink)
    _run(threads, *args, **kwargs)


def run_and_die_in(place: str, threads: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process when a function of a module is called: ``"os.rename"``."""
    import importlib

    path, _, name = place.rpartition(".")
    module, _, owner = path.partition(":")
    holder: Any = importlib.import_module(module)
    if owner:
        holder = getattr(holder, owner)

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(holder, name, die)
    _run(threads, *args, **kwargs)


#: What the system is asked for where arrays take each other's place.
_CHANGES = frozenset({"os.rename", "shutil.rmtree", "os.remove", "os.rmdir"})


def run_and_die_replacing(after: int, *args: Any, **kwargs: Any) -> None:
    """Do a run, and kill this process at change number `after` of folders at its end.

    The first one moves away what was at the destination before.
    """
    count = itertools.count(1)
    begun = False

    def hook(name: str, values: tuple[Any, ...]) -> None:
        nonlocal begun
        if name in _CHANGES:
            begun = begun or (name == "os.rename" and REPLACED in str(values[1]))
            if begun and next(count) == after:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    _run(1, *args, **kwargs)


def _run(threads: int, *args: Any, **kwargs: Any) -> None:
    options = {"scheduler": "sync" if threads == 1 else "threads", "num_workers": threads}
    options |= {"bigfft.planner.whole-axis-floor": 1, **kwargs.pop("settings", {})}
    with dask.config.set(options):
        run(*args, **kwargs)

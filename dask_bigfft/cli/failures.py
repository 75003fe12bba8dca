"""What is said where a command fails, in one line, and its exit status.

Imports `errors` and `runs`.
"""

import argparse
import errno
import re

from dask_bigfft import runs
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ScratchError

__all__ = ["Terminated", "failure", "kept"]


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


#: Arguments of `run` and `calibrate` that have another name here.
_TYPED = {"source": "IN", "destination": "OUT", "path": "--output"}


def failure(error: BaseException, left: str) -> tuple[int, str]:
    """Return the exit status and the line that say what happened, and what is `left` of it."""
    if isinstance(error, Terminated):
        return 143, f"ended by a signal; {left}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {left}"
    if isinstance(error, ArgumentError | ArgumentTypeError):
        return 2, as_typed(str(error))
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, ScratchError):
        return 1, f"{text}; {left}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 1, f"the disk is full; {left} ({text})"
    if isinstance(error, MemoryError):
        return 1, f"out of memory; try --memory-limit ({error})"
    return 1, text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def as_typed(text: str) -> str:
    """Return what is said of an argument, by its name on the command line.

    >>> as_typed("`destination`='b' is not allowed: need another path, or overwrite=True")
    "`OUT`='b' is not allowed: need another path, or --overwrite"
    """
    named = re.sub(f"^`({'|'.join(_TYPED)})`=", lambda found: f"`{_TYPED[found[1]]}`=", text)
    return re.sub(r"\b(overwrite|resume)=True", r"--\1", named)


def kept(args: argparse.Namespace) -> str:
    """Return what is left of a run that has failed."""
    scratch = getattr(args, "scratch", None)
    if scratch is None or not runs.has_begun(scratch):
        return "nothing was written"
    return f"{scratch} keeps what is done: --resume goes on from there"

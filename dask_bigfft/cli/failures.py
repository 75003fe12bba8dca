"""What is said where a command fails, in one line, and its exit status.

Imports `errors` and `runs`.
"""

import argparse
import errno
import re
from collections.abc import Container

from dask_bigfft import runs
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ScratchError

__all__ = ["Terminated", "as_typed", "failure"]


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


#: Arguments of `run` and `calibrate` that have another name here; others are options.
_TYPED = {"source": "IN", "a": "IN", "destination": "OUT", "path": "--output", "axis": "--axes"}


def failure(error: BaseException, args: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status and the line that say what happened, and what is left of it."""
    left = _kept(args)
    if isinstance(error, Terminated):
        return 143, f"ended by a signal; {left}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {left}"
    if isinstance(error, ArgumentError | ArgumentTypeError):
        return 2, as_typed(str(error), vars(args))
    text = as_typed(" ".join(str(error).split()), vars(args)) or "no message"
    if isinstance(error, ScratchError):
        return 1, f"{text}; {left}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 1, f"the disk is full; {left} ({text})"
    if isinstance(error, MemoryError):
        return 1, f"out of memory; try --memory-limit ({error})"
    return 1, text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def as_typed(text: str, options: Container[str] = ()) -> str:
    """Return what is said of an argument, by its name on the command line.

    >>> as_typed("`destination`='b' is not allowed: need another path, or overwrite=True")
    "`OUT`='b' is not allowed: need another path, or --overwrite"
    >>> as_typed("`memory_limit`='b' is not allowed: need a size", ["memory_limit"])
    "`--memory-limit`='b' is not allowed: need a size"
    >>> as_typed("`resume`=True is not allowed: need a scratch folder", ["resume"])
    '`--resume` is not allowed: need a scratch folder'
    """

    def name(found: re.Match[str]) -> str:
        word, rest = found.groups()
        typed = f"--{word.replace('_', '-')}" if word in options else word
        return f"`{_TYPED.get(word, typed)}{rest}`="

    named = re.sub(r"`(\w+)((?:\.\w+)?)`=", name, text, count=1)
    named = re.sub(r"(`--[a-z]+`)=True", r"\1", named)
    return re.sub(r"\b(overwrite|resume|checksum)=True", r"--\1", named)


def _kept(args: argparse.Namespace) -> str:
    """Return what is left of a run that has failed."""
    scratch = getattr(args, "scratch", None)
    if scratch is None or not runs.has_begun(scratch):
        return "nothing was written"
    return f"{scratch} keeps what is done: --resume goes on from there"

"""The command line: ``dask-bigfft run IN OUT``, ``plan IN`` and ``calibrate``.

Exit status: 0 done, 1 failed while running, 2 an argument that is not allowed, 130 and 143
interrupted. Every outcome is reported in one line. The library is imported when the arguments are
parsed and checked: help and errors of these come at once.
"""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Container, Sequence

from dask_bigfft.cli.arguments import check, parsed
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ScratchError


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
    args = parsed(sys.argv[1:] if argv is None else argv)
    try:
        check(args)
        from dask_bigfft.cli import commands, places

        with places.handled(signal.SIGTERM, _terminate):
            commands.COMMANDS[args.command](args)
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
_TYPED = {
    "source": "IN",
    "a": "IN",
    "destination": "OUT",
    "path": "--output",
    "axis": "--axes",
}


def _failure(error: BaseException, args: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status and the error line, which names kept scratch files."""
    if isinstance(error, ArgumentError | ArgumentTypeError):
        return 2, _as_typed(str(error), vars(args))
    leftovers = _leftovers(args)
    if isinstance(error, Terminated):
        return 143, f"ended by a signal; {leftovers}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {leftovers}"
    if isinstance(error, MemoryError):
        return 1, f"out of memory; try --memory-limit ({error})"
    message = " ".join(str(error).split())
    text = _as_typed(message, vars(args)) or "no message"
    if isinstance(error, ScratchError):
        return 1, f"{text}; {leftovers}"
    if not isinstance(error, OSError):
        return 1, f"{type(error).__name__}: {text}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 1, f"the disk is full; {leftovers} ({text})"
    return 1, text


def _leftovers(args: argparse.Namespace) -> str:
    """Return the words that say what a failed command has left on disk."""
    from dask_bigfft.runs import has_begun
    from dask_bigfft.storage.targets import read_attributes

    if getattr(args, "append", False) and read_attributes(args.output).get("complete") is False:
        return f"{args.output} is incomplete: --append completes it"
    scratch = getattr(args, "scratch", None)
    if scratch is not None and has_begun(scratch):
        return f"{scratch} keeps what is done: --resume goes on from there"
    return "nothing was written"


def _as_typed(text: str, options: Container[str] = ()) -> str:
    """Return an error text with the argument's name on the command line.

    >>> _as_typed("`destination`='b' is not allowed: need another path, or overwrite=True")
    "`OUT`='b' is not allowed: need another path, or --overwrite"
    >>> _as_typed("`memory_limit`='b' is not allowed: need a size", ["memory_limit"])
    "`--memory-limit`='b' is not allowed: need a size"
    >>> _as_typed("`resume`=True is not allowed: need a scratch folder", ["resume"])
    '`--resume` is not allowed: need a scratch folder'
    """

    def typed_name(match: re.Match[str]) -> str:
        argument, attribute = match.groups()
        option = argument
        if argument in options:
            option = f"--{argument.replace('_', '-')}"
        return f"`{_TYPED.get(argument, option)}{attribute}`="

    text = re.sub(r"`(\w+)((?:\.\w+)?)`=", typed_name, text, count=1)
    text = re.sub(r"(`--[a-z]+`)=True", r"\1", text)
    return re.sub(r"\b(append|overwrite|resume|checksum)=True", r"--\1", text)

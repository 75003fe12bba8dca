"""The words of the command line, and the run that they ask for.

Imports `runs`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dask_bigfft import runs
from dask_bigfft.errors import refuse

__all__ = ["asked", "joined", "parser"]


def _value(read: Callable[[str], Any], need: str) -> Callable[[str], Any]:
    """Return what reads a value, and says what it has to be where it can not."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            refused = f"{text!r} is not allowed: need {need}"
            raise argparse.ArgumentTypeError(refused) from None

    return value


def _at_least_one(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


_integer = _value(int, "an integer")
_integers = _value(lambda text: tuple(map(int, text.split(","))), "integers such as 0,1")
_missing = _value(lambda text: text if text == "refuse" else float(text), "refuse, or a number")
_count = _value(_at_least_one, "a number of at least 1")


def _chunks(text: str) -> Any:
    """Return ``auto``, ``preserve``, a size, or lengths: ``256,256,-1``."""
    parts = [part.strip() for part in text.split(",")]
    found = [int(p) if re.fullmatch(r"-?\d+", p) else p for p in parts]
    return found[0] if len(found) == 1 else tuple(found)


def _order(text: str) -> str | tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    return parts[0] if len(parts) == 1 else parts


def _add_options(parser: argparse.ArgumentParser) -> None:
    def add(name: str, text: str, metavar: str | None = "NAME", **keywords: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=text, **keywords)

    add("input", "Zarr array or group, HDF5 or .npy file", "IN", type=Path)
    add("--component", "array within a Zarr group or HDF5 file")
    add("--kind", "fft, ifft, rfftn, ... (default: fftn)", default="fftn")
    add("--axes", "transformed axes (default: as numpy.fft)", "A,B", type=_integers)
    add("--n", "length of the transform, for kinds of one axis", "N", type=_integer)
    text = "lengths of the transform by axis; without --axes of the last axes, and only of these"
    add("--s", text, "N,M", type=_integers)
    add("--norm", "backward (default), ortho or forward")
    text = "order of the spectrum: natural (default) or transposed, or one per axis"
    add("--order", text, type=_order)
    text = "chunks of the result: auto (default), preserve, lengths, or a size such as 64MiB"
    add("--chunks", text, "N,M", type=_chunks)
    add("--memory-limit", "memory that one process may use, such as '4 GiB'", "SIZE")
    add("--variant", "data movement: auto, dif, dit, stockham or pease")
    add("--kernel", "FFT library: auto (default), scipy, mkl_fft, ducc0 or pyfftw")
    add("--verify", "checks on the way: none (default), energy or checksum")
    add("--device", "where it is computed: auto (default), cpu, gpu or hybrid (both at once)")
    add("--device-memory-limit", "memory of each GPU that may be used", "SIZE")
    text = "how the plan is chosen: estimate (default), or measure (the best few are tried)"
    add("--planner", text)
    text = "size of the blocks that are read, in whole Zarr chunks (default: 4 to 128 MiB, or "
    add("--block-size", f"{text}what the plan wants)", "SIZE")


def _add_place(parser: argparse.ArgumentParser, schedulers: str) -> None:
    """Add the options of every command."""
    add = parser.add_argument
    add("--scheduler", default="threads", metavar="NAME", help=schedulers)
    add("--workers", type=_count, metavar="N", help="number of threads, or of processes")
    add("--traceback", action="store_true", help="show where an error comes from")


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    found = argparse.ArgumentParser(
        prog="dask-bigfft", description="FFTs of arrays on disk that need not fit into memory."
    )
    version = sys.modules["dask_bigfft"].__version__
    found.add_argument("--version", action="version", version=f"dask-bigfft {version}")
    commands = found.add_subparsers(required=True, metavar="COMMAND", dest="command")
    text = "Transform a Zarr array, HDF5 or .npy file into a Zarr array."
    run = commands.add_parser("run", help="transform an array into a Zarr array", description=text)
    text = "Say how an array would be transformed, why, and what it would need."
    plan = commands.add_parser(
        "plan", help="say how an array would be transformed", description=text
    )
    for command in (run, plan):
        _add_options(command)
        text = "threads (default), sync, processes (a cluster on this machine) or the address of "
        _add_place(command, f"{text}a cluster, which has to see the files")
    _add_options_of_run(run)
    calibrate = commands.add_parser(
        "calibrate",
        help="measure this machine, so that plans know its speeds",
        description="Measure this machine (or a cluster's workers and network) for less than a "
        "minute, and keep what was found: plans are made for it from then on.",
    )
    text = "where the profile goes, in a folder that exists (default: the user's cache directory)"
    calibrate.add_argument("--output", metavar="FILE", type=Path, help=text)
    _add_place(calibrate, "threads (default), processes, or the address of a cluster")
    return found


def _add_options_of_run(run: argparse.ArgumentParser) -> None:
    def flag(name: str, text: str) -> None:
        run.add_argument(name, action="store_true", help=text)

    add = run.add_argument
    add("output", metavar="OUT", type=Path, help="Zarr array to be made")
    text = "replace OUT, once the new one is complete; where OUT is IN itself, the source is "
    flag("--overwrite", f"{text}then gone")
    text = "folder for this run's scratch files; if the run is killed, --resume goes on from them"
    add("--scratch", metavar="DIR", type=Path, help=text)
    text = "go on with the run that --scratch is of, or begin one; nothing is done where OUT is "
    flag("--resume", f"{text}its result")
    flag("--checksum", "tell a changed source by its contents, too (reads it once more)")
    text = "chunks of the result inside of shards (default: no shards)"
    add("--inner-chunks", metavar="N,M", type=_integers, help=text)
    text = "Zarr chunks that have no file: refuse (default), or fill, which reads them as the "
    add("--missing-chunks", default="refuse", metavar="NAME", help=f"{text}fill value")
    text = "missing values of a variable (_FillValue, missing_value): refuse (default), or the "
    help_ = f"{text}number that replaces them"
    add("--missing", default="refuse", metavar="NUMBER", type=_missing, help=help_)
    flag("--quiet", "show no progress")


def joined(argv: Sequence[str]) -> list[str]:
    """Return arguments with values that begin with a minus, such as ``-2,-1``, tied to options."""
    found: list[str] = []
    for word in argv:
        if found and re.fullmatch(r"--\w+", found[-1]) and re.fullmatch(r"-\d+(,-?\d+)*", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


#: Options that are keywords of transforms.
_OPTIONS = ["order", "chunks", "memory_limit", "variant", "kernel", "verify"]
_OPTIONS += ["device", "device_memory_limit", "planner"]


def asked(args: argparse.Namespace) -> runs.Asked:
    """Return what a command line asks a run for."""
    options = {name: getattr(args, name) for name in _OPTIONS}
    return runs.Asked(
        args.input,
        getattr(args, "output", args.input),
        args.kind,
        args.component,
        _axes(args),
        args.norm,
        options,
        args.block_size,
        getattr(args, "inner_chunks", None),
        getattr(args, "missing_chunks", "refuse"),
        getattr(args, "missing", "refuse"),
    )


def _axes(args: argparse.Namespace) -> dict[str, Any]:
    """Return axes and lengths as the kind of transform takes them."""
    axes, kind = args.axes, args.kind
    if kind.endswith(("2", "n")):
        if args.n is not None:
            refuse("n", args.n, f"--s for {kind}")
        return {"s": args.s, "axes": runs.named_axes(kind, args.s, axes)}
    if args.s is not None:
        refuse("s", args.s, f"--n for {kind}")
    if axes is not None and len(axes) != 1:
        refuse("axes", axes, f"one axis for {kind}")
    return {"n": args.n, "axis": None if axes is None else axes[0]}

"""The words of the command line, and the run that they ask for.

Imports `runs`.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_bigfft import runs
from dask_bigfft.errors import refuse

__all__ = ["asked", "joined", "parser"]


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: need integers such as 0,1"
        ) from None


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: need an integer") from None


def _missing(text: str) -> str | float:
    try:
        return text if text == "refuse" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: need refuse, or a number"
        ) from None


def _chunks(text: str) -> Any:
    """Return ``auto``, ``preserve``, a size, or lengths: ``256,256,-1``."""
    parts = [part.strip() for part in text.split(",")]
    found = [int(p) if re.fullmatch(r"-?\d+", p) else p for p in parts]
    return found[0] if len(found) == 1 else tuple(found)


def _order(text: str) -> str | tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    return parts[0] if len(parts) == 1 else parts


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text} is not allowed: need a number of at least 1")
    return int(text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="IN", type=Path, help="Zarr array or group, HDF5 or .npy file")
    add("--component", metavar="NAME", help="array within a Zarr group or HDF5 file")
    add("--kind", default="fftn", metavar="NAME", help="fft, ifft, rfftn, ... (default: fftn)")
    add("--axes", type=_integers, metavar="A,B", help="transformed axes (default: as numpy.fft)")
    add("--n", type=_integer, metavar="N", help="length of the transform, for kinds of one axis")
    add(
        "--s",
        type=_integers,
        metavar="N,M",
        help="lengths of the transform by axis; without --axes of the last axes, and only of these",
    )
    add("--norm", metavar="NAME", help="backward (default), ortho or forward")
    add(
        "--order",
        type=_order,
        metavar="NAME",
        help="order of the spectrum: natural (default) or transposed, or one per axis",
    )
    add(
        "--chunks",
        type=_chunks,
        metavar="N,M",
        help="chunks of the result: auto (default), preserve, lengths, or a size such as 64MiB",
    )
    add("--memory-limit", metavar="SIZE", help="memory that one process may use, such as '4 GiB'")
    add("--variant", metavar="NAME", help="data movement: auto, dif, dit, stockham or pease")
    add(
        "--kernel",
        metavar="NAME",
        help="FFT library: auto (default), scipy, mkl_fft, ducc0 or pyfftw",
    )
    add("--verify", metavar="NAME", help="checks on the way: none (default), energy or checksum")
    add(
        "--device",
        metavar="NAME",
        help="where it is computed: auto (default), cpu, gpu or hybrid (both at once)",
    )
    add("--device-memory-limit", metavar="SIZE", help="memory of each GPU that may be used")
    add(
        "--planner",
        metavar="NAME",
        help="how the plan is chosen: estimate (default), or measure (the best few are tried)",
    )
    add(
        "--block-size",
        metavar="SIZE",
        help="size of the blocks that are read, in whole Zarr chunks (default: 4 to 128 MiB, or "
        "what the plan wants)",
    )
    add(
        "--scheduler",
        default="threads",
        metavar="NAME",
        help="threads (default), sync, processes (a cluster on this machine) or the address of a "
        "cluster, which has to see the files",
    )
    add("--workers", type=_count, metavar="N", help="number of threads, or of processes")
    add("--traceback", action="store_true", help="show where an error comes from")


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    found = argparse.ArgumentParser(
        prog="dask-bigfft", description="FFTs of arrays on disk that need not fit into memory."
    )
    version = sys.modules["dask_bigfft"].__version__
    found.add_argument("--version", action="version", version=f"dask-bigfft {version}")
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="transform an array into a Zarr array",
        description="Transform a Zarr array, HDF5 or .npy file into a Zarr array.",
    )
    _add_options(run)
    _add_options_of_run(run)
    run.set_defaults(command="run")
    plan = commands.add_parser(
        "plan",
        help="say how an array would be transformed",
        description="Say how an array would be transformed, why, and what it would need.",
    )
    _add_options(plan)
    plan.set_defaults(command="plan")
    speeds = commands.add_parser(
        "calibrate",
        help="measure this machine, so that plans know its speeds",
        description="Measure this machine (or a cluster's workers and network) for less than a "
        "minute, and keep what was found: plans are made for it from then on.",
    )
    _add_options_of_calibrate(speeds)
    speeds.set_defaults(command="calibrate")
    return found


def _add_options_of_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("output", metavar="OUT", type=Path, help="Zarr array to be made")
    run.add_argument(
        "--overwrite",
        action="store_true",
        help="replace OUT, once the new one is complete; where OUT is IN itself, the "
        "source is then gone",
    )
    run.add_argument(
        "--scratch",
        metavar="DIR",
        type=Path,
        help="folder for this run's scratch files; if the run is killed, --resume "
        "goes on from them",
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that --scratch is of, or begin one; nothing is done "
        "where OUT is its result",
    )
    run.add_argument(
        "--checksum",
        action="store_true",
        help="tell a changed source by its contents, too (reads it once more)",
    )
    run.add_argument(
        "--inner-chunks",
        metavar="N,M",
        type=_integers,
        help="chunks of the result inside of shards (default: no shards)",
    )
    run.add_argument(
        "--missing-chunks",
        default="refuse",
        metavar="NAME",
        help="Zarr chunks that have no file: refuse (default), or fill, which reads "
        "them as the fill value",
    )
    run.add_argument(
        "--missing",
        default="refuse",
        metavar="NUMBER",
        type=_missing,
        help="missing values of a variable (_FillValue, missing_value): refuse "
        "(default), or the number that replaces them",
    )
    run.add_argument("--quiet", action="store_true", help="show no progress")


def _add_options_of_calibrate(speeds: argparse.ArgumentParser) -> None:
    speeds.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where the profile goes, in a folder that exists (default: the user's "
        "cache directory)",
    )
    speeds.add_argument(
        "--scheduler",
        default="threads",
        metavar="NAME",
        help="threads (default), processes, or the address of a cluster",
    )
    speeds.add_argument(
        "--workers", type=_count, metavar="N", help="number of threads, or of processes"
    )
    speeds.add_argument("--traceback", action="store_true", help="show where an error comes from")


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
_OPTIONS = (
    "order",
    "chunks",
    "memory_limit",
    "variant",
    "kernel",
    "verify",
    "device",
    "device_memory_limit",
    "planner",
)


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

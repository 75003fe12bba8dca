"""Parser of the command line."""

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dask_bigfft import config
from dask_bigfft.errors import parse_choice, raise_invalid

# Readers of values. argparse reports their names if they raise a ValueError.


def integers(text: str) -> tuple[int, ...]:
    """Return the integers of a text such as ``0,1``."""
    return tuple(map(int, text.split(",")))


def names(text: str) -> tuple[str, ...]:
    """Return the names of a text such as ``y,x``."""
    return tuple(name.strip() for name in text.split(","))


def number(text: str) -> str | float:
    """Return a number, or the word ``refuse``."""
    if text == "refuse":
        return text
    return float(text)


def count(text: str) -> int:
    """Return a number of at least 1."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def compressors(text: str) -> Any:
    """Return the compressors of a text such as ``zstd:3``, as `zarr.create_array` takes them.

    >>> compressors("auto"), compressors("none"), compressors("gzip:5")
    ('auto', None, ({'name': 'gzip', 'configuration': {'level': 5}},))
    """
    if text in ("auto", "none"):
        return None if text == "none" else text
    codecs = []
    for part in text.split(","):
        name, _, level = part.partition(":")
        key = "clevel" if name == "blosc" else "level"
        codecs.append({"name": name, "configuration": {key: int(level)} if level else {}})
    return tuple(codecs)


def words(text: str) -> Any:
    """Return a word or an integer, or a tuple of several: ``256,256,-1``."""
    values: list[str | int] = []
    for part in text.split(","):
        word = part.strip()
        is_integer = re.fullmatch(r"-?\d+", word)
        values.append(int(word) if is_integer else word)
    if len(values) == 1:
        return values[0]
    return tuple(values)


def _limits(text: str, number_of: Callable[[str], float]) -> Any:
    """Return a pair of limits such as ``-0.1:0.1``, or those of several axes by their names."""
    limits: dict[Any, Any] = {}
    for part in text.split(","):
        name, _, pair = part.rpartition("=")
        low, high = map(number_of, pair.split(":"))
        limits[words(name)] = (low, high)
    return limits[""] if tuple(limits) == ("",) else limits


def band(text: str) -> Any:
    """Return the limits of frequencies of a text.

    >>> band("-0.1:0.1"), band("y=0:0.5,2=0:0.25")
    ((-0.1, 0.1), {'y': (0.0, 0.5), 2: (0.0, 0.25)})
    """
    return _limits(text, float)


def band_index(text: str) -> Any:
    """Return the limits of places of a text.

    >>> band_index("0=4:8")
    {0: (4, 8)}
    """
    return _limits(text, int)


def transfer(text: str) -> Any:
    """Return the function of a text such as ``package.module:name``.

    A filter by name, such as ``lowpass:0.1``, remains a text.

    >>> transfer("math:cos")(0.0), transfer("lowpass:0.1")
    (1.0, 'lowpass:0.1')
    """
    module, _, name = text.partition(":")
    if not name[:1].isidentifier():
        return text
    sys.path.insert(0, "")  # as `python -m` does
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no MODULE:FUNCTION ({error})") from error
    finally:
        sys.path.remove("")


def distances(text: str) -> Any:
    """Return a number, or a tuple of several: ``0.5,0.25``."""
    values = tuple(map(float, text.split(",")))
    return values[0] if len(values) == 1 else values


def _names(key: str) -> str:
    """Return the allowed names of a setting, and its default."""
    setting = config.SETTINGS[f"bigfft.{key}"]
    return f"{', '.join(setting.enum)} (default: {setting.default})"


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the input and the options of `run` and `plan`."""

    def add(name: str, text: str, metavar: str | None = "NAME", **keywords: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=text, **keywords)

    add("input", "Zarr array or group, HDF5 or .npy file", "IN", type=Path)
    text = "array within a Zarr group or HDF5 file (default: the only one that is no coordinate)"
    add("--component", text)
    text = "fft, ifft, rfftn, ..., fourier_filter with --transfer, or stft, spectrogram or istft "
    text += "with --win and --hop (default: fftn)"
    add("--kind", text, default="fftn")
    text = "transfer function of the frequencies along each axis, or lowpass, highpass, "
    text += "bandpass or bandstop with limits: lowpass:0.1 or bandpass:0.1:0.2:sharp"
    add("--transfer", text, "MODULE:FUNCTION", type=transfer)
    add("--name", "identity of the transfer function for --resume (default: a hash of its code)")
    text = "distance of two samples for frequencies of a filter, or one per axis"
    add("--spacing", text, "D,D", default=1.0, type=distances)
    add("--at-zero", "value of the transfer function at frequency 0", "NUMBER", type=complex)
    _add_options_of_slices(parser)
    text = "names of the dimensions of IN if it has none, so that spectra of slices get coordinates"
    add("--dims", text, "A,B", type=names)
    add(
        "--axes",
        "transformed axes, as numbers or names of dimensions",
        "A,B",
        type=words,
    )
    add(
        "--n",
        "length of the transform, for kinds of one axis",
        "N",
        type=int,
    )
    text = "lengths of the transform along --axes, or along the last axes, the only ones then"
    add("--s", text, "N,M", type=integers)
    add("--norm", "backward (default), ortho or forward")
    add("--order", "spectrum's order: natural (default), transposed, or one per axis", type=words)
    text = "lowest and highest frequency to keep, in cycles per sample, of all axes or of axis A"
    add("--band", text, "A=LOW:HIGH", type=band)
    text = "the same band by indices in ascending order of frequencies"
    add("--band-index", text, "A=START:STOP", type=band_index)
    add(
        "--chunks",
        "chunks of the result: auto, preserve, lengths or 64MiB",
        "N,M",
        type=words,
    )
    add("--memory-limit", "memory that one process may use, such as '4 GiB'", "SIZE")
    add("--variant", f"data movement: {_names('variant')}")
    add("--kernel", f"FFT library: {_names('kernel')}")
    add("--verify", f"checks during the transform: {_names('verify')}")
    add("--device", f"device that computes: {_names('device')}")
    add("--device-memory-limit", "memory of each GPU that may be used", "SIZE")
    add("--planner", f"choice of the plan: {_names('planner.mode')}")
    text = "size of the blocks that are read (default: 4 to 128 MiB, or the plan's)"
    add("--block-size", text, "SIZE")
    text = "compressors of the result: auto (default), which is zarr's, none, or names and levels, "
    text += "such as zstd:3 or blosc:5,crc32c"
    add("--compressors", text, "NAME:N", default="auto", type=compressors)


def _add_options_of_slices(parser: argparse.ArgumentParser) -> None:
    """Add the options of short-time transforms, see `signal.stft`."""
    add = parser.add_argument
    text = "window of stft, spectrogram and istft, such as hann:1024, or a .npy file of its values"
    add("--win", metavar="NAME:N", help=text)
    add("--hop", metavar="N", type=int, help="samples from a slice to the next one")
    text = "sampling rate (default: that of the coordinate, or 1)"
    add("--fs", metavar="RATE", type=float, help=text)
    text = "frequencies: onesided (default), twosided, centered or onesided2X"
    add("--fft-mode", metavar="NAME", default="onesided", help=text)
    add("--mfft", metavar="N", type=int, help="length of the FFTs (default: that of the window)")
    add("--scale-to", metavar="NAME", help="magnitude or psd (default: neither)")
    text = "samples around the record: zeros (default), edge, even or odd"
    add("--padding", metavar="NAME", default="zeros", help=text)
    text = "what is subtracted from the slices of a spectrogram: constant or linear"
    add("--detr", metavar="NAME", help=text)
    text = "window of istft by which slices are multiplied (default: the canonical dual window)"
    add("--dual-win", metavar="NAME:N", help=text)
    text = "first sample of the result of istft (default: 0)"
    add("--k0", metavar="N", type=int, default=0, help=text)
    text = (
        "end of the samples of istft (default: that of the original record if it is known, or of "
    )
    text += "the last slice)"
    add("--k1", metavar="N", type=int, help=text)
    text = "axis of the frequencies of istft, a number or a name (default: the second-last one)"
    add("--f-axis", metavar="A", type=words, default=-2, help=text)
    text = "axis of the slices of istft, a number or a name (default: the last one)"
    add("--t-axis", metavar="A", type=words, default=-1, help=text)


def _add_place(parser: argparse.ArgumentParser, schedulers: str) -> None:
    """Add the options of every command; `schedulers` is the help of one."""
    add = parser.add_argument
    add("--scheduler", default="threads", metavar="NAME", help=schedulers)
    add(
        "--workers",
        type=count,
        metavar="N",
        help="number of threads, or of processes on this machine",
    )
    add("--traceback", action="store_true", help="show the traceback of an error")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    main_parser = argparse.ArgumentParser(
        prog="dask-bigfft", description="FFTs of arrays on disk that need not fit into memory."
    )
    version = sys.modules["dask_bigfft"].__version__
    main_parser.add_argument("--version", action="version", version=f"dask-bigfft {version}")
    commands = main_parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    text = "transform a Zarr array, HDF5 or .npy file into a Zarr array"
    run = commands.add_parser("run", help=text, description=text)
    text = "show how an array would be transformed, why, and the memory and time that it would need"
    plan = commands.add_parser("plan", help=text, description=text)
    schedulers = "threads (default), sync, processes (a cluster on this machine) or the address of "
    schedulers += "a cluster, which has to see the files"
    for command in (run, plan):
        _add_options(command)
        _add_place(command, schedulers)
    _add_options_of_run(run)
    text = "also the decomposition, the time of each step, and the plans that were not taken"
    plan.add_argument("--details", action="store_true", help=text)
    text = "measure this machine, or a cluster's workers and network, in less than a minute; later "
    text += "plans use these speeds"
    calibrate = commands.add_parser("calibrate", help=text, description=text)
    text = "file for the profile, in a folder that exists (default: the user's cache directory)"
    calibrate.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help=text,
    )
    _add_place(calibrate, "threads (default), processes, or the address of a cluster")
    return main_parser


def _add_options_of_run(run: argparse.ArgumentParser) -> None:
    """Add the output and the options of `run` alone."""

    def flag(name: str, text: str) -> None:
        run.add_argument(name, action="store_true", help=text)

    add = run.add_argument
    add("output", metavar="OUT", type=Path, help="Zarr array to be made")
    flag(
        "--append", "add to OUT, an stft, spectrogram or istft, what is new in IN, which has grown"
    )
    flag("--overwrite", "replace OUT, which may be IN, once the new array is complete")
    text = "folder for this run's scratch files, from which --resume continues a killed run"
    add("--scratch", metavar="DIR", type=Path, help=text)
    flag("--resume", "continue the run in --scratch, or begin one, unless OUT is its result")
    flag("--checksum", "detect a changed source by its contents, too (reads it once more)")
    text = "chunks of the result inside of shards (default: no shards)"
    add("--inner-chunks", metavar="N,M", type=integers, help=text)
    text = "chunks without a file: refuse (default), or fill, which reads the fill value"
    add("--missing-chunks", default="refuse", metavar="NAME", help=text)
    text = "missing values (_FillValue, missing_value): refuse (default), or their replacement"
    add(
        "--missing",
        default="refuse",
        metavar="NUMBER",
        type=number,
        help=text,
    )
    flag("--quiet", "show no progress")


def check(args: argparse.Namespace) -> None:
    """Check values before the library is imported, which checks them again with the array."""
    if args.scheduler not in ("threads", "sync", "processes") and "://" not in args.scheduler:
        need = "threads, sync, processes, or an address such as tcp://127.0.0.1:8786"
        raise_invalid("scheduler", args.scheduler, need)
    if args.workers is not None and args.scheduler not in ("threads", "processes"):
        need = f"the scheduler threads or processes, not {args.scheduler}"
        raise_invalid("workers", args.workers, need)
    if args.command == "calibrate":
        return
    from dask_bigfft.storage.formats import refuse_absent
    from dask_bigfft.transforms.spec import parse_name, parse_scale

    if args.kind not in ("fourier_filter", "stft", "spectrogram", "istft"):
        parse_name(args.kind)
    parse_scale(args.norm, forward=True)
    for name, value in vars(args).items():
        config.argument(name, value)
    config.get("bigfft.memory-limit", "block_size", args.block_size)
    if args.command == "plan":
        refuse_absent(args.input)
        return
    parse_choice("missing_chunks", args.missing_chunks, "refuse", "fill")
    if not args.resume:  # a killed run may have moved its source
        refuse_absent(args.input)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments; an error about an unknown option names similar ones."""
    main_parser = parser()
    args, unknown = main_parser.parse_known_args(joined(argv))
    if not unknown:
        return args
    options = [f"--{name.replace('_', '-')}" for name in vars(args)]
    similar: list[str] = []
    for word in unknown:
        option = word.partition("=")[0]
        if option.startswith("--"):
            similar += difflib.get_close_matches(option, options)
    message = f"unrecognized arguments: {' '.join(unknown)}"
    if similar:
        message += f"; did you mean {' or '.join(similar)}?"
    main_parser.error(message)


def joined(argv: Sequence[str]) -> list[str]:
    """Return arguments with negative values, such as ``-2,-1``, joined to their options."""
    joined_words: list[str] = []
    for word in argv:
        is_negative = re.match(r"-\.?\d", word)
        if is_negative and joined_words and re.fullmatch(r"--[\w-]+", joined_words[-1]):
            joined_words[-1] += f"={word}"
        else:
            joined_words.append(word)
    return joined_words

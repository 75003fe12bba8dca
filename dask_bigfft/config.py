"""The settings of the package: their keys, units, defaults and what each may be.

May import dask and `errors`. The values live in `dask.config` under ``bigfft.``, so files,
environment variables (``DASK_BIGFFT__MEMORY_LIMIT=4GiB``) and ``dask.config.set`` work as for dask.
Importing this module loads ``bigfft.yaml`` as the defaults. An argument of a call wins over a
setting.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes

from dask_bigfft.errors import refuse

__all__ = ["KNOBS", "Knob", "get"]

Parse = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: where it lives, what it means and how its value is read.

    `default` is the value as ``bigfft.yaml`` writes it; `parse` takes the key and a value, and
    returns what `get` returns or refuses.
    """

    key: str
    default: Any
    unit: str
    description: str
    parse: Parse


def _parse_gain(key: str, value: Any) -> float:
    """Return a number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        refuse(key, value, "a number of at least 0")
    return float(value)


def _one_of(*names: str, **meaning: str) -> Parse:
    """Return a parser of names, with those of `meaning` standing for another name."""

    def parse(key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in (*meaning, *names):
            refuse(key, value, f"one of {', '.join((*meaning, *names))}")
        return meaning.get(value, value)

    return parse


def _parse_order(key: str, value: Any) -> str | tuple[str, ...]:
    """Return one order, or a tuple with an order for each transformed axis."""
    per_axis = isinstance(value, list | tuple)
    orders = tuple(value) if per_axis else (value,)
    for order in orders:
        if order not in ("natural", "transposed"):
            refuse(key, value, "natural or transposed, or a list of these with one for each axis")
    return orders if per_axis else str(value)


def _parse_chunks(key: str, value: Any) -> Any:
    """Return ``auto``, ``preserve`` or dask chunks, with tuples where YAML has lists."""
    if isinstance(value, list | tuple):
        return tuple(_parse_chunks(key, item) for item in value)
    if value in ("auto", "preserve") or (_is_int(value) and (value > 0 or value == -1)):
        return value
    if isinstance(value, str):
        return f"{_parse_nbytes(key, value)} B"
    refuse(key, value, "auto, preserve, or dask chunks: lengths, a size, or a list of these")


def _parse_rounds(key: str, value: Any) -> tuple[Any, ...] | None:
    """Return a tuple with a factor, or a mapping of axes to factors, for each round."""
    if value is None:
        return None
    allowed = "null, or a list with a factor or a mapping of axis to factor for each round"
    if not isinstance(value, list | tuple) or not value:
        refuse(key, value, allowed)
    for named in value:
        pairs = named.items() if isinstance(named, Mapping) else [(0, named)]
        if not pairs or not all(_is_int(axis) and _is_int(n) for axis, n in pairs):
            refuse(key, value, allowed)
    return tuple(value)


def _parse_nbytes(key: str, value: Any) -> int:
    """Return a number of bytes from an integer or a string such as ``4 GiB``."""
    allowed = "a number of bytes above 0, such as 1073741824 or '1 GiB'"
    if isinstance(value, str):
        try:
            nbytes = int(parse_bytes(value))
        except ValueError:
            refuse(key, value, allowed)
    elif _is_int(value):
        nbytes = int(value)
    else:
        refuse(key, value, allowed)
    if nbytes <= 0:
        refuse(key, value, allowed)
    return nbytes


def _parse_nbytes_or_none(key: str, value: Any) -> int | None:
    """Return a number of bytes, or None where the setting is null."""
    return None if value is None else _parse_nbytes(key, value)


def _parse_nbytes_none_or_0(key: str, value: Any) -> int | None:
    """Return a number of bytes that may be 0, or None where the setting is null."""
    nothing = isinstance(value, str | int) and not isinstance(value, bool) and value in (0, "0")
    return 0 if nothing else _parse_nbytes_or_none(key, value)


def _parse_nbytes_or_0(key: str, value: Any) -> int:
    """Return a number of bytes that may be 0; null is refused."""
    found = None if value is None else _parse_nbytes_none_or_0(key, value)
    return _parse_nbytes(key, value) if found is None else found


def _parse_bool(key: str, value: Any) -> bool:
    """Return a truth value; numbers and strings are refused."""
    if not isinstance(value, bool):
        refuse(key, value, "true or false")
    return value


def _parse_count(key: str, value: Any) -> int:
    """Return a count of at least 1."""
    if not _is_int(value) or value < 1:
        refuse(key, value, "an integer of at least 1")
    return int(value)


def _parse_name(key: str, value: Any) -> str:
    """Return the name of an FFT library, or ``auto``; the kernels know which exist."""
    if not isinstance(value, str) or not value.isidentifier():
        refuse(key, value, "auto, scipy, mkl_fft, ducc0, pyfftw, or another kernel's name")
    return value


def _parse_cache_directory(key: str, value: Any) -> str:
    """Return an absolute path; null is a folder of the user's cache."""
    if value is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        value = os.path.join(cache, "dask_bigfft")
    return _parse_directory(key, value)


def _parse_directory(key: str, value: Any) -> str:
    """Return an absolute path; null is dask's temporary directory, or the system's."""
    if value is None:
        value = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        refuse(key, value, "the path of a folder, or null for dask's temporary-directory")
    return os.path.abspath(value)


def _parse_file(key: str, value: Any) -> str | None:
    """Return an absolute path, or None where the setting is null."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        refuse(key, value, "the path of a file, or null")
    return os.path.abspath(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


_TABLE = (
    Knob(
        "bigfft.order",
        "natural",
        "name",
        "Order of the spectrum along each transformed axis: natural, or transposed (digit-reversed,"
        " which saves an exchange). A list gives one order for each axis.",
        _parse_order,
    ),
    Knob(
        "bigfft.chunks",
        "auto",
        "elements",
        "Chunks of the result: auto (what the last round gives: about as large as the input's,"
        " unless these are tiny, see planner.merge-up-to), preserve (the input's), or any dask"
        " chunks.",
        _parse_chunks,
    ),
    Knob(
        "bigfft.memory-limit",
        None,
        "bytes",
        "Memory that a plan may need in one process. Null takes the smallest limit of the cluster's"
        " workers, or this machine's memory.",
        _parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.rounds",
        None,
        "elements",
        "Decomposition of every transform: a list with a mapping of axis to factor for each round"
        " (or only the factor, for one axis). Null lets the planner choose.",
        _parse_rounds,
    ),
    Knob(
        "bigfft.variant",
        "auto",
        "name",
        "Data movement of a split axis: auto, dif, dit, stockham or pease.",
        _one_of("auto", "dif", "dit", "stockham", "pease"),
    ),
    Knob(
        "bigfft.kernel",
        "auto",
        "name",
        "FFT library that transforms a block: scipy, mkl_fft, ducc0 or pyfftw where installed, or"
        " auto (the fastest of them here, measured once for each dtype; on a cluster scipy, which"
        " all workers have).",
        _parse_name,
    ),
    Knob(
        "bigfft.device",
        "auto",
        "name",
        "Where rounds are done: auto (on a GPU where a worker has one and the block is worth the"
        " trip), cpu, gpu, or hybrid (CPU threads and GPUs take pieces of the same blocks).",
        _one_of("auto", "cpu", "gpu", "hybrid"),
    ),
    Knob(
        "bigfft.device-memory-limit",
        None,
        "bytes",
        "Memory of each GPU that may be used; larger blocks cross the bus several times. Null takes"
        " 0.8 of what is free. Kernels and FFT plans take some 64 MiB of it, counted in full from"
        " 256 MiB on.",
        _parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.hybrid-gain",
        1.1,
        "ratio",
        "How many times as fast as the faster of CPU threads and GPUs alone both together have to"
        " be by the model for a hybrid transform to be shared; else the faster ones do it alone."
        " 0 shares every round.",
        _parse_gain,
    ),
    Knob(
        "bigfft.install",
        False,
        "true or false",
        "Whether importing dask_bigfft puts its transforms in the place of those of dask.array.fft,"
        " as dask_bigfft.install does.",
        _parse_bool,
    ),
    Knob(
        "bigfft.verify",
        "none",
        "name",
        "Checks while a transform works: none, energy (Parseval, every round) or checksum (linear"
        " checksums of every round and those of every shard that travels, too).",
        _one_of("none", "energy", "checksum"),
    ),
    Knob(
        "bigfft.exchange.carrier",
        "auto",
        "name",
        "How blocks travel between rounds: auto (in memory, chosen where the graph turns into"
        " tasks, or by way of the disk where they do not fit), shared (inside one process), tasks"
        " (a task for every shard), p2p (distributed's peer-to-peer shuffle, with settings of its"
        " own under distributed.p2p) or disk (scratch files).",
        _one_of("auto", "shared", "tasks", "p2p", "disk"),
    ),
    Knob(
        "bigfft.exchange.in-place",
        True,
        "true or false",
        "Whether rounds in one process write their blocks into common memory, where the next round"
        " finds its own without copying them and works in place. The blocks of such a result are"
        " views of one array, which goes when the last of them does.",
        _parse_bool,
    ),
    Knob(
        "bigfft.exchange.shuffle-memory",
        None,
        "bytes",
        "Memory of each worker in which shards of p2p wait to be put together at most, beyond which"
        " they go to files. Null takes what distributed.p2p's buffers leave of themselves, about"
        " 750 MiB as they are by themselves, and it cannot be more; 0 leaves all to files.",
        _parse_nbytes_none_or_0,
    ),
    Knob(
        "bigfft.exchange.peer",
        "auto",
        "name",
        "How shards travel between GPUs of one process: auto (chosen for each pair from the"
        " profile), host, staged (of two that change places one by host), swap (copied into a"
        " second buffer), kernel (a kernel reads the other GPU's memory, in place) or none (a task"
        " for every shard).",
        _one_of("auto", "host", "staged", "swap", "kernel", "none"),
    ),
    Knob(
        "bigfft.scratch.directory",
        None,
        "path",
        "Folder for scratch files, which all processes have to see. Null takes dask's"
        " temporary-directory, or the system's.",
        _parse_directory,
    ),
    Knob(
        "bigfft.scratch.direct",
        True,
        "true or false",
        "Whether large pieces of scratch files, and of plain Zarr chunks, go around the system's"
        " page cache where the file system permits that. A file that is written once and read once"
        " gains nothing there, and inside a memory limit loses much.",
        _parse_bool,
    ),
    Knob(
        "bigfft.scratch.sync",
        False,
        "true or false",
        "Whether scratch files are on the disk before a record says that they are complete, so that"
        " a run can be resumed after a loss of power; after a killed process it can always be.",
        _parse_bool,
    ),
    Knob(
        "bigfft.scratch.row-size",
        "1 MiB",
        "bytes",
        "Rows of a stored array that are at least this wide are read where they lie, in the order"
        " in which the first round needs them, instead of being put in order in scratch files"
        " before.",
        _parse_nbytes,
    ),
    Knob(
        "bigfft.scratch.piece-size",
        "1 MiB",
        "bytes",
        "Where scratch files would be written in smaller pieces than this, blocks become larger, as"
        " far as the memory limit allows, unless the cost model says that this takes longer. 0"
        " leaves blocks as they are.",
        _parse_nbytes_or_0,
    ),
    Knob(
        "bigfft.scratch.threads",
        8,
        "threads",
        "Threads of a process that read and write large pieces of files for its tasks, so that the"
        " disk has several to do at a time. With 1 every task waits for each of its own.",
        _parse_count,
    ),
    Knob(
        "bigfft.wisdom.directory",
        None,
        "path",
        "Folder for what was measured on this machine. Null takes dask_bigfft in the user's cache"
        " directory (XDG_CACHE_HOME, or ~/.cache).",
        _parse_cache_directory,
    ),
    Knob(
        "bigfft.planner.mode",
        "estimate",
        "name",
        "How plans are chosen: estimate (the cheapest by the cost model) or measure (the few that"
        " look best are tried, and the fastest is kept for such transforms on this machine).",
        _one_of("estimate", "measure"),
    ),
    Knob(
        "bigfft.planner.profile",
        None,
        "path",
        "File with the speeds of the machine that plans are made for, as dask_bigfft.calibrate"
        " writes it. Null takes what was measured on this machine, or else common speeds.",
        _parse_file,
    ),
    Knob(
        "bigfft.memory.arena",
        True,
        "true or false",
        "Whether blocks come from memory that is kept and lent again, which spares the cost of"
        " fresh pages.",
        _parse_bool,
    ),
    Knob(
        "bigfft.memory.arena-limit",
        None,
        "bytes",
        "Memory that the arena keeps at most; above it, ordinary memory is lent. Null takes 0.4 of"
        " the memory of the process.",
        _parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.memory.prefault",
        True,
        "true or false",
        "Whether threads that are about to fill a block in fresh memory first have the system back"
        " all of its pages, each a part of them (on Linux 5.14 and later; elsewhere pages come as"
        " they are written to).",
        _parse_bool,
    ),
    Knob(
        "bigfft.memory.pinned-limit",
        None,
        "bytes",
        "Memory of the arena that is pinned at most where a GPU is used, so that the card reads and"
        " writes it by itself. Null takes all of the arena, 0 pins nothing.",
        _parse_nbytes_none_or_0,
    ),
    Knob(
        "bigfft.memory.pin-arrays",
        True,
        "true or false",
        "Whether NumPy arrays of 16 MiB and more that a GPU works on are pinned, too, where they"
        " are and as long as they live: as many bytes as of the arena at most. Otherwise, and"
        " beyond it, they are copied through pinned buffers.",
        _parse_bool,
    ),
    Knob(
        "bigfft.planner.max-rounds",
        4,
        "rounds",
        "Rounds that a plan may have at most, unless rounds are given by hand.",
        _parse_count,
    ),
    Knob(
        "bigfft.planner.whole-axis-floor",
        "4 MiB",
        "bytes",
        "An axis whose length has no good split is gathered whole into each block while the block"
        " stays below this size; above it Bluestein's algorithm is considered.",
        _parse_nbytes,
    ),
    Knob(
        "bigfft.planner.merge-up-to",
        "1 MiB",
        "bytes",
        "Where an axis in several chunks is transformed and more than 64 blocks come in that are"
        " several times smaller than this, neighbouring ones are merged up to this size first, and"
        " the result has chunks of about this size unless others are asked for. 0 merges none.",
        _parse_nbytes_or_0,
    ),
)

#: Every setting by its key.
KNOBS: Mapping[str, Knob] = MappingProxyType({knob.key: knob for knob in _TABLE})


def get(key: str) -> Any:
    """Return the checked value of the setting `key`, such as ``"bigfft.memory-limit"``.

    Sizes come back in bytes, lists as tuples, and null as None.

    Raises
    ------
    ArgumentError
        If there is no such setting, or its value is not allowed.

    Examples
    --------
    >>> with dask.config.set({"bigfft.memory-limit": "2 GiB"}):
    ...     get("bigfft.memory-limit")
    2147483648
    """
    knob = KNOBS.get(key)
    if knob is None:
        refuse("key", key, f"one of {', '.join(KNOBS)}")
    return knob.parse(key, dask.config.get(key, default=knob.default))


def _load_defaults() -> None:
    text = Path(__file__).with_name("bigfft.yaml").read_text(encoding="utf-8")
    dask.config.update_defaults(yaml.safe_load(text))


_load_defaults()

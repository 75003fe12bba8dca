"""The settings of the package: their keys, units, defaults and what each may be.

The values live in `dask.config` under ``bigfft.``, so files, environment variables
(``DASK_BIGFFT__MEMORY_LIMIT=4GiB``) and ``dask.config.set`` work as for dask. Importing this module
loads ``bigfft.yaml`` as the defaults. An argument of a call wins over a setting.

Imports dask, `errors` and this room.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import dask.config
import yaml

from dask_bigfft.config.values import (
    Parse,
    one_of,
    parse_bool,
    parse_cache_directory,
    parse_chunks,
    parse_count,
    parse_directory,
    parse_file,
    parse_gain,
    parse_name,
    parse_nbytes,
    parse_nbytes_none_or_0,
    parse_nbytes_or_0,
    parse_nbytes_or_none,
    parse_order,
    parse_rounds,
)
from dask_bigfft.errors import refuse

__all__ = ["KNOBS", "Knob", "get"]


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


_TABLE = (
    Knob(
        "bigfft.order",
        "natural",
        "name",
        "Order of the spectrum along each transformed axis: natural, or transposed (digit-reversed,"
        " which saves an exchange). A list gives one order for each axis.",
        parse_order,
    ),
    Knob(
        "bigfft.chunks",
        "auto",
        "elements",
        "Chunks of the result: auto (what the last round gives: about as large as the input's,"
        " unless these are tiny, see planner.merge-up-to), preserve (the input's), or any dask"
        " chunks.",
        parse_chunks,
    ),
    Knob(
        "bigfft.memory-limit",
        None,
        "bytes",
        "Memory that a plan may need in one process. Null takes the smallest limit of the cluster's"
        " workers, or this machine's memory.",
        parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.rounds",
        None,
        "elements",
        "Decomposition of every transform: a list with a mapping of axis to factor for each round"
        " (or only the factor, for one axis). Null lets the planner choose.",
        parse_rounds,
    ),
    Knob(
        "bigfft.variant",
        "auto",
        "name",
        "Data movement of a split axis: auto, dif, dit, stockham or pease.",
        one_of("auto", "dif", "dit", "stockham", "pease"),
    ),
    Knob(
        "bigfft.kernel",
        "auto",
        "name",
        "FFT library that transforms a block: scipy, mkl_fft, ducc0 or pyfftw where installed, or"
        " auto (the fastest of them, measured once for each dtype; on a cluster of those that this"
        " process and all workers have in the same version).",
        parse_name,
    ),
    Knob(
        "bigfft.device",
        "auto",
        "name",
        "Where rounds are done: auto (on a GPU where a worker has one and the block is worth the"
        " trip), cpu, gpu, or hybrid (CPU threads and GPUs share blocks).",
        one_of("auto", "cpu", "gpu", "hybrid"),
    ),
    Knob(
        "bigfft.device-memory-limit",
        None,
        "bytes",
        "Memory of each GPU that may be used; larger blocks cross the bus several times. Null takes"
        " 0.8 of what is free. Kernels and FFT plans take some 64 MiB of it, counted in full from"
        " 256 MiB on.",
        parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.hybrid.min-speedup",
        1.1,
        "ratio",
        "Minimum forecast speed-up over the faster of CPU and GPUs alone for rounds of a hybrid"
        " transform to be shared; else the faster one does them alone. 0 shares every round.",
        parse_gain,
    ),
    Knob(
        "bigfft.install",
        False,
        "true or false",
        "Whether importing dask_bigfft puts its transforms in the place of those of dask.array.fft,"
        " as dask_bigfft.install does.",
        parse_bool,
    ),
    Knob(
        "bigfft.verify",
        "none",
        "name",
        "Checks while a transform works: none, energy (Parseval, every round) or checksum (linear"
        " checksums of every round and those of every shard that travels, too).",
        one_of("none", "energy", "checksum"),
    ),
    Knob(
        "bigfft.exchange.carrier",
        "auto",
        "name",
        "How blocks travel between rounds: auto (in memory, chosen where the graph turns into"
        " tasks, or by way of the disk where they do not fit), shared (inside one process), tasks"
        " (a task for every shard), p2p (distributed's peer-to-peer shuffle, with settings of its"
        " own under distributed.p2p) or disk (scratch files).",
        one_of("auto", "shared", "tasks", "p2p", "disk"),
    ),
    Knob(
        "bigfft.exchange.in-place",
        True,
        "true or false",
        "Whether rounds in one process write their blocks into common memory, where the next round"
        " finds its own without copying them and works in place. The blocks of such a result are"
        " views of one array, which goes when the last of them does.",
        parse_bool,
    ),
    Knob(
        "bigfft.exchange.shuffle-memory",
        None,
        "bytes",
        "Memory of each worker in which shards of p2p wait to be put together at most, beyond which"
        " they go to files. Null takes what distributed.p2p's buffers leave of themselves, about"
        " 750 MiB as they are by themselves, and it cannot be more; 0 leaves all to files.",
        parse_nbytes_none_or_0,
    ),
    Knob(
        "bigfft.gpu.peer-transport",
        "auto",
        "name",
        "Transport between GPUs of one process: auto (chosen for each pair from the profile), host"
        " (through host memory), staged (one direction of a pair through the host), swap (GPU to"
        " GPU by the copy engine), kernel (a kernel reads the other GPU's memory) or none (a task"
        " for every shard).",
        one_of("auto", "host", "staged", "swap", "kernel", "none"),
    ),
    Knob(
        "bigfft.scratch.directory",
        None,
        "path",
        "Folder for scratch files, which all processes have to see. Null takes dask's"
        " temporary-directory, or the system's.",
        parse_directory,
    ),
    Knob(
        "bigfft.scratch.direct",
        True,
        "true or false",
        "Whether large pieces of scratch files, and of plain Zarr chunks, go around the system's"
        " page cache where the file system permits that. A file that is written once and read once"
        " gains nothing there, and inside a memory limit loses much.",
        parse_bool,
    ),
    Knob(
        "bigfft.scratch.sync",
        False,
        "true or false",
        "Whether files of a run are on the disk before a record says that they are complete. Then"
        " nothing that is recorded is lost with power. Else a resumed run compares checksums, and"
        " makes once more what was lost. A killed process loses nothing in either case.",
        parse_bool,
    ),
    Knob(
        "bigfft.scratch.row-size",
        "1 MiB",
        "bytes",
        "Rows of a stored array that are at least this wide are read where they lie, in the order"
        " in which the first round needs them, instead of being put in order in scratch files"
        " before.",
        parse_nbytes,
    ),
    Knob(
        "bigfft.scratch.piece-size",
        "1 MiB",
        "bytes",
        "Where scratch files would be written in smaller pieces than this, blocks become larger, as"
        " far as the memory limit allows, unless the cost model says that this takes longer. 0"
        " leaves blocks as they are.",
        parse_nbytes_or_0,
    ),
    Knob(
        "bigfft.scratch.threads",
        8,
        "threads",
        "Threads of a process that read and write large pieces of files for its tasks, so that the"
        " disk has several to do at a time. With 1 every task waits for each of its own.",
        parse_count,
    ),
    Knob(
        "bigfft.wisdom.directory",
        None,
        "path",
        "Folder for what was measured on this machine. Null takes dask_bigfft in the user's cache"
        " directory (XDG_CACHE_HOME, or ~/.cache).",
        parse_cache_directory,
    ),
    Knob(
        "bigfft.planner.mode",
        "estimate",
        "name",
        "How plans are chosen: estimate (the cheapest by the cost model) or measure (the few that"
        " look best are tried, and the fastest is kept for such transforms on this machine).",
        one_of("estimate", "measure"),
    ),
    Knob(
        "bigfft.planner.profile",
        None,
        "path",
        "File with the speeds of the machine that plans are made for, as dask_bigfft.calibrate"
        " writes it. Null takes what was measured on this machine, or else common speeds.",
        parse_file,
    ),
    Knob(
        "bigfft.memory.arena",
        True,
        "true or false",
        "Whether blocks come from memory that is kept and lent again, which spares the cost of"
        " fresh pages.",
        parse_bool,
    ),
    Knob(
        "bigfft.memory.arena-limit",
        None,
        "bytes",
        "Memory that the arena keeps at most; above it, ordinary memory is lent. Null takes 0.4 of"
        " the memory of the process.",
        parse_nbytes_or_none,
    ),
    Knob(
        "bigfft.memory.prefault",
        True,
        "true or false",
        "Whether threads that are about to fill a block in fresh memory first have the system back"
        " all of its pages, each a part of them (on Linux 5.14 and later; elsewhere pages come as"
        " they are written to).",
        parse_bool,
    ),
    Knob(
        "bigfft.memory.pinned-limit",
        None,
        "bytes",
        "Memory of the arena that is pinned at most where a GPU is used, so that the card reads and"
        " writes it by itself. Null takes all of the arena, 0 pins nothing.",
        parse_nbytes_none_or_0,
    ),
    Knob(
        "bigfft.memory.pin-arrays",
        True,
        "true or false",
        "Whether NumPy arrays of 16 MiB and more that a GPU works on are pinned, too, where they"
        " are and as long as they live: as many bytes as of the arena at most. Otherwise, and"
        " beyond it, they are copied through pinned buffers.",
        parse_bool,
    ),
    Knob(
        "bigfft.planner.max-rounds",
        4,
        "rounds",
        "Rounds that a plan may have at most, unless rounds are given by hand.",
        parse_count,
    ),
    Knob(
        "bigfft.planner.whole-axis-floor",
        "4 MiB",
        "bytes",
        "An axis whose length has no good split is gathered whole into each block while the block"
        " stays below this size; above it Bluestein's algorithm is considered.",
        parse_nbytes,
    ),
    Knob(
        "bigfft.planner.merge-up-to",
        "1 MiB",
        "bytes",
        "Where an axis in several chunks is transformed and more than 64 blocks come in that are"
        " several times smaller than this, neighbouring ones are merged up to this size first, and"
        " the result has chunks of about this size unless others are asked for. 0 merges none.",
        parse_nbytes_or_0,
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
    text = (Path(__file__).parents[1] / "bigfft.yaml").read_text(encoding="utf-8")
    dask.config.update_defaults(yaml.safe_load(text))


_load_defaults()

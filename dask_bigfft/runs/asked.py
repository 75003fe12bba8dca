"""What a run from file to file is to do, how it is planned, and what is said of it at the end.

Imports `planning`, `front`, `storage`, `graph` and what lies below.
"""

import contextlib
import errno
import math
import stat
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np

from dask_bigfft import config, front
from dask_bigfft.errors import ArgumentTypeError, DamagedShardError, PlanError, refuse
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.explain import human_bytes, human_seconds
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning.arguments import Extras, parse_limit
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.sources import URL, array_folder


def refuse_places(
    source: Path, component: str | None, destination: Path, scratch: Path | None
) -> None:
    """Refuse places that there cannot be, and those that lie inside of each other.

    Raises
    ------
    ArgumentError
        Naming the one that has to be elsewhere.
    """
    read = _whole("source", source)
    if component is not None and read.is_dir():  # which may be a link, too
        read = _whole("component", array_folder(read, component))
    written = _whole("destination", destination)
    if read.is_dir() and read in written.parents:
        refuse("destination", str(destination), f"a path outside of the source, {source}")
    if scratch is None:
        return
    if URL.match(str(scratch)):
        refuse("scratch", str(scratch), "a local path")
    folder = _whole("scratch", scratch)
    for name, place in {"source": read, "destination": written}.items():
        if place in (folder, *folder.parents) and not place.is_file():
            refuse("scratch", str(scratch), f"a folder outside of the {name}, {place}")
    if folder in written.parents:
        refuse(
            "destination",
            str(destination),
            f"a path outside of the scratch folder, {scratch}, which is deleted at the end",
        )


def _whole(argument: str, path: Path) -> Path:
    """The whole path that an argument means, of which the system can tell what is there."""
    try:
        found = path.resolve()
        found.exists()
        return found
    except (ValueError, RuntimeError) as error:  # null bytes, or links that go round in a circle
        reason: Exception = error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        reason = OSError(error.strerror)
    refuse(argument, str(path), f"a path that a file can have ({reason})")


@dataclass(frozen=True)
class Asked:
    """What a run is to do.

    Parameters
    ----------
    source, destination : Path
        Array to read, and Zarr array to make.
    kind : str
        Name of the transform.
    component : str or None
        Array within a group.
    where : mapping
        ``n`` and ``axis``, or ``s`` and ``axes``, as the transform takes them.
    norm : str or None
        As the transform takes it.
    options : mapping
        The keywords of transforms, such as ``order`` and ``chunks``.
    block_size : int, str or None
        Size of the blocks that are read.
    inner_chunks : tuple of int or None
        Chunks of the result inside of its shards; None for no shards.
    missing_chunks : {"refuse", "fill"}
        What becomes of a Zarr array some of whose chunks have no file.
    missing : "refuse" or float
        Value that replaces the missing values of a variable.
    """

    source: Path
    destination: Path
    kind: str = "fftn"
    component: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    norm: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    block_size: int | str | None = None
    inner_chunks: tuple[int, ...] | None = None
    missing_chunks: str = "refuse"
    missing: str | float = "refuse"

    def __post_init__(self) -> None:
        missing = self.missing_chunks
        if not isinstance(missing, str) or missing not in ("refuse", "fill"):
            refuse("missing_chunks", missing, "'refuse' or 'fill'")
        kind = stat.S_IFREG
        with contextlib.suppress(OSError, ValueError):  # what cannot be there is refused later
            kind = self.source.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            refuse("source", str(self.source), "a regular file or a folder; this is neither")

    @property
    def block_nbytes(self) -> int | None:
        """Size of the blocks that are read in bytes, if it was given."""
        return None if self.block_size is None else parse_limit("block_size", self.block_size)

    @property
    def filled(self) -> float | None:
        """Value that replaces missing ones; None where they are refused."""
        given = self.missing
        if isinstance(given, str) and given == "refuse":
            return None
        if not isinstance(given, Real) or isinstance(given, bool):
            refuse("missing", given, "'refuse' or a number", kind=ArgumentTypeError)
        return float(given)

    @property
    def pinned(self) -> dict[str, Any]:
        """What may not differ where a run is resumed, for JSON; sizes in bytes.

        Keywords that are left out are what dask's settings say.
        """
        found = {
            "kind": self.kind,
            "norm": self.norm,
            "block_size": self.block_nbytes,
            "inner_chunks": self.inner_chunks,
            "destination": str(self.destination.resolve()),
            "missing_chunks": self.missing_chunks,
            "missing": "refuse" if self.filled is None else repr(self.filled),
        }
        named = {name: value for name, value in self.options.items() if value is not None}
        given = {name: _setting(name) for name in Extras.__annotations__} | {**self.where, **named}
        for name in ("memory_limit", "device_memory_limit"):
            given[name] = parse_limit(name, given[name])
        found |= {name: value for name, value in given.items() if value is not None}
        return {name: _plain(value) for name, value in found.items()}


def _setting(name: str) -> Any:
    """What stands for a keyword of transforms that is left out; None where nothing does."""
    key = f"bigfft.{'planner.mode' if name == 'planner' else name.replace('_', '-')}"
    return config.get(key) if key in config.SETTINGS else None


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: integers of NumPy are integers."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Integral):
        return int(value)
    return value if isinstance(value, str | float | None) else repr(value)


@dataclass(frozen=True)
class Done:
    """What a run has done.

    Parameters
    ----------
    path : Path
        The Zarr array.
    plan : Plan
        How.
    dtype : str
        Of the array that was read.
    read, written : int
        Bytes of the source's values, decoded, and of the result.
    seconds : float
        How long it took.
    already : bool
        Whether an earlier call had done it all: this one has computed and written nothing.
    """

    path: Path
    plan: Plan
    dtype: str
    read: int
    written: int
    seconds: float
    already: bool = False

    def __repr__(self) -> str:
        if self.already:
            return f"<Done {self.path}: {self.plan.spec.name}, already done, {self.plan.notation}>"
        sizes = f"{human_bytes(self.read)} read, {human_bytes(self.written)} written"
        return (
            f"<Done {self.path}: {self.plan.spec.name} in {human_seconds(self.seconds)}, "
            f"{sizes}, {self.plan.notation}>"
        )


def open_input(asked: Asked, plan: Plan | None = None) -> da.Array:
    """Return the array that is asked for, lazily, in blocks of whole stored chunks, or a plan's."""
    nbytes = asked.block_nbytes
    keep = asked.options.get("chunks") == "preserve" and asked.block_size is None
    chunks, few = (None, False) if plan is None else (plan.chunks_in, plan.anew)
    return sources.open_source(
        asked.source,
        asked.component,
        nbytes=nbytes,
        keep=keep,
        chunks=chunks,
        few=few,
        missing=asked.filled,
    )


def open_rows(asked: Asked) -> sources.Reader:
    """Return the array that is asked for, of which single rows can be read."""
    return sources.open_reader(asked.source, asked.component, asked.filled)


def planned_input(asked: Asked) -> tuple[da.Array, Plan]:
    """Return the array that is asked for and the plan, in the blocks that it wants.

    They are halved where nobody has said how large they are, and no plan fits.
    """
    plan = _planned_as_it_fits(asked)
    return open_input(asked, plan), plan


def _planned_as_it_fits(asked: Asked) -> Plan:
    x = open_input(asked)
    try:
        return planned(asked, x)
    except PlanError:
        size = sources.block_bytes(int(x.nbytes)) // 2
        if asked.block_size is not None or asked.options.get("chunks") == "preserve":
            raise
        while size >= sources.SMALLEST:
            with contextlib.suppress(PlanError):
                halved = replace(asked, block_size=size)
                return planned(asked, open_input(halved))
            size //= 2
        raise


def planned(asked: Asked, x: da.Array) -> Plan:
    """Return the plan, with chunks that a Zarr array can hold."""
    options = dict(asked.options)
    # Chunks in shards, and half precision, are made by zarr and by a cast.
    as_is = asked.inner_chunks is None and x.dtype.char != "e"
    plain = x.dtype.isnative and x.dtype.char in "fdFD"  # others are cast, which is a copy
    anew = asked.block_size is None and plain
    stored = replace(open_rows(asked).described, result_as_is=as_is, anew=anew)

    def plan() -> Plan:
        norm, extras = cast("front.Norm", asked.norm), cast("Extras", options)
        return front.plan_of_stored(x, stored, asked.kind, asked.where, norm, extras)

    found = plan()
    if targets.uniform(found.chunks) is None:
        options["chunks"] = tuple(max(cut, default=1) or 1 for cut in found.chunks)
        found = plan()
    return found


def attributes(plan: Plan, norm: str | None) -> dict[str, Any]:
    """Return what the result's attributes say."""
    spec = plan.spec
    forward = any(order != "natural" for order in spec.orders_out)
    return {
        "version": str(sys.modules["dask_bigfft"].__version__),
        "kind": spec.name,
        "axes": list(spec.axes),
        "lengths": list(spec.lengths),
        "norm": norm or "backward",
        "order": list(spec.orders_out if forward else spec.orders_in),
        "order_of": "input" if not forward and "transposed" in spec.orders_in else "result",
        "rounds": plan.notation,
        "factors": [list(program.factors) for program in plan.programs],
        "variant": plan.variant,
        "kernel": plan.kernel,
        "input_shape": list(spec.shape),
        "input_dtype": spec.dtype,
    }


def result_dtype(plan: Plan, x: da.Array) -> Any:
    """Return the dtype in which a result is stored: half precision stays half."""
    half = x.dtype.char == "e" and plan.spec.kind == "c2r"
    return x.dtype.newbyteorder("=") if half else plan.spec.out_dtype


def nbytes_of_result(plan: Plan, x: da.Array) -> int:
    """Return the bytes of a result as it is stored."""
    return int(math.prod(plan.spec.out_shape) * np.dtype(result_dtype(plan, x)).itemsize)


def refuse_missing(asked: Asked) -> None:
    """Refuse a source that is not all there, unless that is meant so."""
    if asked.missing_chunks == "refuse":
        sources.refuse_missing_chunks(asked.source, asked.component)


def lazy_result(x: da.Array, plan: Plan, place: ScratchPlace | None) -> da.Array:
    """Return the result, lazily."""
    configure_arena()
    return transformed_array(x, plan, config.get("bigfft.exchange.carrier"), place=place)


def done_by(asked: Asked, plan: Plan, started: float, already: bool = False) -> Done:
    """Return what is done; `started` is the time at which a run began."""
    seconds, spec, dtype = time.perf_counter() - started, plan.spec, np.dtype(plan.spec.dtype)
    read = math.prod(spec.shape) * dtype.itemsize
    written = math.prod(spec.out_shape) * spec.out_dtype.itemsize
    return Done(asked.destination, plan, str(dtype), read, written, seconds, already)


def warn(error: DamagedShardError) -> None:
    """Say that scratch files were damaged, and are made once more."""
    warnings.warn(f"{error.strerror}: {error.filename}", RuntimeWarning, stacklevel=4)

"""A run from file to file: what is asked, how it is planned, and how it is carried out.

Imports `planning`, `front`, `storage`, `graph` and this room.
"""

import contextlib
import math
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import dask.array as da
import dask.config
import numpy as np

from dask_bigfft import config, front
from dask_bigfft.errors import ArgumentTypeError, DamagedShardError, PlanError, refuse
from dask_bigfft.exchange.folders import begin_life, check_room, lock_folder, unlock_folder
from dask_bigfft.exchange.records import stored_sizes
from dask_bigfft.exchange.scratch import Scratch, ScratchPlace, make_folder
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.graph.layer import scratch_place, transformed_array
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.wording import human_bytes, human_seconds
from dask_bigfft.planning.arguments import Extras, parse_limit, parse_memory_limit
from dask_bigfft.planning.surroundings import device_software
from dask_bigfft.runs import identity, pinned
from dask_bigfft.runs.places import refuse_places
from dask_bigfft.runs.sink import Sink, file_size
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.chunk_files import plain_chunks

Block = tuple[int, ...]

#: How often damaged scratch files are made once more before a run gives up.
MOST_REPAIRS = 3

#: Stores a result in a sink, whole, before it returns.
Store = Callable[[da.Array, Sink], object]


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

    @property
    def block_nbytes(self) -> int | None:
        """Size of the blocks that are read in bytes, if it was given."""
        return None if self.block_size is None else parse_limit("block_size", self.block_size)

    @property
    def pinned(self) -> dict[str, Any]:
        """What may not differ where a run is resumed, for JSON; sizes in bytes."""
        found = {"kind": self.kind, "norm": self.norm, "block_size": self.block_nbytes,
                 "inner_chunks": self.inner_chunks, "destination": str(self.destination.resolve()),
                 "missing_chunks": self.missing_chunks}
        given = {**self.where, **self.options}
        if given.get("memory_limit") is not None:
            given["memory_limit"] = parse_memory_limit(given["memory_limit"])
        found |= {name: value for name, value in given.items() if value is not None}
        return {name: _plain(value) for name, value in found.items()}


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
        Bytes of the source, and of the result.
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
        return (f"<Done {self.path}: {self.plan.spec.name} in {human_seconds(self.seconds)}, "
                f"{sizes}, {self.plan.notation}>")


def open_input(asked: Asked, plan: Plan | None = None) -> da.Array:
    """Return the array that is asked for, lazily, in blocks of whole stored chunks, or a plan's."""
    nbytes = asked.block_nbytes
    keep = asked.options.get("chunks") == "preserve" and asked.block_size is None
    if asked.missing_chunks not in ("refuse", "fill"):
        refuse("missing_chunks", asked.missing_chunks, "'refuse' or 'fill'")
    chunks = None if plan is None else plan.chunks_in
    return sources.open_source(
        asked.source, asked.component, nbytes=nbytes, keep=keep, chunks=chunks)


def open_rows(asked: Asked) -> sources.Reader:
    """Return the array that is asked for, of which single rows can be read."""
    return sources.open_reader(asked.source, asked.component)


def planned_input(asked: Asked) -> tuple[da.Array, Plan]:
    """Return the array that is asked for and the plan, in blocks that there is memory for.

    They are halved where nobody has said how large they are, and no plan fits.
    """
    x = open_input(asked)
    try:
        return x, planned(asked, x)
    except PlanError:
        size = sources.block_bytes(int(x.nbytes)) // 2
        if asked.block_size is not None or asked.options.get("chunks") == "preserve":
            raise
        while size >= sources.SMALLEST:
            with contextlib.suppress(PlanError):
                halved = replace(asked, block_size=size)
                x = open_input(halved)
                return x, planned(halved, x)
            size //= 2
        raise


def planned(asked: Asked, x: da.Array) -> Plan:
    """Return the plan, with chunks that a Zarr array can hold."""
    options, stored = dict(asked.options), open_rows(asked).described

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


def store_now(result: da.Array, sink: Sink) -> None:
    """Store a result on the scheduler that is set."""
    da.store(result, cast("Any", sink), lock=False)


def execute(
    asked: Asked, store: Store = store_now, *, scratch: Path | None = None, resume: bool = False,
    overwrite: bool = False, checksum: bool = False,
) -> Done:
    """Carry out a run; see `run` for what is given."""
    refuse_places(asked.source, asked.component, asked.destination, scratch)
    if scratch is not None:
        with _locked(scratch) as folder:
            return _resumable(asked, store, folder, resume, overwrite, checksum)
    for name, value in (("resume", resume), ("checksum", checksum)):
        if value:
            refuse(name, value, "a scratch folder beside it", kind=ArgumentTypeError)
    targets.check_target(asked.destination, asked.source, overwrite=overwrite)
    started = time.perf_counter()
    _refuse_missing(asked)
    x, plan = planned_input(asked)
    shape, dtype = targets.uniform(plan.chunks) or (), result_dtype(plan, x)
    place = replace(scratch_place(plan), rows=open_rows(asked)) if plan.from_rows else None
    result = _lazy(x, plan, place)
    record = attributes(plan, asked.norm)
    with targets.writing(
        asked.destination, result.shape, shape, dtype, record, asked.inner_chunks
    ) as target:
        sink = Sink(target.array, shape, plain=plain_chunks(target.array, target.partial))
        try:
            store(result, sink)
        except DamagedShardError as error:  # its files are gone: all is done once more
            _warn(error)
            store(result, sink)
    return _done(asked, plan, started)


def _warn(error: DamagedShardError) -> None:
    warnings.warn(f"{error.strerror}: {error.filename}", RuntimeWarning, stacklevel=3)


def _refuse_missing(asked: Asked) -> None:
    if asked.missing_chunks == "refuse":
        sources.refuse_missing_chunks(asked.source, asked.component)


def _lazy(x: da.Array, plan: Plan, place: ScratchPlace | None) -> da.Array:
    configure_arena()
    return transformed_array(x, plan, config.get("bigfft.exchange.carrier"), place=place)


def _done(asked: Asked, plan: Plan, started: float, already: bool = False) -> Done:
    seconds, spec, dtype = time.perf_counter() - started, plan.spec, np.dtype(plan.spec.dtype)
    read = math.prod(spec.shape) * dtype.itemsize
    written = math.prod(spec.out_shape) * spec.out_dtype.itemsize
    return Done(asked.destination, plan, str(dtype), read, written, seconds, already)


# --- runs that can be resumed ---------------------------------------------------------------


@contextlib.contextmanager
def _locked(scratch: Path) -> Iterator[Path]:
    """Give a scratch folder that only this process uses, and the disk as carrier."""
    folder = scratch.resolve()
    if folder.exists() and not folder.is_dir():
        refuse("scratch", str(scratch), "a folder, or a name that nothing has")
    make_folder(folder)
    handle = lock_folder(folder)
    if handle is None:
        refuse("scratch", str(scratch), "a folder that no other run is using now")
    try:
        with dask.config.set({"bigfft.exchange.carrier": "disk"}):
            yield folder
    finally:
        if folder.is_dir() and not (folder / pinned.RECORD).exists():
            pinned.leave(folder)  # refused before anything was begun
        unlock_folder(handle)


def _resumable(
    asked: Asked, store: Store, scratch: Path, resume: bool, overwrite: bool, checksum: bool
) -> Done:
    started, found = time.perf_counter(), pinned.read_record(scratch)
    if found is not None and not resume:
        refuse("scratch", str(scratch), "a folder where no run has begun, or resume=True")
    if found is not None:
        targets.settle(Path(found["partial"]))
    open_input(asked)  # refused before anything else is looked at
    ours, there = found is not None and _complete(asked.destination, found["run"]), None
    if found is None and resume and (made := identity.read(asked.destination)) is not None:
        there = identity.compared(
            made, asked.pinned, asked.source, asked.component, asked.destination)
        if there is None:
            return _done(asked, made.plan, started, already=True)
    if not ours:
        targets.check_target(asked.destination, asked.source, overwrite=overwrite, there=there)
    if found is None:
        _refuse_missing(asked)
        found = _pin(asked, scratch, checksum)
    else:
        _check(asked, found, scratch, ours)
    plan = Plan.from_json(found["plan"])
    if not ours:
        _make(asked, store, scratch, plan, found)
    pinned.clear(scratch)
    return _done(asked, plan, started, already=ours)


def _make(
    asked: Asked, store: Store, scratch: Path, plan: Plan, found: Mapping[str, Any]
) -> None:
    """Do what is left of a run, and put the result in its place."""
    x, place = open_input(asked, plan), _place(asked, scratch, plan)
    target = _target(asked, x, plan, found, bool(dict(place.finished)[len(plan.exchanges)]))
    if lost := _lost(target, plan, stored_sizes(scratch)):
        pinned.forget_lost(scratch, plan, lost)
        place = _place(asked, scratch, plan)
    for left in reversed(range(MOST_REPAIRS + 1)):
        try:
            store(_lazy(x, plan, place), _sink(target, plan, scratch, place))
            break
        except DamagedShardError as error:
            if not left:
                raise
            pinned.forget_damaged(scratch, plan, error)
            _warn(error)
            place = _place(asked, scratch, plan)
    now = pinned.source_identity(asked.source, asked.component, _has_content(found))
    pinned.refuse_changed_source(found["source"], now)
    made = identity.written(found["asked"], found["source"], found["plan"], _has_content(found))
    target.finish({identity.IDENTITY: made})


def _place(asked: Asked, scratch: Path, plan: Plan) -> ScratchPlace:
    """The scratch folder of a plan, with what is done already, for a life that begins now."""
    life = begin_life(scratch)
    finished = pinned.finished_blocks(scratch, plan)
    sync, memory = config.get("bigfft.scratch.sync"), plan.expected.peak_host
    rows = open_rows(asked) if plan.from_rows else None
    return ScratchPlace(str(scratch), "", sync, True, 0, memory, finished, rows, life)


def _pin(asked: Asked, scratch: Path, checksum: bool) -> dict[str, Any]:
    """Plan a run and write down what it is."""
    x, plan = planned_input(asked)
    targets.check_dtype(result_dtype(plan, x))
    targets.check_inner(asked.inner_chunks, targets.uniform(plan.chunks) or ())
    check_room(scratch, plan.expected.scratch)
    run = uuid.uuid4().hex
    found = {
        "run": run,
        "asked": asked.pinned,
        "versions": _versions(plan),
        "source": pinned.source_identity(asked.source, asked.component, checksum),
        "partial": str(asked.destination.resolve().with_name(
            f"{asked.destination.name}{targets.PARTIAL}{run[:12]}")),
        "plan": plan.to_json(),
    }
    pinned.write_record(scratch, found)
    return found


def _check(asked: Asked, found: Mapping[str, Any], scratch: Path, ours: bool) -> None:
    """Refuse to go on with a run that is not the one that was pinned.

    Where its result (`ours`) has replaced its source, there is no source to be looked at any more.
    """
    now = {"asked": asked.pinned, "versions": _versions(Plan.from_json(found["plan"]))}
    if not ours or not identity.in_place(asked.source, asked.component, asked.destination):
        source = pinned.source_identity(asked.source, asked.component, _has_content(found))
        pinned.refuse_changed_source(found["source"], source)
    pinned.refuse_another_run(scratch, found, now)


def _versions(plan: Plan) -> dict[str, str]:
    own = str(sys.modules["dask_bigfft"].__version__)
    cards = device_software() if pinned.on_devices(plan) else {}
    return {"dask_bigfft": own, **pinned.versions(plan.kernel), **cards}


def _has_content(found: Mapping[str, Any]) -> bool:
    return any(file[2] is not None for file in found["source"]["files"].values())


def _complete(path: Path, run: str) -> bool:
    """Whether the result of a run is in its place already: only cleaning up was left."""
    record = targets.read_attributes(path)
    return bool(record.get("run") == run and record.get("complete"))


def _target(
    asked: Asked, x: da.Array, plan: Plan, found: Mapping[str, Any], begun: bool
) -> targets.Target:
    """The result as far as it is there; a new one if nothing is stored yet."""
    partial, shape = Path(found["partial"]), targets.uniform(plan.chunks) or ()
    if begun:
        if not partial.is_dir():
            refuse("scratch", str(partial.name), "the part of the result that the run has stored, "
                   "which is gone; delete the scratch folder to start over")
        return targets.reopened(asked.destination, partial)
    record = attributes(plan, asked.norm) | {"run": found["run"]}
    return targets.created(
        asked.destination, partial, plan.spec.out_shape, shape, result_dtype(plan, x), record,
        asked.inner_chunks,
    )


def _lost(
    target: targets.Target, plan: Plan, sizes: Mapping[Block, int | None]
) -> list[Block]:
    """Blocks that are recorded as stored, but whose files are not as large as they were then.

    Without `sync`, a loss of power can keep the record and lose the file, or a part of it. Files
    that are not whole go, also those that nothing is recorded of: of a shard that is there Zarr
    reads the index before it writes it anew.
    """
    lost: dict[Block, Path] = {}
    for block in plan.result.indices():
        path = target.partial / str(target.array.metadata.encode_chunk_key(block))
        if block in sizes and sizes[block] in (None, file_size(path)):
            continue
        path.unlink(missing_ok=True)
        if block in sizes:
            lost[block] = path
    if lost:
        path = next(iter(lost.values()))
        warnings.warn(f"{len(lost)} files of the result are not as large as they were when they "
                      f"were stored, and are made once more: {path}", RuntimeWarning, stacklevel=3)
    return list(lost)


def _sink(target: targets.Target, plan: Plan, scratch: Path, place: ScratchPlace) -> Sink:
    """The sink of a run; files that nobody needs any more go."""
    files = Scratch(scratch, place.sync, kept=True, life=place.life)
    folders = [exchange_folder("", i) if moves else None for i, moves in enumerate(plan.moves)]
    for number, blocks in place.finished:
        before = folders[number - 1] if number else None
        for block in blocks if before is not None else ():
            files.free(cast("str", before), block)
    shape, (last, parts) = targets.uniform(plan.chunks) or (), pinned.result_files(plan)
    exchange = None if last is None else folders[last]
    plain = plain_chunks(target.array, target.partial)
    return Sink(target.array, shape, files, exchange, target.partial, plain, parts)

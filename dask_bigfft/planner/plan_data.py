"""What a plan is: rounds, blocks and exchanges, and what was asked, as data.

`Request` is what was asked, `Machine` where it runs, `Exchange` what goes between two rounds.

`Joints` say which blocks lie together in memory, and which rounds work there. Between tasks of one
process an exchange need not copy: the round before it writes its blocks into one array of all
blocks of a connected group, and the round after it finds its blocks there as strided views. A round
that keeps the shape of its blocks can leave them in the same place, and the next exchange may find
its own blocks there again: a one-dimensional transform in natural order comes out in the right
order without being copied::

    (n2, k1)  --FFT over n2, in place-->  (k2, k1) = k1 + N1 k2, flat

Pure: imports `transforms`, `decomposition` and this room.
"""

import itertools
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, Self, TypeVar

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Group, Layout
from dask_bigfft.decomposition.rounds import (
    ExchangeShape,
    Mirror,
    Round,
    exchange_shape,
    fits,
    groups_match,
    joint_of,
    packed_dtype,
    transformed,
)
from dask_bigfft.decomposition.steps import AxisProgram, Step
from dask_bigfft.errors import refuse
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile, decode, encode
from dask_bigfft.planner.rows import NOT_STORED, Stored, is_split
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.transforms.spec import TransformSpec


@dataclass(frozen=True)
class Exchange:
    """Exchange between two rounds: blocks of `source` become blocks of `target`.

    Parameters
    ----------
    source, target : Layout
        Blocks before and after.
    dtype, source_dtype : str
        Of the target's blocks, and of the source's.
    mirror : Mirror or None
        How half a spectrum is completed on the way.
    """

    source: Layout
    target: Layout
    dtype: str
    source_dtype: str
    mirror: Mirror | None = None

    @cached_property
    def shape(self) -> ExchangeShape:
        """Fan-in, C, W and groups."""
        return exchange_shape(self.source, self.target)

    @cached_property
    def local(self) -> bool:
        """Return whether nothing travels."""
        return self.shape.local and (self.mirror is None or self.source.blocks == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all target blocks."""
        return self.target.size * np.dtype(self.dtype).itemsize

    @property
    def shard_dtype(self) -> np.dtype[Any]:
        """Dtype of the shards, where they are packed."""
        return packed_dtype(np.dtype(self.source_dtype), np.dtype(self.dtype))

    @property
    def shard_nbytes(self) -> int:
        """Bytes of all packed shards."""
        return self.target.size * self.shard_dtype.itemsize


@dataclass(frozen=True)
class Joint:
    """Shared memory of the blocks before and after an exchange.

    Parameters
    ----------
    layout : Layout
        One block for each connected group; the blocks before and after are views of these.
    home : int
        Exchange before which the memory was taken: the exchange itself, or one before it whose
        blocks were transformed in place.
    """

    layout: Layout
    home: int


@dataclass(frozen=True)
class Joints:
    """The joints of a plan.

    Parameters
    ----------
    exchanges : tuple of (Joint or None)
        For each exchange.
    inside : tuple of (Layout or None)
        For each round, if it works where its blocks lie: the joint's layout after it.
    """

    exchanges: tuple[Joint | None, ...]
    inside: tuple[Layout | None, ...]


def no_joints(exchanges: int, rounds: int) -> Joints:
    """Return the joints of a plan whose blocks have memory of their own."""
    return Joints((None,) * exchanges, (None,) * rounds)


def _movable(exchange: Exchange) -> bool:
    """Return whether an exchange moves values as they are, between blocks."""
    same = exchange.mirror is None and exchange.dtype == exchange.source_dtype
    return same and not exchange.local


def _fresh(exchange: Exchange, number: int) -> Joint | None:
    layout = joint_of(exchange.source, exchange.target) if _movable(exchange) else None
    return None if layout is None else Joint(layout, number)


def _after(joint: Layout, round_: Round) -> Layout | None:
    """The joint after a round in place, if the round can be done so."""
    steps = round_.steps
    keeps = all(step.kind == "c2c" and step.source.size == step.target.size for step in steps)
    if round_.rolls or not keeps:
        return None
    after = transformed(joint, steps)
    return after if fits(after, round_.target) else None


def _kept(after: Layout, joint: Joint, exchange: Exchange) -> Joint | None:
    """The joint of an exchange whose blocks before lie in a joint already."""
    if not _movable(exchange) or not fits(after, exchange.target):
        return None
    matches = groups_match(after, exchange.source, exchange.target)
    return Joint(after, joint.home) if matches else None


@dataclass(frozen=True)
class Machine:
    """Processes, memory and speeds that a plan is made for.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that one process may use; None where nothing is known.
    threads : int
        Tasks that run at a time in one process.
    workers : int
        Number of processes.
    buffers : int or None
        Bytes of shards that a process may hold in memory while they travel by a shuffle; None
        where they do not travel so.
    profile : Profile
        How fast it is.
    cards : int
        Devices of each process that rounds may be done on.
    shared : bool
        Whether all tasks run in one process, so that blocks may lie together.
    by_cards : tuple of (int, int)
        Numbers of devices, fewest first, and how many processes have so many, where that is known
        and matters: where they are unlike, and each is to use its own. `cards` is the most.
    """

    memory_limit: int | None = None
    threads: int = 1
    workers: int = 1
    buffers: int | None = None
    profile: Profile = DEFAULT
    cards: int = 0
    shared: bool = False
    by_cards: tuple[tuple[int, int], ...] = ()

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Speeds of each device of a process; one that was not measured is like the others."""
        known = self.profile.devices or (DeviceProfile(),)
        return tuple(known[min(i, len(known) - 1)] for i in range(self.cards))


@dataclass(frozen=True)
class RoundForecast:
    """Forecast seconds of an exchange and the round that follows it.

    Parameters
    ----------
    index : int
        Number of the round, from 1; one more than there are rounds for the last exchange alone.
    blocks : int
        Number of blocks that are made.
    seconds : float
        Of the clock.
    gather, fft, handling : float
        Of threads, added up: gathering blocks and storing tiles apart, FFTs with their twiddles,
        and what Python does for blocks, shards and tiles.
    device : float
        Of a device for each of the blocks, or for its share of each; 0 on the CPU.
    travel : float
        Of the network or the disk.
    scheduling : float
        Of the scheduler, and waiting for the last block.
    bound : str
        Which of them is the longest.
    share : float
        Part of the round that devices do.
    """

    index: int
    blocks: int
    seconds: float
    gather: float
    fft: float
    handling: float
    device: float
    travel: float
    scheduling: float
    bound: str
    share: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """Forecast memory, tasks and seconds of a plan.

    Parameters
    ----------
    bytes_exchanged : int
        Bytes that all exchanges together move (local ones move nothing).
    peak_host : int
        Bytes of host memory at the worst moment, per process.
    scratch : int
        Bytes of scratch files.
    tasks : int
        Tasks in the graph.
    flops : float
        Floating point operations of all FFTs, 5 n log2 n each.
    seconds : float
        Time by the cost model, from the machine's profile.
    rounds : tuple of RoundForecast
        Of which that time is made.
    """

    bytes_exchanged: int
    peak_host: int
    scratch: int
    tasks: int
    flops: float
    seconds: float
    rounds: tuple[RoundForecast, ...] = ()


_LETTERS = "XYZWVU"


def axis_letter(axis: int, ndim: int) -> str:
    """Name of an axis as the papers have it: X is the last, Y the one before.

    >>> axis_letter(1, 2), axis_letter(0, 3), axis_letter(0, 9)
    ('X', 'Z', 'A0')
    """
    place = ndim - 1 - axis
    return _LETTERS[place] if place < len(_LETTERS) else f"A{axis}"


#: A plan, or a plan with methods.
P = TypeVar("P", bound="PlanData")


@dataclass(frozen=True)
class PlanData:
    """A transform laid out in rounds and exchanges, with its forecast.

    Parameters
    ----------
    spec : TransformSpec
        What was asked.
    programs : tuple of AxisProgram
        The steps of each transformed axis, in the order of ``spec.axes``.
    source : Layout
        The blocks of the array that comes in.
    rounds : tuple of Round
        In order.
    result : Layout
        The blocks of the array that goes out.
    variant, kernel : str
        Data movement within an axis, and the FFT library.
    machine : Machine
        What the plan was made for.
    expected : Forecast
        What it is expected to need.
    rejected : tuple of (str, Forecast)
        The runners-up: their rounds, and what they would have needed.
    reason : str
        Why this plan was taken.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Where rounds are done.
    device_memory_limit : int or None
        Bytes of a device that may be used; None leaves it to where the graph runs.
    shares : tuple of float
        Part of each round that devices are to do by the model, where CPU threads may share it, in
        a process that has any (in the one that has most); what they do of all is in `expected`.
    overwrite : bool
        Whether the blocks that come in may be destroyed.
    inside : bool
        Whether rounds write their blocks back into the blocks that came in (`overwritten`).
    carrier : {"memory", "disk"}
        Whether blocks stay in memory between rounds, or go through scratch files.
    verify : {"none", "energy", "checksum"}
        Checks while it works.
    from_rows : bool
        Whether the first round, with scratch files, reads its blocks from the stored array by
        itself.
    settings : DeviceSettings
        What is set of the devices' pipelines.
    storage : Stored
        Storage of the array that comes in, and of the result.
    assembles : bool
        Whether tasks put blocks together as shards, or rows, arrive from files. That takes longer
        than to gather them when all are there, and memory for one block less.
    anew : bool
        Whether the stored array is opened anew, in larger blocks that are read a few chunks at a
        time.
    incoming : tuple of chunks or None
        Of the array that comes in, where its blocks are tiny and neighbours are merged into those
        of `source`.
    outgoing : tuple of chunks or None
        Of the array that goes out, where they are cut from the blocks of `result`.
    fallback : str
        Why the FFT library may not be the fastest one; empty where there was no fallback.
    """

    spec: TransformSpec
    programs: tuple[AxisProgram, ...]
    source: Layout
    rounds: tuple[Round, ...]
    result: Layout
    variant: str
    kernel: str
    machine: Machine
    expected: Forecast
    rejected: tuple[tuple[str, Forecast], ...] = ()
    reason: str = ""
    device: Literal["auto", "cpu", "gpu", "hybrid"] = "auto"
    device_memory_limit: int | None = None
    shares: tuple[float, ...] = ()
    overwrite: bool = False
    inside: bool = False
    carrier: str = "memory"
    verify: str = "none"
    from_rows: bool = False
    settings: DeviceSettings = AS_IS
    storage: Stored = NOT_STORED
    assembles: bool = False
    anew: bool = False
    incoming: tuple[Chunks, ...] | None = None
    outgoing: tuple[Chunks, ...] | None = None
    fallback: str = ""

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round, and the one after the last unless it is not needed."""
        layouts = [self.source]
        for number, round_ in enumerate(self.rounds, 1):
            layouts += [round_.source, self.stored(number) if self.inside else round_.target]
        layouts.append(self.result)
        dtypes = (self.spec.dtype, *self.dtypes)
        pairs = list(zip(layouts[::2], layouts[1::2], strict=True))
        found = [
            Exchange(a, b, dtypes[2 * i + 1], dtypes[2 * i], self._mirror(a, b))
            for i, (a, b) in enumerate(pairs)
        ]
        return tuple(found[:-1]) if self.ends_in_round else tuple(found)

    @cached_property
    def joints(self) -> Joints:
        """Which blocks lie together where all tasks run in one process.

        Devices read shards where they are, and write new blocks while they do.
        """
        on_gpu = self.machine.cards > 0 and self.device in ("auto", "gpu")
        if self.carrier == "disk" or on_gpu:
            return no_joints(len(self.exchanges), len(self.rounds))
        rounds, exchanges = self.rounds, self.exchanges
        found: list[Joint | None] = [None]
        inside: list[Layout | None] = [None] if rounds else []
        held: Joint | None = None
        for number, exchange in enumerate(exchanges[1:], 1):
            joint = held if held is not None else _fresh(exchange, number)
            held, after = None, None
            found.append(joint)
            if number == len(rounds):
                break
            if joint is not None and self.dtypes[2 * number] == self.dtypes[2 * number + 1]:
                after = _after(joint.layout, rounds[number])
            if joint is not None and after is not None:
                follows = number + 1 < len(exchanges)
                held = _kept(after, joint, exchanges[number + 1]) if follows else None
                if held is None and (follows or not fits(after, self.result)):
                    after = None
            inside.append(after)
        return Joints(tuple(found), tuple(inside))

    @cached_property
    def ends_in_round(self) -> bool:
        """Return whether the last round's blocks are the result's, so that no exchange follows."""
        in_last = bool(self.rounds) and flattened(self.rounds[-1].target) == self.result
        return in_last and not self.inside

    def stored(self, number: int) -> Layout:
        """The blocks that came in, after some rounds whose blocks were written back into them."""
        done = [step.axis for round_ in self.rounds[:number] for step in round_.steps]
        axes = list(self.source.axes)
        for program in self.programs if number else ():
            digits = program.in_place(done.count(program.axis))
            chunks = axes[program.axis].groups[0].chunks
            axes[program.axis] = AxisLayout((Group(digits, chunks),))
        return Layout(tuple(axes))

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks before and after each round, and of the result."""
        spec = self.spec
        real, work = spec.real_dtype.str, spec.work_dtype.str
        kinds = [{step.kind for step in round_.steps} for round_ in self.rounds]
        halved = any("r2c" in found for found in kinds)
        afters = [real if "c2r" in found else work for found in kinds]
        befores = [real if halved or self._begins_real else work, *afters]
        pairs = zip(befores, afters, strict=False)
        return (*itertools.chain.from_iterable(pairs), spec.out_dtype.str)

    @cached_property
    def _begins_real(self) -> bool:
        """Return whether real values reach the first FFTs of a complex transform as they are."""
        if self.spec.kind != "c2c" or np.dtype(self.spec.dtype).kind == "c" or not self.rounds:
            return False
        steps = self.rounds[0].steps
        return all(s.chirp_in is None and s.sign == steps[0].sign for s in steps)

    def _mirror(self, source: Layout, target: Layout) -> Mirror | None:
        """The mirror image that an exchange needs: where half a spectrum changes its digits."""
        axis = self.spec.real_axis
        if axis is None:
            return None
        program = self.programs[-1]
        partial = [d for d in source.axes[axis].digits if d.stride == 1 and d.is_partial]
        kept = [d for d in target.axes[axis].digits if d.stride == 1 and d.is_partial]
        if program.mirror is None or not partial or partial == kept:
            return None
        if partial[0].stage != (0 if self.spec.kind == "c2r" else program.last_stage):
            return None
        others = tuple(a for a in self.spec.axes if a != axis)
        return Mirror(axis, program.length, others)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the array that goes out."""
        made = tuple(axis.groups[0].chunks for axis in self.result.axes)
        return made if self.outgoing is None else self.outgoing

    @property
    def chunks_in(self) -> tuple[Chunks, ...]:
        """Chunks of the array that comes in."""
        merged = tuple(axis.groups[0].chunks for axis in self.source.axes)
        return merged if self.incoming is None else self.incoming

    @property
    def merges(self) -> bool:
        """Return whether blocks that come in are merged; none are where rows are read."""
        return self.incoming is not None and not self.from_rows

    @property
    def core(self) -> Self:
        """The plan from the merged blocks on, to those from which the result's are cut."""
        return replace(self, incoming=None, outgoing=None)

    @cached_property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels; on disk, whether it takes scratch files.

        It takes none where the first round reads rows of the stored array, and where each chunk of
        the result is a part of one block of the last round.
        """
        found = [not exchange.local for exchange in self.exchanges]
        if self.carrier == "disk" and self.rounds:
            found[0] = found[0] and not self.from_rows
            if not self.ends_in_round and found[-1] and self.exchanges[-1].mirror is None:
                found[-1] = not is_split(self.rounds[-1].target, self.result)
        return tuple(found)

    @property
    def travelling(self) -> tuple[Exchange, ...]:
        """The exchanges in which something travels: what a plan is judged by."""
        return tuple(e for e, moves in zip(self.exchanges, self.moves, strict=True) if moves)

    @property
    def piece_nbytes(self) -> float:
        """Mean bytes of the shards of the exchange that has the smallest; infinite without any."""
        shards = [e.shard_nbytes / e.shape.shards for e in self.travelling if e.shape.shards]
        return min(shards, default=math.inf)

    @property
    def notation(self) -> str:
        """The rounds in short, such as ``{Y1} {Y2, X}``: first digit of Y; its second, and X."""
        of_axis = {program.axis: program.steps for program in self.programs}

        def name(step: Step) -> str:
            letter, steps = axis_letter(step.axis, len(self.spec.shape)), of_axis[step.axis]
            if len(steps) == 1:
                return letter
            return f"{letter}{steps.index(step) + 1}{'' if step.convolve is None else '*'}"

        return " ".join(f"{{{', '.join(map(name, round_.steps))}}}" for round_ in self.rounds)

    def to_json(self) -> str:
        """Return the plan as JSON, from which `from_json` makes it again."""
        return json.dumps(encode(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that `to_json` wrote.

        Raises
        ------
        ArgumentError
            If the text is not such a plan.
        """
        try:
            plan = decode(cls, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            refuse("text", text, f"the JSON of a plan ({error})")
        assert isinstance(plan, cls)
        return plan

    def in_full(self) -> str:
        """Return all that the plan is made of, as text, which plans that differ do not share."""
        return PlanData.__repr__(self)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.Plan", self.in_full()


def overwritten(plan: P) -> P | None:
    """Return the plan with its rounds inside the blocks that came in; None where that cannot be.

    A round reads its blocks as shards of the blocks that came in, and writes them back to the same
    places, in whose digits the transformed ones then stand: nothing is exchanged, and no memory is
    needed beside the data (Lee and Kim, Electronics 12, 2023). The result has the chunks that came
    in, unless others are wanted or a split axis has to be put into its natural order.
    """
    spec, source = plan.spec, plan.source
    plain = all(len(axis.groups) == 1 and not axis.groups[0].offset for axis in source.axes)
    covered = all(axis.size == math.prod(d.size for d in axis.digits) for axis in source.axes)
    alike = spec.kind == "c2c" and np.dtype(spec.dtype) == spec.work_dtype and not spec.windows
    stay = all(program.stays and not program.bluestein for program in plan.programs)
    if not (plain and covered and alike and stay and plan.travelling):
        return None
    found = replace(plan, inside=True)
    last = found.stored(len(plan.rounds))
    in_order = all(a.digits == b.digits for a, b in zip(last.axes, plan.result.axes, strict=True))
    return replace(found, result=last) if in_order else found


def flattened(layout: Layout) -> Layout | None:
    """The layout with each axis in one dimension, if its blocks allow that, else None.

    An axis' blocks are intervals of its flattened digits when only the first group is cut, or
    the groups before the cut one are cut into single values.
    """
    axes = [flat for axis in layout.axes if (flat := _flattened(axis)) is not None]
    return Layout(tuple(axes)) if len(axes) == len(layout.axes) else None


@lru_cache(maxsize=1024)
def _flattened(axis: AxisLayout) -> AxisLayout | None:
    groups = axis.groups
    cut = [i for i, group in enumerate(groups) if len(group.chunks) > 1]
    last = cut[-1] if cut else 0
    if any(set(group.chunks) != {1} for group in groups[:last]):
        return None
    if any(g.offset or g.bounds[-1] != g.size for g in groups) and len(groups) > 1:
        return None
    inner = math.prod(group.size for group in groups[last + 1 :])
    outer = math.prod(group.size for group in groups[:last])
    digits = tuple(digit for group in groups for digit in group.digits)
    chunks = tuple(c * inner for c in groups[last].chunks) * outer
    return AxisLayout((Group(digits, chunks, groups[0].offset),))


@dataclass(frozen=True)
class Request:
    """Choices of the caller that a plan respects, beside the transform itself.

    Parameters
    ----------
    chunks : tuple of chunks
        Of the array that comes in.
    wanted : tuple of chunks or None
        Of the array that goes out; None takes what the last round gives.
    rounds : tuple of dict or None
        Factor of each axis in each round, named by the user.
    variant, kernel : str
        Data movement within an axis, and FFT library.
    max_rounds : int
        Rounds that a plan may have.
    floor_bytes : int
        Size of a block below which an awkward axis is gathered whole.
    carrier : {"auto", "memory", "disk"}
        Where blocks are between rounds: ``"auto"`` takes the disk if memory is too small.
    verify : str
        Checks while the transform works.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Where rounds are done.
    scale : float
        Size of blocks in units of those that come in.
    device_nbytes : int or None
        Bytes of a device that may be used, if fewer than it has.
    stored : Stored or None
        How the array that comes in lies in files that the first round can read by itself. The
        result then goes to files, too.
    anew : bool
        Whether the stored array is opened anew, in these chunks.
    piece_nbytes : int
        Bytes of the pieces in which scratch files are written, at least, if larger blocks make
        them so large; 0 leaves blocks as they are.
    """

    chunks: tuple[Chunks, ...]
    wanted: tuple[Chunks, ...] | None = None
    rounds: tuple[tuple[tuple[int, int], ...], ...] | None = None
    variant: str = "auto"
    kernel: str = "scipy"
    max_rounds: int = 4
    floor_bytes: int = 4 << 20
    carrier: str = "memory"
    verify: str = "none"
    device: Literal["auto", "cpu", "gpu", "hybrid"] = "auto"
    scale: float = 1.0
    device_nbytes: int | None = None
    stored: Stored | None = None
    anew: bool = False
    piece_nbytes: int = 0


def largest_block(spec: TransformSpec, request: Request) -> int:
    """Size of the largest block that comes in, in complex elements (real ones are half as wide).

    Axes that lie whole in it count as long as they are padded to.
    """
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    size = 1
    for axis, chunks in enumerate(request.chunks):
        largest = max(chunks, default=0)
        size *= max(largest, lengths.get(axis, 0)) if len(chunks) == 1 else largest
    return max(1, size // 2 if spec.kind == "r2c" else size)

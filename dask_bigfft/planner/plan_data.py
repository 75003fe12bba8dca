"""`PlanData`: everything that is decided about a transform before any data is touched.

Frozen, hashable, and JSON both ways; holds no arrays and no addresses. `cost`, `explain` and
`drawing` are functions of it, which `plan.Plan` has as methods.

Pure: imports `transforms`, `decomposition` and `errors`.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Literal, Self, TypeVar

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Group, Layout
from dask_bigfft.decomposition.rounds import Mirror, Round
from dask_bigfft.decomposition.steps import AxisProgram
from dask_bigfft.errors import refuse
from dask_bigfft.planner.encoding import decode, encode
from dask_bigfft.planner.exchange import Exchange
from dask_bigfft.planner.joints import Joints, joints_of, no_joints
from dask_bigfft.planner.machine import Forecast, Machine
from dask_bigfft.planner.notation import notation
from dask_bigfft.planner.rows import is_split
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.transforms.spec import TransformSpec

__all__ = ["P", "PlanData", "flattened", "overwritten"]


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
    decoded : int
        Bytes of a chunk, or shard, of the stored array where it is decoded on its way in; 0 where
        values are read straight into their places.
    assembles : bool
        Whether tasks put blocks together as shards, or rows, arrive from files. That takes longer
        than to gather them when all are there, and memory for one block less.
    result_as_is : bool
        Whether blocks of the result go to files as they lie in memory, without a copy.
    anew : bool
        Whether the stored array is opened anew, in larger blocks that are read a few chunks at a
        time.
    read_beside : int or None
        Bytes beside such a block while it is read; None for as many as it has.
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
    decoded: int = 0
    assembles: bool = False
    result_as_is: bool = False
    anew: bool = False
    read_beside: int | None = None
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
        return joints_of(self.rounds, self.exchanges, self.dtypes, self.result)

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
        found = []
        halved = any(step.kind == "r2c" for round_ in self.rounds for step in round_.steps)
        current = real if halved or self._begins_real else work
        for round_ in self.rounds:
            found.append(current)
            kinds = {step.kind for step in round_.steps}
            current = real if "c2r" in kinds else work
            found.append(current)
        return (*found, spec.out_dtype.str)

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
        """The rounds in short, such as ``{Y1} {Y2, X}``."""
        return notation(self.spec, self.programs, self.rounds)

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
        parts = ", ".join(f"{part.name}={getattr(self, part.name)!r}" for part in fields(self))
        return f"Plan({parts})"

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
    axes = []
    for axis in layout.axes:
        if (flat := _flattened(axis)) is None:
            return None
        axes.append(flat)
    return Layout(tuple(axes))


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

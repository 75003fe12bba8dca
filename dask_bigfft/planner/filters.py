"""The filters of Bluestein's algorithm: how their spectra are made, block by block.

The filter is a chirp of the padded length. Its forward rounds are those of the axis that it
filters, so its spectrum comes in the very blocks that the axis' convolution step has.

Pure: imports `decomposition` and this room.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Chirp, Step, axis_program
from dask_bigfft.planner.plan import Exchange, Plan


@dataclass(frozen=True)
class FilterPlan:
    """Rounds that make the spectrum of one axis' filter.

    Parameters
    ----------
    axis : int
        Axis of the array that the filter belongs to.
    chirp : Chirp
        The filter.
    rounds : tuple of Round
        Of a one-dimensional array; the last one's blocks are the axis' blocks.
    used_in : int
        Number of the plan's round that convolves (from 0).
    dtype, kernel, verify : str
        Dtype of the blocks, FFT library, and checks.
    """

    axis: int
    chirp: Chirp
    rounds: tuple[Round, ...]
    used_in: int
    dtype: str
    kernel: str
    verify: str = "none"

    #: A filter's last round leaves its digits where they are.
    ends_in_round = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks before and after each round."""
        return (self.dtype,) * (2 * len(self.rounds))

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round; the one before the first is never made."""
        layouts = [self.rounds[0].source]
        layouts += [round_.target for round_ in self.rounds[:-1]]
        return tuple(
            Exchange(before, round_.source, self.dtype, self.dtype)
            for before, round_ in zip(layouts, self.rounds, strict=True)
        )

    @property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels."""
        return tuple(not exchange.local for exchange in self.exchanges)


def filter_plans(plan: Plan) -> tuple[FilterPlan, ...]:
    """Filters of a plan's axes that use Bluestein's algorithm."""
    found = []
    for program in plan.programs:
        if not program.bluestein:
            continue
        forward = program.steps[: len(program.factors)]
        plain = axis_program(0, program.length, program.factors, bluestein=True).steps
        rounds, used_in = [], 0
        for number, step in enumerate(forward):
            used_in = next(i for i, r in enumerate(plan.rounds) if step in r.steps)
            layout = Layout((plan.rounds[used_in].source.axes[program.axis],))
            own = (_forward(plain[number]),)
            rounds.append(Round(own, layout, transformed(layout, own)))
        chirp = forward[-1].convolve
        assert chirp is not None
        dtype = plan.spec.work_dtype.str
        found.append(
            FilterPlan(program.axis, chirp, tuple(rounds), used_in, dtype, plan.kernel, plan.verify)
        )
    return tuple(found)


def _forward(step: Step) -> Step:
    """The forward FFT of a step, with its twiddle but without chirp and convolution."""
    if step.convolve is None:
        return replace(step, chirp_in=None, chirp_out=None)
    target = replace(step.source, stage=1)  # only its size matters after the last round
    return replace(step, target=target, convolve=None, twiddle=None, chirp_in=None, chirp_out=None)

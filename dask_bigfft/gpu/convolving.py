"""Lengths with nothing to split that are larger than a GPU: convolutions inside a block.

A block that holds a whole axis is transformed by an FFT of just its length, whatever that is. Where
that is larger than the GPU and has no digits that are not, Bluestein's algorithm takes its place:
FFTs of a smooth length of at least twice as much, which fall apart. The block itself has only the
first values of those digits, and only the first of the result go back::

    block of 11 values        12 * 2 digits of 24 on the GPU, in three passes
      x0 x1 ... x10     ->      x0  x1
                                ..  ..
                                x10  0       chirp, FFT, filter, FFT back, chirp

The spectrum of the filter is made in the same way, from a chirp of the smooth length.

A digit of a cut axis is no different: its own index is that of the convolution, and the digits that
are still to come make the twiddle that follows. Half a spectrum is not completed. Real values are

    x[n] = Re(X[0] + 2 X[1] w^n + 2 X[2] w^2n + ...),    w = exp(2i pi / N),

with no factor 2 for X[N/2], so that half as many values come, and the real parts go.

Imports `decomposition`, `kernels`, `memory` and this room.
"""

from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.factors import factorize, smooth_length
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Layout, plain, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Step, axis_program
from dask_bigfft.gpu.jobs import Job
from dask_bigfft.gpu.operations import Array
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import lend
from dask_bigfft.planner.tile_plan import MOST_PRIME

__all__ = ["convolving", "filter_job", "filter_of", "is_hard"]

#: Values of a filter that are made at a time.
TILE = 1 << 20


def is_hard(job: Job) -> bool:
    """Whether some length of a job has a prime factor for which FFT libraries have no kernel."""
    return any(max(factorize(step.length), default=1) > MOST_PRIME for step in job.round.steps)


def convolving(job: Job) -> Job | None:
    """Return a job that does the same as a convolution; None where there is no such.

    What is a convolution already, with a filter of an axis, is none here.
    """
    if len(job.round.steps) != 1 or not is_hard(job):
        return None
    (step,) = job.round.steps
    if any(found is not None for found in (step.convolve, step.chirp_in, step.chirp_out)):
        return None
    n, padded = step.length, smooth_length(2 * step.length - 1)
    (found,) = axis_program(step.axis, n, (padded,), sign=step.sign, bluestein=True).steps
    chirped = replace(
        found,
        sign=-step.sign,  # there; back with the sign of the step, which is that of its twiddle
        source=Digit(0, 1, step.source.size, padded),
        target=Digit(found.target.stage, 1, step.target.size, padded),
        divisor=step.divisor,
        twiddle=step.twiddle,
    )
    axes = list(job.round.source.axes)
    axes[step.axis] = _beside(axes[step.axis], step, chirped)
    layout = Layout(tuple(axes))
    round_ = Round((chirped,), layout, transformed(layout, (chirped,)))
    source = max(job.source, job.target, key=lambda name: np.dtype(name).kind == "c")
    return Job(round_, job.block, source, job.target, settings=job.settings, convolves=True)


def _beside(axis: AxisLayout, step: Step, chirped: Step) -> AxisLayout:
    """An axis in which the digit of a step is one of its own, with as many stages as it needs.

    The digits that the twiddle is of are of the last stage but one, as those of all twiddles are.
    """

    def staged(digit: Digit) -> Digit:
        stage = chirped.target.stage
        return replace(digit, stage=stage - 1 if digit.stage == step.source.stage else stage + 1)

    groups = []
    for group in axis.groups:
        own = group.digits == (step.source,)
        digits = tuple(map(staged, group.digits))
        groups.append(whole(chirped.source) if own else replace(group, digits=digits))
    return AxisLayout(tuple(groups))


def filter_job(job: Job) -> Job:
    """The job that makes the spectrum of the filter of a job that convolves."""
    (step,) = job.round.steps
    layout = Layout((plain(step.length, (step.length,)),))
    (own,) = axis_program(0, step.length, (step.length,)).steps
    round_ = Round((own,), layout, transformed(layout, (own,)))
    return Job(round_, (0,), job.source, job.source, settings=job.settings)


def filter_of(job: Job) -> Array:
    """The filter of a job that convolves."""
    (step,) = job.round.steps
    assert step.convolve is not None
    found = lend((step.length,), np.dtype(job.source))
    for part in intervals(step.length, TILE):
        places = np.arange(part.start, part.stop, dtype=np.int64)
        found[part] = chirp_filter(
            places.shape, places, step.length, step.convolve.length, step.convolve.sign, found.dtype
        )
    return found

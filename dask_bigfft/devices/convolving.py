"""Lengths with nothing to split that are larger than a card: convolutions inside a block.

A block that holds a whole axis is transformed by an FFT of just its length, whatever that is. Where
that is larger than the card and has no digits that are not, Bluestein's algorithm takes its place:
FFTs of a smooth length of at least twice as much, which fall apart. The block itself has only the
first values of those digits, and only the first of the result go back::

    block of 11 values        12 * 2 digits of 24 on the card, in three crossings
      x0 x1 ... x10     ->      x0  x1
                                ..  ..
                                x10  0       chirp, FFT, filter, FFT back, chirp

The spectrum of the filter is made in the same way, from a chirp of the smooth length.

Imports `decomposition`, `kernels`, `memory` and this room.
"""

from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.factors import factorize, smooth_length
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Layout, plain, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import axis_program
from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.pieces import MOST_PRIME
from dask_bigfft.devices.protocol import Array
from dask_bigfft.kernels.incoming import parts
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.memory import lend

__all__ = ["convolving", "filter_job", "filter_of", "is_hard"]

#: Values of a filter that are made at a time.
TILE = 1 << 20


def is_hard(job: Job) -> bool:
    """Whether some length of a job has a prime factor for which FFT libraries have no kernel."""
    return any(max(factorize(step.length), default=1) > MOST_PRIME for step in job.round.steps)


def convolving(job: Job) -> Job | None:
    """Return a job that does the same as a convolution; None where there is no such.

    Half a spectrum is not completed here, and what follows a step has to follow it still.
    """
    if len(job.round.steps) != 1 or not is_hard(job):
        return None
    (step,) = job.round.steps
    more = step.twiddle, step.convolve, step.chirp_in, step.chirp_out
    if step.kind == "c2r" or any(found is not None for found in more):
        return None
    n, dim, shape = step.length, job.round.dim(step), job.round.source.shape(job.block)
    padded = smooth_length(2 * n - 1)
    (found,) = axis_program(dim, n, (padded,), sign=step.sign, bluestein=True).steps
    chirped = replace(
        found,
        source=Digit(0, 1, n, padded),
        target=Digit(found.target.stage, 1, step.target.size, padded),
        divisor=step.divisor,
    )
    axes = [plain(size, (size,)) for size in shape]
    axes[dim] = AxisLayout((whole(chirped.source),))
    layout = Layout(tuple(axes))
    round_ = Round((chirped,), layout, transformed(layout, (chirped,)))
    block = (0,) * len(shape)
    return Job(round_, block, job.target, job.target, settings=job.settings, convolves=True)


def filter_job(job: Job) -> Job:
    """The job that makes the spectrum of the filter of a job that convolves."""
    (step,) = job.round.steps
    layout = Layout((plain(step.length, (step.length,)),))
    (own,) = axis_program(0, step.length, (step.length,)).steps
    round_ = Round((own,), layout, transformed(layout, (own,)))
    return Job(round_, (0,), job.target, job.target, settings=job.settings)


def filter_of(job: Job) -> Array:
    """The filter of a job that convolves."""
    (step,) = job.round.steps
    assert step.convolve is not None
    found = lend((step.length,), np.dtype(job.target))
    for part in parts(step.length, TILE):
        places = np.arange(part.start, part.stop, dtype=np.int64)
        found[part] = chirp_filter(
            places.shape, places, step.length, step.convolve.length, step.convolve.sign, found.dtype
        )
    return found

"""Rounds on blocks for tests of devices: a whole transform of one block is one round."""

import contextlib
import ctypes
from collections import Counter

import dask.array as da
import numpy as np
import pytest
import scipy.fft
from support import heard

from dask_bigfft import fft, plan
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.cuda import available
from dask_bigfft.gpu.engine import Engine, Source
from dask_bigfft.gpu.operations import DeviceArray
from dask_bigfft.gpu.tile_work import Job
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.simulated import SimulatedGPU, transformed
from dask_bigfft.testing.strategies import random_array

#: Marks of modules that need a GPU.
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="no CUDA device, or no CuPy"),
    pytest.mark.filterwarnings("ignore:.*:PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:cupyx.jit.rawkernel:FutureWarning"),
]

#: Small blocks are cut for the pipeline's sake as well.
SMALL = TileLimits(0, least=256, run_nbytes=64)


def values(*shape, dtype="c16", seed=0):
    return random_array(shape, dtype, seed)


def job_of(x, name, **keywords):
    """The one round of a transform of an array in one chunk."""
    plan_of_block = plan(da.from_array(x, chunks=-1), name, **keywords)
    (round_,) = plan_of_block.rounds
    return Job(round_, (0,) * x.ndim, *plan_of_block.dtypes[:2]), plan_of_block.spec.out_shape


def job_of_round(round_, dtypes, inside=False):
    """Return the work of a round on its first block; `inside` in the memory of the block."""
    first_block = (0,) * len(round_.source.axes)
    return Job(
        round_,
        first_block,
        *dtypes,
        inside=inside,
    )


def engine(
    nbytes,
    seed=0,
    device=None,
    limits=SMALL,
):
    device = SimulatedGPU(nbytes, seed) if device is None else device
    return Engine(device, nbytes, limits)


def run(engine, x, name, **keywords):
    """A transform of one block by an engine."""
    job, shape = job_of(x, name, **keywords)

    def fill():
        return np.array(x, job.source).reshape(job.round.source.shape(job.block))

    return engine.run(job, Source(fill)).reshape(shape)


def passes_of(tiles):
    """Passes in short, such as ``{Y1} {Y2, X}``."""
    letters = "ZYX"[-len(tiles.job.round.source.axes) :]
    return " ".join(tiles.plan.names([letters[step.axis] for step in tiles.job.round.steps]))


def distance(ours, expected):
    """Relative distance in the L2 norm."""
    return np.linalg.norm(ours - expected) / np.linalg.norm(expected)


def scipys(x, name, **keywords):
    return getattr(scipy.fft, name)(x, **keywords)


@contextlib.contextmanager
def on_devices(*devices, limits=SMALL, nbytes=1 << 14):
    """Rounds are done by these devices within a context."""
    dispatch.use(devices, limits, nbytes)
    try:
        yield devices
    finally:
        dispatch.use(None)


def on_the_card(name, lazy, nbytes, limits=None, seed=0, **keywords):
    """A transform of which the CPU does no round, and how often each event happened."""
    limits = limits or TileLimits(nbytes, least=256)
    with simulated_devices(nbytes, seed=seed, limits=limits) as (device,), heard() as events:
        transformed = getattr(fft, name)(lazy, device="gpu", **keywords).compute(scheduler="sync")
        assert device.trace
        assert device.peak <= nbytes
    counts = Counter(name for name, _ in events)
    assert "fallback" not in counts
    return transformed, counts


def copied(gpu, *copies):
    """Do copies one after the other, announced to the ring; return when they are done."""
    stream = gpu.stream("h2d")
    end = gpu.event("end")
    for source, target in copies:
        if isinstance(source, DeviceArray):
            gpu.d2h(stream, source, target)
        else:
            gpu.ahead(stream, source)
            gpu.h2d(stream, source, target)
    gpu.record(end, stream)
    gpu.synchronize(end)


def memory(address, shape, dtype):
    """The array at an address."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype).reshape(shape)


def fft_at(op, source, target):
    """Do an FFT between addresses, as a GPU would."""
    real = np.empty(0, op.dtype).real.dtype
    came, goes = (real if op.kind == kind else op.dtype for kind in ("r2c", "c2r"))
    memory(target, op.target, goes)[...] = transformed(op, memory(source, op.source, came))

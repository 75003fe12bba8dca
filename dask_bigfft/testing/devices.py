"""Transforms on simulated GPUs."""

import contextlib
from collections.abc import Iterator

from dask_bigfft.gpu import dispatch
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU


@contextlib.contextmanager
def simulated_devices(
    nbytes: int,
    count: int = 1,
    *,
    seed: int = 0,
    limits: TileLimits | None = None,
) -> Iterator[list[SimulatedGPU]]:
    """Replace the GPUs of this process by simulated ones within a context.

    Transforms with ``device="gpu"`` (or ``"auto"``, for large enough blocks) use them when they are
    computed in this context on dask's threads.

    Parameters
    ----------
    nbytes : int
        Bytes of memory of each device, all usable.
    count : int
        Number of devices.
    seed : int
        Seed of the random order of operations that no event orders.
    limits : TileLimits, optional
        Limits of the tiles.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from dask_bigfft import fft
    >>> x = da.ones((64, 64), chunks=32)
    >>> with simulated_devices(1 << 14) as devices:
    ...     spectrum = fft.fft2(x, device="gpu").compute()
    >>> np.allclose(spectrum, np.fft.fft2(np.ones((64, 64)))), devices[0].peak <= 1 << 14
    (True, True)
    """
    devices = [SimulatedGPU(nbytes, seed + number) for number in range(count)]
    dispatch.use(devices, limits, nbytes)
    try:
        yield devices
    finally:
        dispatch.use(None)

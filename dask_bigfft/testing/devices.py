"""Transforms on simulated devices: what a GPU would do, where there is none.

Imports `gpu`.
"""

import contextlib
from collections.abc import Iterator

from dask_bigfft.gpu import dispatch
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU


@contextlib.contextmanager
def simulated_devices(
    nbytes: int,
    count: int = 1,
    *,
    seed: int = 0,
    limits: TileLimits | None = None,
    profile: DeviceProfile | None = None,
) -> Iterator[list[SimulatedGPU]]:
    """Let this process have simulated devices, and no others, while the context lasts.

    Transforms computed inside with ``device="gpu"`` (or ``"auto"``, for blocks that are worth the
    trip) run on them, on dask's threads.

    Parameters
    ----------
    nbytes : int
        Bytes of memory of each device, all of which may be used.
    count : int
        Number of devices.
    seed : int
        Draws the order in which operations run that no event orders.
    limits : TileLimits, optional
        How blocks are cut into pieces; its number of bytes is replaced.
    profile : DeviceProfile, optional
        Speeds, for the devices' clocks.

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
    devices = [SimulatedGPU(nbytes, seed + i, profile or DeviceProfile()) for i in range(count)]
    dispatch.use(devices, TileLimits(nbytes) if limits is None else limits, nbytes)
    try:
        yield devices
    finally:
        dispatch.use(None)

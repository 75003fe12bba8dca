"""Spectra of xarray's arrays at chosen frequencies, or at points of a spiral."""

from typing import Unpack

import numpy as np
import scipy  # its modules are imported at first use
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.chirp_z import parse_interval
from dask_bigfft.xarray.arrays import (
    Dims,
    over_variables,
    parse_one_dim,
    rebuilt,
    renamed_dims,
    with_frequencies,
    with_numbered_chunks,
)
from dask_bigfft.xarray.coordinates import PREFIX, samples_of

__all__ = ["czt", "zoom_fft"]

#: Beginning of the name of a dimension of points in the complex plane.
POINTS = "z_"


@over_variables(spectral=False)
def zoom_fft(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    fn: float | tuple[float, float],
    m: int | None = None,
    endpoint: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the spectrum along a dimension at evenly spaced frequencies of an interval.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one.
    fn : float or tuple of two floats
        First frequency and the end of the frequencies, in cycles per unit of the coordinate, or per
        second for times; a number is an end, and the first one 0.
    m : int, optional
        Number of frequencies, by default that of the samples.
    endpoint : bool
        True if the end is the last frequency.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions), `memory_limit` and the other options of
        `dask_bigfft.signal.zoom_fft`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with dimension ``freq_x`` instead of ``x``. Lazy if the array is, otherwise
        computed at once. As for `fft`, the phase is that of waves from the first sample on.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    See Also
    --------
    fft : All frequencies of the samples.

    Examples
    --------
    >>> import xarray as xr
    >>> time = np.arange(400) / 100
    >>> x = xr.DataArray(np.sin(2 * np.pi * 12.3 * time), dims="time", coords={"time": time})
    >>> near = abs(zoom_fft(x, fn=(12, 13), m=11, endpoint=True))
    >>> near.idxmax().item()
    12.3
    """
    name = parse_one_dim(array, dim, lambda _: True)
    own = samples_of(array, name)
    axis = array.get_axis_num(name)
    low, high = parse_interval(fn)
    direction = np.sign(own.spacing)
    new_dims = renamed_dims(array, name, f"{PREFIX}{name}")
    data = signal.zoom_fft(
        array.data,
        [low * direction, high * direction],
        m,
        fs=1 / abs(own.spacing),
        endpoint=endpoint,
        axis=axis,
        **with_numbered_chunks(options, array.dims, new_dims),
    )
    frequencies = np.linspace(low, high, data.shape[axis], endpoint=endpoint)
    return with_frequencies(
        array,
        data,
        {name: frequencies},
        {name: own},
    )


@over_variables(spectral=False)
def czt(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    m: int | None = None,
    w: complex | None = None,
    a: complex = 1 + 0j,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the chirp z-transform along a dimension, at points of a spiral.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one. Its coordinate may have any steps, since the points
        are those of samples 0, 1, 2 and so on.
    m, w, a
        Number of points, ratio of two points and the first one: see `dask_bigfft.signal.czt`.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions), `memory_limit` and the other options of
        `dask_bigfft.signal.czt`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with dimension ``z_x`` instead of ``x``, whose coordinate has the points. Lazy if
        the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    See Also
    --------
    zoom_fft : Points on a part of the unit circle, by their frequencies.

    Examples
    --------
    >>> import xarray as xr
    >>> spectrum = czt(xr.DataArray(np.ones(4), dims="x"), m=2, w=-1)
    >>> spectrum.z_x.values.round(6) + 0.0
    array([ 1.+0.j, -1.+0.j])
    >>> spectrum.values.round(6) + 0.0
    array([4.+0.j, 0.+0.j])
    """
    name = parse_one_dim(array, dim, lambda _: True)
    axis = array.get_axis_num(name)
    new_dim = f"{POINTS}{name}"
    new_dims = renamed_dims(array, name, new_dim)
    data = signal.czt(
        array.data,
        m,
        w,
        a,
        axis=axis,
        **with_numbered_chunks(options, array.dims, new_dims),
    )
    points = scipy.signal.czt_points(data.shape[axis], w, a)
    return rebuilt(array, data, {name: (new_dim, xr.Variable((new_dim,), points))})

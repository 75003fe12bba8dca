"""The transforms of arrays and datasets."""

from dask_bigfft.xarray.arrays import over_variables
from dask_bigfft.xarray.plans import plan
from dask_bigfft.xarray.transforms import (
    both_shifted,
    forward,
    forward_waves,
    inverse,
    inverse_waves,
)

__all__ = ["dct", "dst", "fft", "fftshift", "hfft", "idct", "idst", "ifft", "ifftshift"]
__all__ += ["ihfft", "irfft", "plan", "rfft"]


@over_variables(spectral=False)
@forward
def fft() -> None:
    """Return the discrete Fourier transform along some dimensions.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        Arrays with evenly spaced coordinates (numbers or times), or without coordinates. In a
        dataset, variables with all of the dimensions are transformed, and variables with none of
        them do not change.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all.
    n : int, optional
        Length of the transform of the last dimension, which is cropped or padded with zeros.
    shift : bool
        True to put frequency 0 in the middle.
    norm : {"backward", "ortho", "forward"}, optional
        See `numpy.fft.fftn`.
    detrend : {"constant", "linear"}, optional
        Subtract the mean over all of the dimensions first, or a plane fitted by least squares.
    window : str or tuple, optional
        Multiply by a window of `scipy.signal.get_window` along each of the dimensions.
    true_phase : bool
        True to count phases from position 0 instead of the first sample: times
        exp(-2j pi f x0). The default is False.
    true_amplitude : bool
        True for the spectrum of an integral: times the product of the sample distances. The
        default is False.
    order, chunks, ..., planner
        As for `dask_bigfft.fft.fftn`. `chunks` may map dimensions of the array or of the result.
        `band` maps dimensions to the lowest and highest frequency that is kept, in the unit of the
        new coordinate; the inverse knows it.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Result with dimension ``freq_x`` instead of ``x``. Its coordinate is in cycles per unit of
        ``x``, and has the distance of two frequencies as attribute ``spacing``. Lazy if the array
        is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For uneven coordinates, for variables of a dataset with some of the dimensions but not all,
        and for other invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 0, 0], dims="x", coords={"x": [0.0, 0.5, 1.0, 1.5]})
    >>> fft(x, "x").freq_x.values
    array([ 0. ,  0.5, -1. , -0.5])
    """


@over_variables(spectral=False)
@forward
def rfft() -> None:
    """Return half the transform of real data; the half is that of the last dimension named.

    Parameters
    ----------
    array, dim, n, shift, norm, detrend, window, true_phase, true_amplitude, order, ..., planner
        As for `fft`. The last dimension is never shifted.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With frequencies from 0 on along the last dimension.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As for `fft`.

    Examples
    --------
    >>> import xarray as xr
    >>> rfft(xr.DataArray([1.0, 0, 0, 0], dims="t"), "t").freq_t.values
    array([0.  , 0.25, 0.5 ])
    """


@over_variables(spectral=True)
@inverse
def ifft() -> None:
    """Return the inverse of `fft`, with the dimensions and coordinates from before.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        A spectrum, or several. The coordinates say whether frequency 0 is in the middle.
    dim : str or sequence of str, optional
        The dimensions of frequencies; by default those that a transform of this module has made.
    norm, true_phase, true_amplitude, order, ..., planner
        As `fft` had them; `order` is that of the spectrum.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With ``x`` in the place of ``freq_x``. Where attributes do not tell its coordinate, it
        begins at 0 with the step that belongs to the frequencies. Attributes are those of the array
        that was transformed, or those of the spectrum if one of them was changed there. Lazy if the
        array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 2, 0], dims="x", coords={"x": [3, 5, 7, 9]})
    >>> ifft(fft(x)).x.values
    array([3, 5, 7, 9])
    """


@over_variables(spectral=True)
@inverse
def irfft() -> None:
    """Return the inverse of `rfft`, which is real.

    Parameters
    ----------
    array, dim, norm, true_phase, true_amplitude, order, ..., planner
        As for `ifft`; the last dimension is the one that has half its frequencies.
    n : int, optional
        Length of that dimension in the result; by default that from before, else 2 (m - 1) for m
        frequencies.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `ifft`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> irfft(rfft(xr.DataArray([1.0, 0, 2], dims="x"))).values.round(12)
    array([1., 0., 2.])
    """


@over_variables(spectral=False)
@forward
def hfft() -> None:
    """Return the real transform of half of a Hermitian sequence, such as lags from 0 on.

    Parameters
    ----------
    array, dim, norm, shift, true_amplitude, order, ..., planner
        As for `fft`; along the last dimension the array has the samples from 0 on.
    n : int, optional
        Length of the whole sequence; by default 2 (m - 1) for m samples.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with all frequencies.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> hfft(xr.DataArray([2.0, 1.0, 0.0], dims="lag")).values
    array([4., 2., 0., 2.])
    """


@over_variables(spectral=True)
@inverse
def ihfft() -> None:
    """Return the inverse of `hfft`: the samples of a Hermitian sequence from 0 on.

    Parameters
    ----------
    array, dim, norm, true_amplitude, order, ..., planner
        As for `ifft`; the array is real.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `ifft`; complex, with half of the last dimension.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@over_variables(spectral=False)
@forward_waves
def dct() -> None:
    """Return the cosine transform along some dimensions.

    Parameters
    ----------
    array, dim, n, norm, detrend, window
        As for `fft`.
    type : {1, 2, 3, 4}
        Type of the transform, see `scipy.fft.dct`. The default is 2.
    orthogonalize, overwrite_x, chunks, memory_limit, kernel
        As for `dask_bigfft.fft.dctn`. `chunks` may map dimensions.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Result with dimension ``freq_x`` instead of ``x``, whose coordinate has the frequencies of
        the cosines: of type 2, k / (2 N d) for N samples of distance d. Lazy if the array is,
        otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> dct(xr.DataArray([1.0, 1.0], dims="x")).freq_x.values
    array([0.  , 0.25])
    """


@over_variables(spectral=True)
@inverse_waves
def idct() -> None:
    """Return the inverse of `dct`.

    Parameters
    ----------
    array, dim, type, norm, orthogonalize, overwrite_x, chunks, memory_limit, kernel
        As for `dct`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `ifft`.
    """


@over_variables(spectral=False)
@forward_waves
def dst() -> None:
    """Return the sine transform along some dimensions.

    Parameters
    ----------
    array, dim, type, norm, orthogonalize, overwrite_x, chunks, memory_limit, kernel
        As for `dct`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `dct`.
    """


@over_variables(spectral=True)
@inverse_waves
def idst() -> None:
    """Return the inverse of `dst`.

    Parameters
    ----------
    array, dim, type, norm, orthogonalize, overwrite_x, chunks, memory_limit, kernel
        As for `dct`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `ifft`.
    """


@over_variables(spectral=True)
@both_shifted
def fftshift() -> None:
    """Return the array with the frequency 0 in the middle, coordinates included.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        A spectrum in natural order, or several.
    dim : str or sequence of str, optional
        Dimensions; by default those of frequencies that a transform of this module has made.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        In the same chunks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@over_variables(spectral=True)
@both_shifted
def ifftshift() -> None:
    """Return the inverse of `fftshift`.

    Parameters
    ----------
    array, dim
        As for `fftshift`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `fftshift`.
    """

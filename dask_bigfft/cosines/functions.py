"""The cosine and sine transforms, called like those of `scipy.fft`.

Imports this room.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex, Unpack

import dask.array as da

from dask_bigfft.cosines.axes import cosine_transform
from dask_bigfft.planning.arguments import Options

__all__ = ["dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"]

Lengths = SupportsIndex | Sequence[SupportsIndex] | None
Axes = SupportsIndex | Sequence[SupportsIndex] | None


def dct(
    x: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the discrete cosine transform of one axis.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. Of complex input both parts are transformed.
    type : {1, 2, 3, 4}
        Type of the transform.
    n : int, optional
        Length of the transform: the axis is cropped or padded with zeros.
    axis : int
        The axis.
    norm : {"backward", "ortho", "forward"}, optional
        As `scipy.fft.dct` has it.
    overwrite_x, workers
        There for the signature's sake: the input stays as it is, and dask's scheduler decides.
    orthogonalize : bool, optional
        Whether the first or last values are scaled so that the matrix is orthogonal; by default
        with ``norm="ortho"``. Of complex input, too, where SciPy takes no notice of it.
    **options
        `chunks` of the result, `memory_limit` and `kernel`, as transforms in `fft` take them.

    Returns
    -------
    dask.array.Array
        Lazy, real for real input; of single precision where the input is, else of double (or long
        double) precision.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Notes
    -----
    An axis that falls apart goes through an FFT: types II and III of N real points (J. Makhoul,
    IEEE Trans. Acoust. Speech Signal Process. 28, 1980), type IV of N/2 complex points (of N real
    ones where N is odd), type I of 2(N - 1) or 2(N + 1) real points. Exchanges move no more bytes
    than those of `rfft` (type I: twice as many). Where the FFT's own length is a large prime or has
    one as a factor, the sum of the definition becomes a convolution of 2N - 1 points (L. I.
    Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970), which moves what `rfft` of a prime length
    does. With type I that is so for N - 1 or N + 1, whatever N itself may be: a length of 8,192
    moves 4.3 times what `rfft` of that length does, 8,193 twice.

    Examples
    --------
    >>> dct([1.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([2.    , 1.8478, 1.4142, 0.7654])
    """
    return cosine_transform("dct", x, type, n, axis, norm, workers, orthogonalize, options)


def idct(
    x: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the inverse of `dct`.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, **options
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> idct([4.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.5, 0.5, 0.5, 0.5])
    """
    return cosine_transform("idct", x, type, n, axis, norm, workers, orthogonalize, options)


def dst(
    x: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the discrete sine transform of one axis.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, **options
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> dst([1.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.7654, 1.4142, 1.8478, 2.    ])
    """
    return cosine_transform("dst", x, type, n, axis, norm, workers, orthogonalize, options)


def idst(
    x: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the inverse of `dst`.

    Parameters
    ----------
    x, type, n, axis, norm, overwrite_x, workers, orthogonalize, **options
        As `dct` takes them.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> idst([4.0, 0.0, 0.0, 0.0]).compute().round(4)
    array([0.3827, 0.9239, 0.9239, 0.3827])
    """
    return cosine_transform("idst", x, type, n, axis, norm, workers, orthogonalize, options)


def dctn(
    x: Any,
    type: int = 2,
    s: Lengths = None,
    axes: Axes = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the discrete cosine transform of several axes.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, **options
        As `dct` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `dct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> dctn([[1.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[4.    , 2.8284],
           [2.8284, 2.    ]])
    """
    return cosine_transform("dctn", x, type, s, axes, norm, workers, orthogonalize, options)


def idctn(
    x: Any,
    type: int = 2,
    s: Lengths = None,
    axes: Axes = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the inverse of `dctn`.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, **options
        As `idct` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `idct` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> idctn([[4.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[0.25, 0.25],
           [0.25, 0.25]])
    """
    return cosine_transform("idctn", x, type, s, axes, norm, workers, orthogonalize, options)


def dstn(
    x: Any,
    type: int = 2,
    s: Lengths = None,
    axes: Axes = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the discrete sine transform of several axes.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, **options
        As `dst` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `dst` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> dstn([[1.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[2.    , 2.8284],
           [2.8284, 4.    ]])
    """
    return cosine_transform("dstn", x, type, s, axes, norm, workers, orthogonalize, options)


def idstn(
    x: Any,
    type: int = 2,
    s: Lengths = None,
    axes: Axes = None,
    norm: str | None = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    *,
    orthogonalize: bool | None = None,
    **options: Unpack[Options],
) -> da.Array:
    """Return the inverse of `dstn`.

    Parameters
    ----------
    x, type, norm, overwrite_x, workers, orthogonalize, **options
        As `idst` takes them.
    s : int or sequence of int, optional
        Length of the transform along each of `axes`.
    axes : int or sequence of int, optional
        The axes, by default all, or the last ``len(s)``.

    Returns
    -------
    dask.array.Array
        As `idst` does.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> idstn([[4.0, 0.0], [0.0, 0.0]]).compute().round(4)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    return cosine_transform("idstn", x, type, s, axes, norm, workers, orthogonalize, options)

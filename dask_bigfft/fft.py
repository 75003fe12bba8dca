"""The transforms of `numpy.fft` on dask arrays of any chunking.

Every function takes what its namesake in `numpy.fft` (or `scipy.fft`) takes and returns a lazy dask
array. Keyword-only extras that all transforms have are described in each; their defaults are
settings (``bigfft.order`` and so on in `dask.config`). A decorator writes the parameters that are
shared into docstrings and signatures; static tools find them in `Extras`.

Imports `front`, `cosines`, `frequencies` and `shifts`.
"""

from typing import Any, SupportsIndex, Unpack

import dask.array as da
import scipy.fft

from dask_bigfft.cosines import dct, dctn, dst, dstn, idct, idctn, idst, idstn
from dask_bigfft.errors import ArgumentTypeError, parse_flag, refuse
from dask_bigfft.frequencies import fftfreq, frequencies_of, rfftfreq
from dask_bigfft.front import Axes, Axis, N, Norm, S, documented, transform
from dask_bigfft.planning.arguments import Extras
from dask_bigfft.shifts import fftshift, ifftshift

__all__ = ["fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "rfft", "rfft2", "rfftn"]
__all__ += ["hfft", "hfft2", "hfftn", "ihfft", "ihfft2", "ihfftn", "irfft2", "irfftn"]
__all__ += ["dct", "dctn", "dst", "dstn", "fftshift", "idct", "idctn", "idst", "idstn", "ifftshift"]
__all__ += ["fftfreq", "frequencies_of", "next_fast_len", "rfftfreq"]


@documented
def fft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the discrete Fourier transform of one axis.

    Examples
    --------
    >>> fft([1 + 0j, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    return transform("fft", a, n, axis, norm, out, kw)


@documented
def ifft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the inverse of `fft`.

    Examples
    --------
    >>> ifft([4 + 0j, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    return transform("ifft", a, n, axis, norm, out, kw)


@documented
def rfft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the frequencies 0 to n//2 of the transform of real input.

    Examples
    --------
    >>> rfft([1, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j])
    """
    return transform("rfft", a, n, axis, norm, out, kw)


@documented
def irfft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the real inverse of `rfft`.

    Examples
    --------
    >>> irfft([4, 0, 0]).compute()
    array([1., 1., 1., 1.])
    """
    return transform("irfft", a, n, axis, norm, out, kw)


@documented
def hfft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the real transform of a signal with Hermitian symmetry, given as its first half.

    Examples
    --------
    >>> hfft([1, 0, 0]).compute()
    array([1., 1., 1., 1.])
    """
    return transform("hfft", a, n, axis, norm, out, kw)


@documented
def ihfft(
    a: Any, n: N = None, axis: Axis = -1, norm: Norm = None, out: None = None, **kw: Unpack[Extras]
) -> da.Array:
    """Return the inverse of `hfft`: half of a signal with Hermitian symmetry.

    Examples
    --------
    >>> ihfft([4, 0, 0, 0]).real.compute()
    array([1., 1., 1.])
    """
    return transform("ihfft", a, n, axis, norm, out, kw)


@documented
def fft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the discrete Fourier transform of two axes, by default the last.

    Examples
    --------
    >>> fft2([[1 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("fft2", a, s, axes, norm, out, extras)


@documented
def ifft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the inverse of `fft2`.

    Examples
    --------
    >>> ifft2([[4 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("ifft2", a, s, axes, norm, out, extras)


@documented
def rfft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return half the transform of real input over two axes, by default the last.

    Examples
    --------
    >>> rfft2([[1, 0, 0], [0, 0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("rfft2", a, s, axes, norm, out, extras)


@documented
def irfft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the real inverse of `rfft2`.

    Examples
    --------
    >>> irfft2([[4, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("irfft2", a, s, axes, norm, out, extras)


@documented
def hfft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the real transform of half a signal with Hermitian symmetry in two axes.

    Examples
    --------
    >>> hfft2([[1, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("hfft2", a, s, axes, norm, out, extras)


@documented
def ihfft2(
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the inverse of `hfft2`.

    Examples
    --------
    >>> ihfft2([[4, 0], [0, 0]]).real.compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("ihfft2", a, s, axes, norm, out, extras)


@documented
def fftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the discrete Fourier transform of several axes, by default all.

    Examples
    --------
    >>> fftn([[1 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("fftn", a, s, axes, norm, out, extras)


@documented
def ifftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the inverse of `fftn`.

    Examples
    --------
    >>> ifftn([[4 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("ifftn", a, s, axes, norm, out, extras)


@documented
def rfftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return half the transform of real input over several axes, by default all.

    Examples
    --------
    >>> rfftn([[1, 0, 0], [0, 0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return transform("rfftn", a, s, axes, norm, out, extras)


@documented
def irfftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the real inverse of `rfftn`.

    Examples
    --------
    >>> irfftn([[4, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("irfftn", a, s, axes, norm, out, extras)


@documented
def hfftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the real transform of half a signal with Hermitian symmetry in several axes.

    Examples
    --------
    >>> hfftn([[1, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("hfftn", a, s, axes, norm, out, extras)


@documented
def ihfftn(
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    """Return the inverse of `hfftn`.

    Examples
    --------
    >>> ihfftn([[4, 0], [0, 0]]).real.compute()
    array([[1., 1.],
           [1., 1.]])
    """
    return transform("ihfftn", a, s, axes, norm, out, extras)


def next_fast_len(target: SupportsIndex, real: bool = False) -> int:
    """Return the smallest length of at least `target` whose transform is fast.

    Parameters
    ----------
    target : int
        The least length wanted.
    real : bool
        Whether real data are transformed: then only factors 2, 3 and 5 are taken, otherwise also
        7 and 11.

    Returns
    -------
    int
        What `scipy.fft.next_fast_len` returns. From 1331 on such lengths fall apart into two
        digits well enough for transposed order.

    Examples
    --------
    >>> next_fast_len(10007), next_fast_len(10007, real=True)
    (10080, 10125)
    """
    real = parse_flag("real", real)
    try:
        return int(scipy.fft.next_fast_len(target, real))
    except TypeError:
        refuse("target", target, "an integer of at least 1", kind=ArgumentTypeError)
    except (ValueError, OverflowError):
        refuse("target", target, "an integer of at least 1")

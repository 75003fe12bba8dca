"""The transforms of `numpy.fft` on dask arrays of any chunking.

Every function has the arguments of its namesake in `numpy.fft` or `scipy.fft` and returns a lazy
dask array. Further keyword-only arguments have settings as defaults (``bigfft.order`` and so on in
`dask.config`).
"""

# The source of a transform is a name and a docstring; a decorator adds one of three signatures and
# the description of shared parameters.

from typing import Any, SupportsIndex, Unpack

import dask.array as da
import scipy.fft

from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.calls import Axes, N, Norm, S, transform, transforms_by
from dask_bigfft.cosines import dct, dctn, dst, dstn, idct, idctn, idst, idstn
from dask_bigfft.errors import parse_count, parse_flag
from dask_bigfft.frequencies import fftfreq, frequencies_of, rfftfreq
from dask_bigfft.shifts import fftshift, ifftshift
from dask_bigfft.transforms.factors import MAX_LENGTH

__all__ = ["fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "rfft", "rfft2", "rfftn"]
__all__ += ["hfft", "hfft2", "hfftn", "ihfft", "ihfft2", "ihfftn", "irfft2", "irfftn"]
__all__ += ["dct", "dctn", "dst", "dstn", "fftshift", "idct", "idctn", "idst", "idstn", "ifftshift"]
__all__ += ["fftfreq", "frequencies_of", "next_fast_len", "rfftfreq"]
__dir__ = __all__.copy  # so that completion shows these names alone


@transforms_by
def _over_one_axis(
    name: str,
    a: Any,
    n: N = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    return transform(name, a, n, axis, norm, out, extras)


@transforms_by
def _over_two_axes(
    name: str,
    a: Any,
    s: S = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    return transform(name, a, s, axes, norm, out, extras)


@transforms_by
def _over_several_axes(
    name: str,
    a: Any,
    s: S = None,
    axes: Axes = None,
    norm: Norm = None,
    out: None = None,
    **extras: Unpack[Extras],
) -> da.Array:
    return transform(name, a, s, axes, norm, out, extras)


@_over_one_axis
def fft() -> None:
    """Return the discrete Fourier transform of one axis.

    Examples
    --------
    >>> fft([1 + 0j, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """


@_over_one_axis
def ifft() -> None:
    """Return the inverse of `fft`.

    Examples
    --------
    >>> ifft([4 + 0j, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """


@_over_one_axis
def rfft() -> None:
    """Return the frequencies 0 to n//2 of the transform of real input.

    Examples
    --------
    >>> rfft([1, 0, 0, 0]).compute()
    array([1.+0.j, 1.+0.j, 1.+0.j])
    """


@_over_one_axis
def irfft() -> None:
    """Return the real inverse of `rfft`.

    Examples
    --------
    >>> irfft([4, 0, 0]).compute()
    array([1., 1., 1., 1.])
    """


@_over_one_axis
def hfft() -> None:
    """Return the real transform of a signal with Hermitian symmetry, given as its first half.

    Examples
    --------
    >>> hfft([1, 0, 0]).compute()
    array([1., 1., 1., 1.])
    """


@_over_one_axis
def ihfft() -> None:
    """Return the inverse of `hfft`: half of a signal with Hermitian symmetry.

    Examples
    --------
    >>> ihfft([4, 0, 0, 0]).real.compute()
    array([1., 1., 1.])
    """


@_over_two_axes
def fft2() -> None:
    """Return the discrete Fourier transform of two axes, by default the last.

    Examples
    --------
    >>> fft2([[1 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_two_axes
def ifft2() -> None:
    """Return the inverse of `fft2`.

    Examples
    --------
    >>> ifft2([[4 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_two_axes
def rfft2() -> None:
    """Return half the transform of real input over two axes, by default the last.

    Examples
    --------
    >>> rfft2([[1, 0, 0], [0, 0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_two_axes
def irfft2() -> None:
    """Return the real inverse of `rfft2`.

    Examples
    --------
    >>> irfft2([[4, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """


@_over_two_axes
def hfft2() -> None:
    """Return the real transform of half a signal with Hermitian symmetry in two axes.

    Examples
    --------
    >>> hfft2([[1, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """


@_over_two_axes
def ihfft2() -> None:
    """Return the inverse of `hfft2`.

    Examples
    --------
    >>> ihfft2([[4, 0], [0, 0]]).real.compute()
    array([[1., 1.],
           [1., 1.]])
    """


@_over_several_axes
def fftn() -> None:
    """Return the discrete Fourier transform of several axes, by default all.

    Examples
    --------
    >>> fftn([[1 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_several_axes
def ifftn() -> None:
    """Return the inverse of `fftn`.

    Examples
    --------
    >>> ifftn([[4 + 0j, 0], [0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_several_axes
def rfftn() -> None:
    """Return half the transform of real input over several axes, by default all.

    Examples
    --------
    >>> rfftn([[1, 0, 0], [0, 0, 0]]).compute()
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """


@_over_several_axes
def irfftn() -> None:
    """Return the real inverse of `rfftn`.

    Examples
    --------
    >>> irfftn([[4, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """


@_over_several_axes
def hfftn() -> None:
    """Return the real transform of half a signal with Hermitian symmetry in several axes.

    Examples
    --------
    >>> hfftn([[1, 0], [0, 0]]).compute()
    array([[1., 1.],
           [1., 1.]])
    """


@_over_several_axes
def ihfftn() -> None:
    """Return the inverse of `hfftn`.

    Examples
    --------
    >>> ihfftn([[4, 0], [0, 0]]).real.compute()
    array([[1., 1.],
           [1., 1.]])
    """


def next_fast_len(target: SupportsIndex, real: bool = False) -> int:
    """Return the smallest length of at least `target` whose transform is fast.

    Parameters
    ----------
    target : int
        The least length wanted.
    real : bool
        True for real data: only factors 2, 3 and 5 are used, otherwise also 7 and 11.

    Returns
    -------
    int
        The result of `scipy.fft.next_fast_len`. From 1331 on such lengths have two digits in
        transposed order.

    Examples
    --------
    >>> next_fast_len(10007), next_fast_len(10007, real=True)
    (10080, 10125)
    """
    length = parse_count("target", target, 1, MAX_LENGTH // 4)
    return int(scipy.fft.next_fast_len(length, parse_flag("real", real)))

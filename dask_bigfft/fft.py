"""The transforms of `numpy.fft` on dask arrays of any chunking.

Every function takes what its namesake in `numpy.fft` (or `scipy.fft`) takes, returns a lazy dask
array, and has these keyword-only extras:

order : {"natural", "transposed"} or one per axis
    Order of the spectrum: of the result of `fft`, `rfft` and `hfft`, of the input of their
    inverses. Transposed order saves an exchange; `dask_bigfft.transposed_index` tells what lies
    where.
chunks : "auto", "preserve" or dask chunks
    Chunks of the result: what the last round gives (default), the input's, or any.
memory_limit : int or str
    Bytes that one process may use, such as ``"4 GiB"``. A plan that needs more is refused.
rounds : sequence of mappings of axis to factor
    The decomposition, where the planner should not choose it: ``[{0: 64}, {0: 64, 1: -1}]``.
variant : {"auto", "dif", "dit", "stockham", "pease"}
    Data movement within a split axis.
kernel : str
    FFT library that works inside blocks.

Their defaults are settings (``bigfft.order`` and so on in `dask.config`).
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning import make_plan, parse_array

Axes = Sequence[SupportsIndex] | None
Lengths = Sequence[SupportsIndex | None] | None
Norm = str | None


def transform(
    x: Any, kind: str, n_or_s: Any, axis_or_axes: Any, norm: Norm, options: dict[str, Any]
) -> da.Array:
    """Return the lazy result of a transform named by its kind."""
    array = parse_array(x)
    found = make_plan(array, kind, n_or_s, axis_or_axes, norm, **options)
    result = transformed_array(array, found, config.get("bigfft.exchange.carrier"))
    half = array.dtype == np.float16 and found.spec.kind == "c2r"
    return result.astype(np.float16) if half else result


def plan(
    x: Any,
    kind: str = "fftn",
    *,
    n: SupportsIndex | None = None,
    s: Lengths = None,
    axis: SupportsIndex | None = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> Plan:
    """Return the plan of a transform, without touching data.

    Parameters
    ----------
    x : dask array or array-like
        Array that would be transformed.
    kind : str
        Name of the transform, such as ``"fftn"`` or ``"irfft"``.
    n, s, axis, axes, norm
        As the transform takes them.
    **options
        The extras that all transforms have, see `dask_bigfft.fft`.

    Returns
    -------
    Plan
        Print it, ask it to ``explain()``, or show it in a notebook.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_bigfft
    >>> x = da.zeros(4096, chunks=256, dtype=complex)
    >>> dask_bigfft.plan(x, "fft").notation
    '{X1} {X2}'
    """
    one = not kind.endswith(("2", "n"))
    return make_plan(
        parse_array(x), kind, n if one else s, axis if one else axes, norm, **options
    )


def fft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the one-dimensional discrete Fourier transform."""
    return transform(a, "fft", n, axis, norm, options)


def ifft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the inverse of `fft`."""
    return transform(a, "ifft", n, axis, norm, options)


def rfft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the transform of real input, frequencies 0 to n//2 only."""
    return transform(a, "rfft", n, axis, norm, options)


def irfft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the real inverse of `rfft`."""
    return transform(a, "irfft", n, axis, norm, options)


def hfft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the real transform of a signal with Hermitian symmetry."""
    return transform(a, "hfft", n, axis, norm, options)


def ihfft(
    a: Any,
    n: SupportsIndex | None = None,
    axis: SupportsIndex = -1,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return the inverse of `hfft`."""
    return transform(a, "ihfft", n, axis, norm, options)


def fft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `fft` does, over two axes."""
    return transform(a, "fft2", s, axes, norm, options)


def ifft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `ifft` does, over two axes."""
    return transform(a, "ifft2", s, axes, norm, options)


def rfft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `rfft` does, over two axes."""
    return transform(a, "rfft2", s, axes, norm, options)


def irfft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `irfft` does, over two axes."""
    return transform(a, "irfft2", s, axes, norm, options)


def hfft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `hfft` does, over two axes."""
    return transform(a, "hfft2", s, axes, norm, options)


def ihfft2(
    a: Any,
    s: Lengths = None,
    axes: Axes = (-2, -1),
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `ihfft` does, over two axes."""
    return transform(a, "ihfft2", s, axes, norm, options)


def fftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `fft` does, over any axes."""
    return transform(a, "fftn", s, axes, norm, options)


def ifftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `ifft` does, over any axes."""
    return transform(a, "ifftn", s, axes, norm, options)


def rfftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `rfft` does, over any axes."""
    return transform(a, "rfftn", s, axes, norm, options)


def irfftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `irfft` does, over any axes."""
    return transform(a, "irfftn", s, axes, norm, options)


def hfftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `hfft` does, over any axes."""
    return transform(a, "hfftn", s, axes, norm, options)


def ihfftn(
    a: Any,
    s: Lengths = None,
    axes: Axes = None,
    norm: Norm = None,
    **options: Any,
) -> da.Array:
    """Return what `ihfft` does, over any axes."""
    return transform(a, "ihfftn", s, axes, norm, options)


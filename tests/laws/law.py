"""What the laws share: a case run by the library, by SciPy, and exactly."""

import contextlib
import math
import warnings

import dask
import dask.array as da
import numpy as np
import scipy.fft

import dask_bigfft
import dask_bigfft.carriers.run
import dask_bigfft.kernels.loop
import dask_bigfft.transforms.layout
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.testing.faults import Faulty
from dask_bigfft.testing.oracles import exact_dft, exact_irdft, relative_l2
from dask_bigfft.transforms.layout import half
from dask_bigfft.transforms.spec import TransformSpec

#: Relative errors up to this many times SciPy's own are as good as SciPy's.
FACTOR = 1.5

# Below the lengths at which Bluestein's algorithm is ever chosen, SciPy sums a prime length
# directly, which is more accurate than any convolution; forced down there, ours is given this
# many eps more. At the lengths where SciPy uses Bluestein's algorithm too, there is none.
FORCED_BLUESTEIN = 4.0


def small_tiles(monkeypatch, nbytes):
    """Tiles so small that a block has many."""
    monkeypatch.setattr(dask_bigfft.transforms.layout, "TILE_BYTES", nbytes)
    monkeypatch.setattr(dask_bigfft.transforms.layout, "ROW_BYTES", 1)


def damaged(monkeypatch, damage, when):
    """Let FFT libraries answer wrongly when it is time."""
    monkeypatch.setattr(
        dask_bigfft.carriers.run,
        "get_library",
        lambda name: Faulty(get_library(name), damage, when),
    )


#: Settings for plans of small arrays: split as large ones are, with short axes in one block, and
#: as users have it, with whole transforms in one block.
PLANNED = {
    "split": {"bigfft.planner.whole-axis-floor": 1},
    "short axes whole": {},
    "whole": {"bigfft.planner.small": "64 MiB"},
}


@contextlib.contextmanager
def planned(how):
    """Small arrays are planned in one of the ways of `PLANNED`."""
    with dask.config.set({"scheduler": "sync", **PLANNED[how]}):
        yield


def call(case, x, **extra):
    """The lazy result of a case on a NumPy array."""
    array = da.from_array(x, chunks=case.chunks)
    function = getattr(dask_bigfft.fft, case.name)
    return function(
        array,
        **case.arguments,
        **case.options,
        **extra,
    )


def plan(case, x, **extra):
    array = da.from_array(x, chunks=case.chunks)
    return dask_bigfft.plan(
        array,
        case.name,
        **case.arguments,
        **case.options,
        **extra,
    )


def resized(x, length, axis):
    """The array cropped or padded with zeros to a length."""
    cropped = np.moveaxis(x, axis, -1)[..., :length]
    added = [(0, 0)] * (x.ndim - 1) + [(0, length - cropped.shape[-1])]
    return np.moveaxis(np.pad(cropped, added), -1, axis)


def exact_transform(
    name,
    x,
    lengths=None,
    axes=None,
    norm=None,
):
    """A transform of the interface of `numpy.fft` in long double; the name's ending is ignored."""
    family = name.rstrip("2n")
    forward = family in ("fft", "rfft", "hfft")
    to_real = family in ("irfft", "hfft")
    from_real = family in ("rfft", "ihfft")
    axes = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in axes)
    pairs = list(zip(axes, lengths or [None] * len(axes), strict=True))
    values = np.asarray(x).astype(np.longdouble if from_real else np.clongdouble)
    sign = -1 if forward else 1
    total = np.longdouble(1)
    if from_real:  # the real axis first, else last
        axis, length = pairs.pop()
        n = length or values.shape[axis]
        spectrum = exact_dft(resized(values, n, axis), axis, sign)
        values = resized(spectrum, n // 2 + 1, axis)
        total *= n
        pairs.reverse()
    for axis, length in pairs:
        if to_real and axis == axes[-1]:
            n = length or 2 * (values.shape[axis] - 1)
            values = exact_irdft(
                resized(values, n // 2 + 1, axis),
                n,
                axis,
                sign,
            )
        else:
            n = length or values.shape[axis]
            values = exact_dft(resized(values, n, axis), axis, sign)
        total *= n
    if norm == "ortho":
        return values / np.sqrt(total)
    return values / total if (norm == "forward") == forward else values


def exact(case, x):
    return exact_transform(
        case.family,
        x,
        case.lengths,
        case.axes,
        case.norm,
    )


def scipy_own(case, x):
    """SciPy's answer in the precision of the data."""
    spec = TransformSpec(
        "fftn",
        x.shape,
        x.dtype.str,
        "c2c",
        -1,
        "none",
        (),
        (),
        (),
        (),
    )
    values = x.astype(spec.work_dtype if x.dtype.kind == "c" else spec.real_dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(scipy.fft, case.name)(values, **case.arguments)


def full_spectrum(case, x):
    """The whole spectrum of a real forward transform, exactly and by SciPy."""
    spectrum = exact_transform(
        "fft",
        x,
        case.lengths,
        case.axes,
        case.norm,
    )
    work = np.float32 if x.dtype == np.float32 else np.float64
    return spectrum, scipy.fft.fftn(x.astype(work), **case.arguments)


def reordered(
    values,
    axes,
    lengths,
    orders,
    *,
    real_axis=None,
    digits=None,
):
    """A whole natural spectrum with some axes in transposed order, and half of the real one."""
    for axis, n, order in zip(axes, lengths, orders, strict=True):
        real = axis == real_axis
        if order == "transposed":
            named = None if digits is None else digits[axis]
            values = np.take(values, dask_bigfft.transposed_index(n, real=real, digits=named), axis)
        elif real:
            values = np.take(values, np.arange(half(n)), axis)
    return values


def amplification(case, x, expected):
    """How much larger the answer would be with the imaginary parts that real results drop.

    Those of the first and the middle frequency. SciPy drops them at once; where the real axis is
    split they are rounded with the rest before they fall away, which shows if they are far larger
    than what stays.
    """
    if case.kind != "c2r" or not expected.any():
        return 1.0
    size = float(np.linalg.norm(expected.astype(float)))
    axis = case.axes[-1]
    n = case.lengths[-1]
    values = np.asarray(x, np.complex128)
    for a, length in zip(case.axes, case.lengths, strict=True):
        values = resized(values, half(n) if a == axis else length, a)
    columns = np.take(values, [0, n // 2] if n % 2 == 0 else [0], axis)
    if len(case.axes) == 1:
        columns = columns.imag
    total = math.prod(case.lengths)
    unscaled = case.norm != "ortho" and (case.norm == "forward") != case.forward
    power = 0.5 if unscaled else 0.0 if case.norm == "ortho" else -0.5
    return float(np.hypot(1.0, np.linalg.norm(columns) * total**power / size))


def assert_as_good_as_scipy(
    ours,
    own,
    expected,
    allowance=1.0,
):
    """The law: relative L2 error at most 1.5 times SciPy's own, plus eps (times `allowance`)."""
    assert ours.shape == expected.shape
    assert ours.dtype == own.dtype
    eps = float(np.finfo(ours.dtype).eps)
    error = relative_l2(ours, expected)
    theirs = relative_l2(own, expected)
    assert error <= FACTOR * theirs + allowance * eps, (
        f"relative error {error / eps:.2f} eps, SciPy's own {theirs / eps:.2f} eps"
    )


def allowance(found_plan):
    """Eps beyond 1.5 times SciPy's own error."""
    forced = any(program.bluestein for program in found_plan.programs)
    return FORCED_BLUESTEIN if forced else 1.0


def geometry(exchange):
    """What an exchange does to places, whatever the digits that lie there.

    Two exchanges with the same geometry gather by the same pattern. Per axis: for each group that
    is stored after, where it was stored before, its length, and both cuts.
    """
    strides = []
    for before, after in zip(exchange.source.axes, exchange.target.axes, strict=True):
        was = {group.digits: (i, group.chunks) for i, group in enumerate(before.groups)}
        strides.append(
            tuple((was.get(group.digits), group.size, group.chunks) for group in after.groups)
        )
    return tuple(strides)

"""Every transform is as accurate as SciPy's, whatever the chunks, rounds, orders and variants.

Both are measured against a direct sum in long double.
"""

import itertools
import math

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from hypothesis import assume, given
from hypothesis import strategies as st
from laws.law import (
    PLANNED,
    allowance,
    amplification,
    assert_as_good_as_scipy,
    call,
    exact,
    full_spectrum,
    plan,
    planned,
    reordered,
    scipy_own,
)

import dask_bigfft
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.testing.oracles import EXTENDED
from dask_bigfft.testing.strategies import Case, cases, orders, random_array, round_cases

needs_extended = pytest.mark.skipif(not EXTENDED, reason="long double is no longer than double")

WAYS = st.sampled_from(list(PLANNED))


def check(case):
    x = case.array
    original = x.copy()
    y = call(case, x)
    transformed = y.compute()
    assert (y.shape, y.dtype) == (transformed.shape, transformed.dtype)
    expected = exact(case, x)
    bound = allowance(plan(case, x)) * amplification(case, x, expected)
    assert_as_good_as_scipy(
        transformed,
        scipy_own(case, x),
        expected,
        bound,
    )
    np.testing.assert_array_equal(x, original)


@given(case=cases(), how=WAYS)
def test_any_transform(tiles, case, how):
    with planned(how):
        check(case)


@given(case=cases(), how=WAYS, kernel=st.sampled_from(list(usable())))
def test_any_kernel(
    tiles,
    case,
    how,
    kernel,
):
    assume(np.result_type(case.array.dtype, np.complex64) in get_library(kernel).dtypes)
    with planned(how), dask.config.set({"bigfft.kernel": kernel}):
        check(case)


@given(case=cases(families=("rfft", "irfft"), max_axes=2))
def test_real_transforms_that_are_split(case):
    with planned("split"):
        check(case)


@given(case=round_cases())
def test_named_rounds(tiles, case):
    with planned("short axes whole"):
        check(case)


def check_transposed_result(case, wanted, digits=None):
    x = case.array
    if case.kind == "r2c":
        expected, own = full_spectrum(case, x)
        own = own.astype(np.result_type(np.complex64, own.dtype))
    else:
        expected = exact(case, x)
        own = scipy_own(case, x)
    real_axis = case.axes[-1] if case.kind == "r2c" else None
    expected = reordered(
        expected,
        case.axes,
        case.lengths,
        wanted,
        real_axis=real_axis,
        digits=digits,
    )
    own = reordered(
        own,
        case.axes,
        case.lengths,
        wanted,
        real_axis=real_axis,
        digits=digits,
    )
    options = {"order": wanted, "digits": named_digits(case, wanted, digits)}
    spectrum = call(case, x, **options).compute()
    bound = allowance(plan(case, x, **options)) * amplification(case, x, expected)
    assert_as_good_as_scipy(
        spectrum,
        own,
        expected,
        bound,
    )


@given(data=st.data(), case=cases(families=("fft", "rfft", "hfft"), max_axes=3), how=WAYS)
def test_results_in_transposed_order(data, case, how):
    with planned(how):
        check_transposed_result(case, data.draw(orders(len(case.axes)), label="order"))


def named_digits(case, wanted, digits):
    """The digits of the axes that are in transposed order, if any are named."""
    orders_of = dict(zip(case.axes, wanted, strict=True))
    return {a: d for a, d in (digits or {}).items() if orders_of[a] == "transposed"} or None


def factors_of(case):
    return {
        axis: tuple(named[axis] for named in case.rounds if axis in named) for axis in case.axes
    }


@given(data=st.data(), case=round_cases(families=("fft", "rfft", "hfft")))
def test_named_rounds_name_the_transposed_order(data, case):
    wanted = data.draw(orders(len(case.axes)), label="order")
    with planned("short axes whole"):
        check_transposed_result(case, wanted, factors_of(case))


def check_transposed_input(case, wanted, digits=None):
    """The inverse of a spectrum that lies in transposed order."""
    real_axis = case.axes[-1] if case.kind == "c2r" else None
    shape = list(case.shape)
    for axis, n in zip(case.axes, case.lengths, strict=True):
        shape[axis] = n
    if case.kind == "c2r":  # what is redundant has to agree: the spectrum of something real
        signal = random_array(shape, "f8", case.seed)
        whole = scipy.fft.fftn(signal, axes=case.axes)
        whole = whole.astype(np.complex64 if case.dtype in ("f4", "c8") else np.complex128)
    else:
        whole = random_array(shape, case.dtype, case.seed)
    fed = reordered(
        whole,
        case.axes,
        case.lengths,
        wanted,
        real_axis=real_axis,
        digits=digits,
    )
    natural = ("natural",) * len(case.axes)
    plain = reordered(
        whole,
        case.axes,
        case.lengths,
        natural,
        real_axis=real_axis,
    )
    array = da.from_array(fed, chunks=tuple(min(5, n) for n in fed.shape))
    function = getattr(dask_bigfft.fft, case.name)
    options = case.arguments | case.options | {"order": wanted}
    options["digits"] = named_digits(case, wanted, digits)
    bound = allowance(dask_bigfft.plan(array, case.name, **options))
    restored = function(array, **options).compute()
    assert_as_good_as_scipy(
        restored,
        scipy_own(case, plain),
        exact(case, plain),
        bound,
    )


@given(
    data=st.data(),
    case=cases(families=("ifft", "irfft", "ihfft"), max_axes=3, resize=False),
    how=WAYS,
)
def test_inverses_of_transposed_order(data, case, how):
    with planned(how):
        check_transposed_input(case, data.draw(orders(len(case.axes)), label="order"))


@given(data=st.data(), case=round_cases(families=("ifft", "irfft", "ihfft"), resize=False))
def test_named_rounds_of_inverses_of_transposed_order(data, case):
    wanted = data.draw(orders(len(case.axes)), label="order")
    digits = {axis: factors[::-1] for axis, factors in factors_of(case).items()}
    with planned("short axes whole"):
        check_transposed_input(case, wanted, digits)


def partitions(
    factors_by_axis,
    real_axis,
    *,
    last,
    rounds,
):
    """Every way to put the factors of all axes, in order, into exactly `rounds` rounds."""
    choices = []
    for axis, factors in factors_by_axis.items():
        places = list(itertools.combinations(range(rounds), len(factors)))
        if axis == real_axis:
            places = [p for p in places if (p[-1] == rounds - 1 if last else p[0] == 0)]
        choices.append([(axis, p, factors) for p in places])
    for chosen in itertools.product(*choices):
        factors_by_round = [{} for _ in range(rounds)]
        for axis, places, factors in chosen:
            for place, factor in zip(places, factors, strict=True):
                factors_by_round[place][axis] = factor
        if all(factors_by_round):
            yield tuple(factors_by_round)


@pytest.mark.pairs
@pytest.mark.parametrize("family", ["rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("real_factors", [(3, 5), (2, 5), (4, 3)])
@pytest.mark.parametrize("others", [((6,),), ((2, 3),), ((2, 2), (3,))])
def test_every_partition_of_a_split_real_axis(family, real_factors, others):
    """Real axis last and first in memory, alone or with the others split too."""
    for real_last in (True, False) if len(others) == 1 else (True,):
        ndim = 1 + len(others)
        places = list(range(ndim)) if real_last else list(range(ndim))[::-1]
        real_axis = places[-1]
        factors = dict(zip(places, [*others, real_factors], strict=True))
        lengths = {axis: math.prod(f) for axis, f in factors.items()}
        shape = [lengths[a] for a in range(ndim)]
        last = family in ("irfft", "hfft")
        if last:
            shape[real_axis] = shape[real_axis] // 2 + 1
        for count in (2, 3):
            for rounds in partitions(factors, real_axis, last=last, rounds=count):
                case = Case(
                    family=family,
                    shape=tuple(shape),
                    dtype="c16" if last else "f8",
                    chunks=tuple((n - n // 2, n // 2) if n > 1 else (1,) for n in shape),
                    axes=tuple(places),
                    lengths=tuple(lengths[a] for a in places),
                    norm="ortho",
                    variant="auto",
                    rounds=rounds,
                    seed=count,
                )
                with planned("short axes whole"):
                    check(case)


@needs_extended
@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("fft", 262147),
        ("rfft", 262147),
        ("ifft", 2**17),
        ("rfft", 2**17),
        ("fft", 3**10 * 2),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_long_axes_against_long_double(name, n, dtype):
    """The law without allowance, Bluestein's algorithm included (262147 is prime)."""
    x = random_array((n,), dtype, 1)
    if name != "rfft":
        x = x.astype(np.result_type(x.dtype, np.complex64))
    expected = getattr(scipy.fft, name)(x.astype(np.result_type(x.dtype, np.longdouble)))
    own = getattr(scipy.fft, name)(x)
    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1 << 16}):
        y = getattr(dask_bigfft.fft, name)(da.from_array(x, chunks=n // 15))
        assert_as_good_as_scipy(y.compute(), own, expected)

"""Averages over segments: where segments lie in blocks, memory limits and forecasts."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, MemoryLimitError
from dask_bigfft.testing.strategies import chunks_of, random_array

pytestmark = pytest.mark.usefixtures("sync")


@given(data=st.data(), n=st.integers(1, 200))
def test_every_segment_lies_in_one_block_or_across_one_edge(data, n):
    nperseg = data.draw(st.integers(1, n))
    noverlap = data.draw(st.integers(0, nperseg - 1))
    x = da.zeros(n, chunks=(data.draw(chunks_of(n)),))
    plan = signal.plan_segments(x, nperseg=nperseg, noverlap=noverlap)
    starts = [
        low + start for low, own in zip(plan.bounds, plan.inside, strict=False) for start in own
    ]
    for edge, own in zip(plan.bounds[1:], plan.across, strict=False):
        starts += [edge - (nperseg - 1) + start for start in own]
    assert sorted(starts) == [*range(0, n - nperseg + 1, nperseg - noverlap)]
    assert plan.count == len(starts)


@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_a_function_that_detrends_gets_segments_along_the_last_axis(axis):
    x = random_array((60, 70), "f8", 0)
    options = {"nperseg": 16, "detrend": lambda segments: segments - np.arange(16)}
    power = signal.welch(da.from_array(x, chunks=(25, 30)), axis=axis, **options)[1]
    _, expected = scipy.signal.welch(np.moveaxis(x, axis, -1), **options)
    np.testing.assert_allclose(power, np.moveaxis(expected, -1, axis), rtol=1e-10)


@pytest.mark.parametrize("nperseg", [2, 16])
@pytest.mark.parametrize("dtype", ["i2", "u1", "f4", "f8", "c16"])
def test_a_line_is_subtracted_from_samples_of_any_dtype(dtype, nperseg):
    x = random_array((3, 100), dtype, 0)
    options = {"nperseg": nperseg, "detrend": "linear", "window": "boxcar"}
    power = signal.welch(da.from_array(x, chunks=(2, 30)), **options)[1]
    _, expected = scipy.signal.welch(x, **options)
    error = 1e-12 if expected.dtype == "f8" else 1e-5  # of short integers, too
    np.testing.assert_allclose(power, expected, rtol=error, atol=error * 10)


@pytest.mark.parametrize("detrend", ["constant", "linear"])
@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_a_mean_that_exceeds_the_signal_leaves_no_rounding_errors(detrend, dtype):
    x = random_array((4096, 2), dtype, 1) + np.dtype(dtype).type(1e4)
    options = {"fs": 50, "nperseg": 512, "axis": 0, "detrend": detrend}
    _, power = signal.welch(da.from_array(x, chunks=(700, 2)), **options)
    wide = x.astype(np.result_type(dtype, "f8"))
    _, expected = scipy.signal.welch(wide, **options)
    assert power.dtype == np.float32
    largest = expected.max()
    np.testing.assert_allclose(power, expected, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("average", ["mean", "median"])
def test_memory_limits(average):
    x = da.ones(2**16, chunks=2**13)
    options = {"nperseg": 256, "average": average}
    plans = (signal.plan_segments(x, **options), signal.plan_segments(x, x + 1, **options))
    calls = (
        lambda **limit: signal.welch(x, **options, **limit),
        lambda **limit: signal.csd(x, x + 1, **options, **limit),
    )
    for plan, call in zip(plans, calls, strict=True):
        peak = plan.expected.peak_host
        call(memory_limit=peak)
        with pytest.raises(MemoryLimitError, match="memory_limit"):
            call(memory_limit=peak - 1)
        with dask.config.set({"bigfft.memory-limit": peak - 1}):
            with pytest.raises(MemoryLimitError, match="memory_limit"):
                call()
            with pytest.raises(MemoryLimitError, match="memory_limit"):
                signal.plan_segments(x, x + 1, **options)


def test_a_plan_shows_its_forecast():
    x = da.zeros((4, 2**16), chunks=(2, 2**13), dtype="f4")
    plan = signal.plan_segments(x, nperseg=512, noverlap=128, memory_limit="1 GiB")
    frequencies, power = signal.welch(x, nperseg=512, noverlap=128)
    assert (plan.shape, plan.frequencies) == (x.shape, len(frequencies))
    assert plan.expected.result == power.nbytes
    assert f"{plan.count} segments" in plan.explain()
    assert str(plan.count) in repr(plan)
    with pytest.raises(TypeError, match="nprseg"):
        signal.plan_segments(x, nprseg=512)


WINDOW = {"win": np.ones(10), "hop": 5, "fs": 1.0}


@pytest.mark.parametrize(("function", "options"), [("welch", {"nperseg": 8}), ("istft", WINDOW)])
def test_a_plan_by_blocks_explains_itself_as_other_plans_do(function, options):
    x = da.zeros((6, 64), chunks=(-1, 16), dtype="c16")
    plan = signal.plan_segments(x, function=function, **options)
    short = plan.explain()
    assert short == str(plan)
    labels = {line.split()[0] for line in short.splitlines() if not line.startswith(" ")}
    assert labels == {function, "steps", "memory", "why", "more"}
    assert "tiles" not in short
    assert "tiles" in plan.explain(details=True)
    assert f"memory    {format_bytes(plan.expected.peak_host)} of " in short
    assert function in plan._repr_html_()
    assert "explain" in dir(plan)
    assert not [name for name in dir(plan) if name.startswith("_")]
    with pytest.raises(TypeError, match="details"):
        plan.explain(details="all")


def test_blocks_are_only_read():
    x = random_array((3, 500), "f8", 0)
    x.flags.writeable = False
    lazy = da.from_array(x, chunks=(2, 90))
    for average in ("mean", "median"):
        signal.csd(lazy, lazy + 1, nperseg=40, average=average)[1].compute()
        signal.welch(lazy, nperseg=40, detrend=False, window="boxcar", average=average)[1].compute()


def test_an_fft_length_that_is_too_large_is_named():
    x = da.ones(2**16, chunks=2**13)
    with pytest.raises(MemoryLimitError, match="`nfft`=2147483648"):
        signal.welch(x, nfft=2**31, memory_limit="1 GiB")


PLANNED_WRONG = [
    ({"function": "fft"}, ArgumentError, "function"),
    ({"function": "csd"}, ArgumentError, "`y`"),
    ({"function": "welch", "y": np.ones(64)}, ArgumentError, "`y`"),
    ({"function": "stft", "win": np.ones(8), "fs": 1.0}, TypeError, "hop"),
    ({"function": "stft", "win": np.ones(8), "hop": 0, "fs": 1.0}, ArgumentError, "hop"),
]


@pytest.mark.parametrize(("changed", "kind", "named"), PLANNED_WRONG)
def test_wrong_arguments_of_plans_are_named(changed, kind, named):
    with pytest.raises(kind, match=named):
        signal.plan_segments(np.ones(64), **changed)


def test_an_empty_axis_is_named():
    empty = np.zeros((3, 0))
    for options in ({}, {"nperseg": 4}):
        with pytest.raises(ArgumentError, match=r"`x`.*at least one sample along axis 1"):
            signal.csd(empty, empty, **options)
        with pytest.raises(ArgumentError, match=r"`x`.*at least one sample along axis 0"):
            signal.welch(empty.T, axis=0, **options)
    assert signal.welch(empty.T, nperseg=2)[1].shape == (0, 2)

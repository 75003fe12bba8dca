"""Arrays with holes against astropy's convolution, and the power of known values."""

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, records

import dask_bigfft
from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.planner import cost
from dask_bigfft.signal import holes
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


KERNELS = st.sampled_from([1, 2, 3, 4, 7])


@st.composite
def fields(
    draw,
    dtype,
    most=30,
):
    """Return an array with holes, and its chunks."""
    ndim = draw(st.integers(1, 3))
    longest = {1: 60, 2: most, 3: 9}[ndim]
    shape = [draw(st.integers(1, longest)) for _ in range(ndim)]
    x = random_array(
        shape,
        dtype,
        draw(st.integers(0, 9)),
    )
    if x.dtype.kind == "f":
        holes = np.random.default_rng(1).random(shape)
        x[holes < draw(st.sampled_from([0, 0.3, 0.8, 1.1]))] = np.nan
        x[(holes > 0.5) & (holes < 0.55)] = np.inf
    return x, draw(chunkings(shape))


def require_close(
    result,
    expected,
    dtype,
):
    """Fail where values differ by more than rounding errors."""
    assert result.dtype == ("f4" if dtype == "f4" else "f8")
    values = result.compute()
    assert values.shape == expected.shape
    error = 2e-4 if dtype == "f4" else 1e-9
    np.testing.assert_allclose(
        values,
        expected,
        rtol=error,
        atol=error * 10,
    )


@CASES
@given(data=st.data(), dtype=st.sampled_from(["f8", "f4", "i2"]))
def test_convolutions_are_those_of_astropy(data, dtype):
    convolution = pytest.importorskip("astropy.convolution")
    x, chunks = data.draw(fields(dtype))
    sizes = [data.draw(KERNELS) for _ in x.shape]
    boundary = data.draw(st.sampled_from(["fill", "wrap"]))
    if boundary == "wrap":
        sizes = [
            min(pair)
            for pair in zip(
                sizes,
                x.shape,
                strict=True,
            )
        ]
    kernel = (
        random_array(
            sizes,
            "f8",
            3,
        )
        ** 2
        + 0.1
    )
    treatment = data.draw(st.sampled_from(["interpolate", "fill"]))
    fills = [0.0, 2.5]
    if treatment == "interpolate":
        fills.append(np.nan)
    options = {
        "boundary": boundary,
        "nan_treatment": treatment,
        "fill_value": data.draw(st.sampled_from(fills)),
        "preserve_nan": data.draw(st.booleans()),
        "normalize_kernel": data.draw(st.sampled_from([True, False, np.max])),
        "min_wt": data.draw(st.sampled_from([0.1, 0.4])),
    }
    mask = None
    if data.draw(st.booleans()):
        mask = np.random.default_rng(2).random(x.shape) < 0.2
    wide = x.astype("f8")
    expected = convolution.convolve_fft(
        wide,
        kernel,
        mask=mask,
        **options,
    )
    result = signal.convolve_masked(
        da.from_array(x, chunks),
        kernel,
        mask,
        **options,
    )
    require_close(
        result,
        expected,
        dtype,
    )


@pytest.mark.parametrize("memory_limit", ["8 MiB", "1 GiB"])
def test_a_periodic_array_of_prime_length(memory_limit):
    """Its cyclic transform takes more memory than the smaller limit."""
    n = 200_003
    x = np.sin(np.arange(n) * 0.01)
    kernel = np.array([1.0, 2.0, 4.0, 1.0])
    means = signal.convolve_masked(
        da.from_array(x, 20_000),
        kernel,
        boundary="wrap",
        memory_limit=memory_limit,
        device="cpu",
    )
    expected = sum(h * np.roll(x, lag - 2) for lag, h in enumerate(kernel)) / kernel.sum()
    np.testing.assert_allclose(means, expected, atol=1e-9)


@pytest.mark.parametrize("masked", [True, False])
def test_stored_arrays_are_read_in_blocks_that_fill_the_limit(masked, tmp_path):
    x = random_array((64, 32, 32), "f4", 0)
    mask = np.random.default_rng(1).random((64, 1, 32)) < 0.2
    in_memory = da.from_array(x if masked else np.where(mask, np.nan, x), chunks=(1, 32, 32))
    in_memory.to_zarr(tmp_path / "x.zarr")
    stored = da.from_zarr(tmp_path / "x.zarr")
    options = {"kernel": np.ones((5, 3, 3)), "mask": mask if masked else None}
    limited = {**options, "memory_limit": "512 kiB", "device": "cpu"}
    with dask.config.set(scheduler="threads", num_workers=1):
        plan = dask_bigfft.plan(stored, "convolve_masked", **limited)
        means = signal.convolve_masked(stored, **limited).compute()
    assert plan.storage == "disk"
    assert max(plan.chunks[1]) > 2
    expected = signal.convolve_masked(in_memory, **options)
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_the_forecast_counts_the_tasks_of_small_blocks(masked):
    x = da.zeros((4096, 1024), chunks=(4, 1024))
    options = {"kernel": np.ones((3, 3)), "device": "cpu"}
    if masked:
        options["mask"] = da.zeros(x.shape, dtype=bool, chunks=x.chunks)
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = dask_bigfft.plan(x, "convolve_masked", **options)
        tasks = len(signal.convolve_masked(x, **options).__dask_graph__())
    counted = plan.expected.tasks + holes.TASKS_OF_BLOCK * 1024
    assert tasks <= counted <= 3 * tasks
    without_tasks = cost.forecast(plan).peak_host
    assert plan.expected.peak_host - without_tasks == counted * cost.TASK_NBYTES
    on_cluster = plan.changed(machine=replace(plan.machine, workers=2))
    assert cost.graph_nbytes(on_cluster, counted) == 0


def test_results_without_any_weight_are_0_or_nan():
    x = np.array([1.0, np.nan, np.nan, np.nan, 3.0])
    a = da.from_array(x, chunks=2)
    smooth = signal.convolve_masked(a, [1.0, 1.0, 1.0]).compute()
    np.testing.assert_allclose(
        smooth,
        [0.5, 1, 0, 3, 1.5],
        atol=1e-12,
    )
    least = signal.convolve_masked(
        a,
        [1.0, 1.0, 1.0],
        min_wt=1e-6,
    ).compute()
    np.testing.assert_allclose(
        least,
        [0.5, 1, np.nan, 3, 1.5],
        atol=1e-12,
    )


def test_a_kernel_of_sum_0_differs_the_filled_values():
    x = np.array([1.0, 2.0, 4.0, np.nan, 8.0])
    kernel = np.array([1.0, -1.0, 0.0])
    options = {"normalize_kernel": False}
    result = signal.convolve_masked(
        da.from_array(x, 2),
        kernel,
        nan_treatment="fill",
        **options,
    )
    np.testing.assert_allclose(
        result,
        [1, 2, -4, 8, -8],
        atol=1e-12,
    )
    with pytest.raises(ArgumentError, match="kernel"):
        signal.convolve_masked(
            x,
            kernel,
            **options,
        )


# --- spectra --------------------------------------------------------------------------------


def power_of_known(
    x,
    mask,
    axes,
    *,
    spacing,
    is_density,
    onesided,
):
    """Return the power spectrum of the known values of an array, by its definition."""
    known = np.where(mask, 0, x.astype("c16"))
    power = np.abs(np.fft.fftn(known, axes=axes)) ** 2
    for axis, distance in zip(axes, spacing, strict=True):
        n = x.shape[axis]
        power *= distance / n if is_density else n**-2
    if x.dtype.kind != "c":
        n = x.shape[axes[-1]]
        half = np.moveaxis(power, axes[-1], 0)[: n // 2 + 1]
        if onesided:
            half[1 : (n + 1) // 2] *= 2
        power = np.moveaxis(half, 0, axes[-1])
    weight = np.broadcast_to(~mask, x.shape)
    share = weight.mean(axis=tuple(axes), keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return power / share


@CASES
@given(data=st.data(), record=records(most=3))
def test_the_power_of_known_values(data, record):
    x, chunks, _ = record
    axes = data.draw(st.permutations(range(x.ndim)))
    axes = axes[: data.draw(st.integers(1, x.ndim))]
    options = {
        "spacing": [0.5 + axis for axis in axes],
        "is_density": data.draw(st.booleans()),
        "onesided": data.draw(st.booleans()),
    }
    mask_shape = [data.draw(st.sampled_from([n, n, 1])) for n in x.shape]
    share = data.draw(st.sampled_from([0, 0.3, 0.9]))
    mask = np.random.default_rng(3).random(mask_shape) < share
    damaged = x
    if x.dtype.kind != "i":
        damaged = np.where(
            mask,
            x.dtype.type(np.nan),
            x,
        )
    power = signal.power_spectrum(
        da.from_array(damaged, chunks),
        axes,
        d=options["spacing"],
        scaling="density" if options["is_density"] else "spectrum",
        onesided=options["onesided"],
        mask=mask,
    )
    expected = power_of_known(
        x,
        mask,
        axes,
        **options,
    )
    is_single = x.dtype.char in "fF"
    assert power.dtype == ("f4" if is_single else "f8")
    assert power.shape == expected.shape
    scale = np.nanmax(np.abs(expected), initial=1e-9)
    np.testing.assert_allclose(
        power.compute(),
        expected,
        rtol=0,
        atol=scale * (1e-5 if is_single else 1e-12),
    )


REFUSED = [
    (
        signal.convolve_masked,
        {"x": np.ones(3) * 1j},
        ArgumentTypeError,
        "`x`",
    ),
    (
        signal.convolve_masked,
        {"mask": np.ones(4)},
        ArgumentTypeError,
        "mask",
    ),
    (
        signal.convolve_masked,
        {"mask": np.ones(4, bool)},
        ArgumentError,
        "mask",
    ),
    (
        signal.convolve_masked,
        {"kernel": np.ones((2, 2))},
        ArgumentError,
        "kernel",
    ),
    (
        signal.convolve_masked,
        {"kernel": [1j]},
        ArgumentTypeError,
        "kernel",
    ),
    (
        signal.convolve_masked,
        {"kernel": da.ones(3)},
        ArgumentTypeError,
        "kernel",
    ),
    (
        signal.convolve_masked,
        {"kernel": [0.0, 0.0]},
        ArgumentError,
        "kernel",
    ),
    (
        signal.convolve_masked,
        {"kernel": np.ones(30), "boundary": "wrap"},
        ArgumentError,
        "kernel",
    ),
    (
        signal.convolve_masked,
        {"boundary": "extend"},
        ArgumentError,
        "boundary",
    ),
    (
        signal.convolve_masked,
        {"nan_treatment": "zero"},
        ArgumentError,
        "nan_treatment",
    ),
    (
        signal.convolve_masked,
        {"nan_treatment": "fill", "fill_value": np.nan},
        ArgumentError,
        "fill_value",
    ),
    (
        signal.convolve_masked,
        {"kernel": [1.0, -2.0, 1.0]},
        ArgumentError,
        "kernel.*sum 0.0",
    ),
    (
        signal.convolve_masked,
        {"kernel": [1.0, -2.0, 1.0], "normalize_kernel": np.sum},
        ArgumentError,
        "normalize_kernel.*returned 0.0",
    ),
    (
        signal.convolve_masked,
        {"normalize_kernel": lambda kernel: np.nan},
        ArgumentError,
        "normalize_kernel.*returned nan",
    ),
    (
        signal.convolve_masked,
        {"min_wt": np.nan},
        ArgumentError,
        "min_wt",
    ),
    (
        signal.convolve_masked,
        {"preserve_nan": 3},
        ArgumentTypeError,
        "preserve_nan",
    ),
    (
        signal.power_spectrum,
        {"mask": np.ones(4, bool)},
        ArgumentError,
        "mask",
    ),
]


@pytest.mark.parametrize(("function", "changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    function,
    changed,
    kind,
    named,
):
    arguments = {"x": da.ones(20, chunks=6), **changed}
    if function is signal.convolve_masked:
        arguments.setdefault("kernel", np.ones(3))
    with pytest.raises(kind, match=named):
        function(**arguments)

"""What becomes one plan with the forward transform, and what does not; see `guide/filters.md`."""

import dask
import dask.array as da
import numpy as np
import pytest
from lazy import plan_of

import dask_bigfft
from dask_bigfft import fft, signal
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

SHAPE = (12, 10)
HALF = (12, 6)
X = random_array(SHAPE, "f8", 0)
H = random_array(HALF, "f8", 1)


def lazy_x(chunks=4):
    return da.from_array(X, chunks=chunks)


def is_captured(array):
    return bool(plan_of(array).spec.transfer)


def expected_of(product, **back):
    return np.fft.irfftn(product, **{"s": SHAPE, "axes": (0, 1), **back})


def require_close(lazy, expected, error=1e-13):
    result = lazy.compute(scheduler="sync")
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * np.abs(expected).max())


def split(**settings):
    """Plans as for large arrays."""
    small = {"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}
    return dask.config.set({**small, **settings})


ADDED = 0.5 + random_array(HALF, "f8", 2)
MASK = ADDED > 0

#: Expressions that are captured, of a spectrum of NumPy or of dask.
CAPTURED = {
    "array": lambda y: y * H,
    "array first": lambda y: H * y,
    "quotient": lambda y: y / (2 + H**2),
    "sum": lambda y: y * H + ADDED,
    "conjugate": lambda y: np.conj(y) * H,
    "autocorrelation": lambda y: abs(y) ** 2,
    "function": lambda y: y * np.exp(-(H**2)),
    "mask": lambda y: np.where(MASK, y, 0),
    "last axis": lambda y: y * H[0],
    "first axis": lambda y: y * H[:, :1],
    "number": lambda y: 3 * y,
    "number of NumPy": lambda y: y * np.float32(3),
    "power": lambda y: y**2,
    "spectrum twice": lambda y: y * np.conj(y) + y,
    "phase": lambda y: y * np.exp(1j * np.angle(H + 0j)),
    "real part": lambda y: y.real * H + 2j * np.imag(y),
    "chain": lambda y: (y - ADDED) * H / 2 - y,
}


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("name", list(CAPTURED))
def test_captured(name, is_split):
    with split() if is_split else dask.config.set({}):
        lazy = fft.irfftn(CAPTURED[name](fft.rfftn(lazy_x())))
        assert is_captured(lazy)
        require_close(lazy, expected_of(CAPTURED[name](np.fft.rfftn(X))))


@pytest.mark.parametrize(
    "h",
    [
        da.from_array(H),
        da.from_array(H, chunks=(5, 4)),
        da.from_array(H, chunks=1).rechunk((3, 6)),
        da.from_array(np.asfortranarray(H), chunks=(5, 4)),
        da.from_array(np.repeat(H, 2, axis=0)[::2], chunks=(7, 2)),
        da.from_array(H, chunks=(5, 4)).persist(),
        np.exp(-da.from_array(H, chunks=5)),
    ],
)
def test_dask_arrays_that_are_in_memory(h):
    for y_chunks in (4, (6, 10)):
        with split():
            lazy = fft.irfftn(fft.rfftn(lazy_x(y_chunks)) * h)
            assert is_captured(lazy)
            require_close(lazy, expected_of(np.fft.rfftn(X) * h.compute()))


def test_chunks_that_change_between():
    with split():
        product = (fft.rfftn(lazy_x()).rechunk((5, 2)) * H).rechunk((2, 6)) + 1
        lazy = fft.irfftn(product.rechunk(6))
        assert is_captured(lazy)
        require_close(lazy, expected_of(np.fft.rfftn(X) * H + 1))


@pytest.mark.parametrize("chunks", [(5, 4), "preserve", "auto", {0: 6}])
def test_chunks_of_the_result(chunks):
    with split():
        product = fft.rfftn(lazy_x()) * H
        alone = fft.irfftn(product.persist(), chunks=chunks)
        lazy = fft.irfftn(product, chunks=chunks)
        assert is_captured(lazy)
        if chunks != "auto":
            assert lazy.chunks == alone.chunks
        require_close(lazy, expected_of(np.fft.rfftn(X) * H))


def lazily_made(values):
    """An array that is computed when the graph runs."""
    return da.from_array(values, chunks=4).map_blocks(lambda block: block)


def persisted(y):
    return (y.persist() * H,)


def in_other_precision(y):
    return (y.astype("c8") * H.astype("f4"),)


#: Products that are not captured: a name and a function of the lazy spectrum, for keywords of both
#: transforms.
UNCAPTURED = {
    "persisted": (lambda y: y.persist() * H, {}, {}),
    "other precision": (lambda y: (y * H).astype("c8"), {}, {}),
    "function of blocks": (lambda y: y.map_blocks(lambda block: 2 * block), {}, {}),
    "computed array": (lambda y: y * lazily_made(H), {}, {}),
    "slice": (lambda y: y[::-1] * H, {}, {}),
    "transposed": (lambda y: (y.T * H.T).T, {}, {}),
    "cumulative sum": (lambda y: y.cumsum(0), {}, {}),
    "shifted": (lambda y: fft.fftshift(y, 0) * H, {}, {}),
    "shifted back": (lambda y: fft.ifftshift(fft.fftshift(y, 0) * H, 0), {}, {}),
    "larger shape": (lambda y: (y * np.stack([H, H]))[0], {}, {}),
    "itself": (lambda y: y, {}, {}),
    "other lengths": (lambda y: y * H, {}, {"s": (12, 11)}),
    "other axes": (lambda y: y * H, {}, {"s": (10,), "axes": (1,)}),
    "band": (lambda y: y * H, {}, {"band_index": {0: (0, 12)}}),
    "another library": (lambda y: y * H, {"kernel": "scipy"}, {"kernel": "ducc0"}),
    "checks": (lambda y: y * H, {"verify": "energy"}, {}),
    "memory": (lambda y: y * H, {"memory_limit": "1 GiB"}, {}),
    "rounds": (lambda y: y * H, {}, {"rounds": [{0: 12, 1: 10}]}),
    "overwriting": (lambda y: y * H, {}, {"overwrite_x": True}),
}


@pytest.mark.parametrize("name", list(UNCAPTURED))
def test_not_captured(name):
    expression, there, back = UNCAPTURED[name]
    back = {"s": SHAPE, "axes": (0, 1), **back}
    product = expression(fft.rfftn(lazy_x(), **there))
    lazy = fft.irfftn(product, **back)
    assert not is_captured(lazy)
    options = {key: back[key] for key in ("s", "axes")}
    if name == "band":
        product = fft.ifftshift(product, 0)
    expected = np.fft.irfftn(product.compute(), **options)
    require_close(lazy, expected, 1e-6 if name == "other precision" else 1e-13)


def test_not_captured_in_transposed_order():
    with split():
        y = fft.fft(da.from_array(X.ravel(), chunks=12), order="transposed")
        lazy = fft.ifft(y * 2, order="transposed")
        assert not is_captured(lazy)
        require_close(lazy, 2 * X.ravel())


def test_forward_twice_is_not_captured():
    lazy = fft.fftn(fft.fftn(lazy_x()) * 2)
    assert not is_captured(lazy)
    require_close(lazy, np.fft.fftn(np.fft.fftn(X) * 2))


def test_a_shifted_input_is_not_captured():
    with split():
        lazy = fft.irfftn(fft.rfftn(fft.ifftshift(lazy_x())) * H)
        assert not is_captured(lazy)
        require_close(lazy, expected_of(np.fft.rfftn(np.fft.ifftshift(X)) * H))


def test_two_spectra_are_not_captured():
    lazy = fft.irfftn(fft.rfftn(lazy_x()) * np.conj(fft.rfftn(lazy_x(5) + 1)))
    assert not is_captured(lazy)
    require_close(lazy, expected_of(np.fft.rfftn(X) * np.conj(np.fft.rfftn(X + 1))))


def test_a_spectrum_in_a_variable_may_have_other_readers():
    y = fft.rfftn(lazy_x())
    assert "variable" in dask_bigfft.plan(y * H, "irfftn").explain()
    kept = fft.irfftn(y * H)
    assert not is_captured(kept)
    with dask.config.set({"bigfft.capture": "always"}):
        again = fft.irfftn(y * H)
        assert not is_captured(again)  # because the first one reads it
        assert "another transform" in " ".join(plan_of(again).explain().split())
    with dask.config.set({"bigfft.capture": "always"}):
        y = fft.rfftn(lazy_x())
        always = fft.irfftn(y * H)
    assert is_captured(always)
    for lazy in (kept, again, always):
        require_close(lazy, expected_of(np.fft.rfftn(X) * H))


def test_another_transform_reads_the_spectrum():
    with dask.config.set({"bigfft.capture": "always"}):
        y = fft.rfftn(lazy_x())
        unchanged = fft.irfftn(y)
        lazy = fft.irfftn(y * H)
    assert not is_captured(lazy)
    require_close(lazy, expected_of(np.fft.rfftn(X) * H))
    require_close(unchanged, X)


@pytest.mark.parametrize("is_split", [False, True])
def test_other_readers_get_the_same_spectrum(is_split):
    with split() if is_split else dask.config.set({}):
        product = fft.rfftn(lazy_x()) * H
        lazy = fft.irfftn(product)
        assert is_captured(lazy)
        result, values = dask.compute(lazy, product, scheduler="sync")
    expected = np.fft.rfftn(X) * H
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(result, expected_of(expected), atol=1e-12)


def test_long_chains_are_left_as_they_are():
    chain = fft.rfftn(lazy_x())
    for _ in range(1100):  # more than Python's limit of recursion
        chain = chain + 1
    lazy = fft.irfftn(chain)
    assert not is_captured(lazy)
    assert plan_of(lazy).spec.shape == HALF


@pytest.mark.parametrize(("count", "is_short"), [(100, True), (101, False)])
def test_the_length_of_chains_is_limited(count, is_short):
    chain = fft.rfftn(lazy_x())
    for _ in range(count):
        chain = chain + 1
    lazy = fft.irfftn(chain)
    assert is_captured(lazy) == is_short
    require_close(lazy, expected_of(np.fft.rfftn(X) + count))


def test_a_setting_turns_it_off():
    with dask.config.set({"bigfft.capture": "never"}):
        lazy = fft.irfftn(fft.rfftn(lazy_x()) * H)
    assert not is_captured(lazy)
    require_close(lazy, expected_of(np.fft.rfftn(X) * H))


def test_the_plan_says_so():
    product = fft.rfftn(lazy_x()) * H
    plan = dask_bigfft.plan(product, "irfftn")
    assert plan == plan_of(fft.irfftn(product))
    text = " ".join(plan.explain().split())
    assert "captured" in text
    assert "repeats" in text
    uncaptured = dask_bigfft.plan(product * lazily_made(H), "irfftn")
    assert "not captured" in " ".join(uncaptured.explain().split())


def test_values_that_are_not_finite_are_numpys():
    with np.errstate(all="ignore"):
        lazy = fft.irfftn(fft.rfftn(lazy_x()) * np.where(MASK, np.nan, H))
        assert is_captured(lazy)
        assert np.isnan(lazy.compute()).all()


@pytest.mark.parametrize("verify", ["energy", "checksum"])
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
def test_carriers_and_checks(carrier, verify, tmp_path):
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        spectrum = fft.rfftn(lazy_x(), verify=verify)
        product = CAPTURED["chain"](spectrum)
        del spectrum
        lazy = fft.irfftn(product, verify=verify)
        assert is_captured(lazy)
        require_close(lazy, expected_of(CAPTURED["chain"](np.fft.rfftn(X))))


@pytest.mark.parametrize("name", list(CAPTURED))
def test_tiles_of_a_device(name):
    with split(), simulated_devices(1):
        product = CAPTURED[name](fft.rfftn(lazy_x(), device="gpu"))
        lazy = fft.irfftn(product, device="gpu")
        assert is_captured(lazy)
        require_close(lazy, expected_of(CAPTURED[name](np.fft.rfftn(X))))


def test_as_the_filter_of_an_array():
    with split():
        lazy = fft.irfftn(fft.rfftn(lazy_x()) * H)
        filtered = signal.fourier_filter(lazy_x(), H)
        assert plan_of(lazy).notation == plan_of(filtered).notation
        np.testing.assert_array_equal(lazy.compute(), filtered.compute())

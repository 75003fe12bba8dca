"""What becomes one plan with the forward transform, and what does not; see `guide/filters.md`."""

import contextlib

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


#: Expressions with arrays that are computed when the graph runs.
COMPUTED = {
    "array": lambda y: y * lazily_made(H),
    "single precision": lambda y: lazily_made(H.astype("f4")) * y,
    "integers": lambda y: y * lazily_made((10 * H).astype("i4")),
    "mask": lambda y: np.where(lazily_made(MASK), y, 0),
    "last axis": lambda y: y * lazily_made(H[0]),
    "first axis": lambda y: y / (2 + lazily_made(H[:, :1]) ** 2),
    "mean": lambda y: (y - 1) * lazily_made(H).mean(axis=0),
    "two": lambda y: y * lazily_made(H) + lazily_made(ADDED.astype("f4")) + H,
    "not finite": lambda y: y * lazily_made(np.where(MASK, np.inf, H)),
    "shifted": lambda y: y * fft.ifftshift(da.from_array(H, chunks=4), 0),
    "frequencies": lambda y: y * da.exp(-(fft.rfftfreq(10) ** 2) - fft.fftfreq(12)[:, None] ** 2),
    "random": lambda y: y * da.random.default_rng(0).random(HALF, chunks=5),
}


@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("name", list(COMPUTED))
def test_dask_arrays_that_are_computed(name, carrier, tmp_path):
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places), np.errstate(all="ignore"):
        lazy = fft.irfftn(COMPUTED[name](fft.rfftn(lazy_x())))
        assert is_captured(lazy)
        product = COMPUTED[name](da.from_array(np.fft.rfftn(X))).compute(scheduler="sync")
        require_close(lazy, expected_of(product))


@pytest.mark.pairs
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize(
    ("shape", "shape_of_h"),
    [((1, 400, 400), (400, 201)), ((2, 66_000, 4), (66_000, 1)), ((4, 2, 400), (201,))],
)
@pytest.mark.parametrize("is_on_device", [False, True])
def test_a_large_array_that_is_computed(shape, shape_of_h, norm, is_on_device):
    x = random_array(shape, "f8", 0)
    h = random_array(shape_of_h, "c16", 1)
    devices = simulated_devices(1) if is_on_device else contextlib.nullcontext()
    options = {"axes": (1, 2), "norm": norm}
    with split(**{"bigfft.capture": "always", "scheduler": "sync"}), devices:
        device = {"device": "gpu" if is_on_device else "cpu"}
        chunks = (1, max(1, shape[1] // 3), shape[2] // 2)
        spectrum = fft.rfftn(da.from_array(x, chunks=chunks), **options, **device)
        lazy = fft.irfftn(spectrum * lazily_made(h), **options, **device)
        assert is_captured(lazy)
        result = lazy.compute()
    expected = np.fft.irfftn(np.fft.rfftn(x, **options) * h, **options)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


#: Axes whose frequency 0 is in the middle where the spectrum is multiplied, and its expression.
SHIFTED = {
    "first axis": ((0,), lambda y: y * H + ADDED),
    "computed": ((0,), lambda y: np.conj(y) * lazily_made(H)),
}


@pytest.mark.parametrize("name", list(SHIFTED))
@pytest.mark.parametrize("is_split", [False, True])
def test_a_shifted_spectrum(name, is_split):
    axes, expression = SHIFTED[name]
    with split() if is_split else dask.config.set({}):
        lazy = fft.irfftn(fft.ifftshift(expression(fft.fftshift(fft.rfftn(lazy_x()), axes)), axes))
        assert is_captured(lazy)
        product = expression(da.from_array(np.fft.fftshift(np.fft.rfftn(X), axes))).compute()
        require_close(lazy, expected_of(np.fft.ifftshift(product, axes)))


@pytest.mark.parametrize(("shape", "chunks"), [((13,), 4), ((7, 12), 3), ((1, 5, 6), (1, 2, 6))])
def test_a_shifted_spectrum_of_complex_values(shape, chunks):
    x = random_array(shape, "c16", 0)
    h = random_array(shape, "c16", 1)
    with split():
        centred = fft.fftshift(fft.fftn(da.from_array(x, chunks=chunks)))
        product = centred * h
        del centred
        lazy = fft.ifftn(fft.ifftshift(product))
        assert is_captured(lazy)
        expected = np.fft.ifftn(np.fft.ifftshift(np.fft.fftshift(np.fft.fftn(x)) * h))
        require_close(lazy, expected)
        require_close(fft.fftshift(lazy), np.fft.fftshift(expected))


def test_a_spectrum_whose_shift_is_in_a_variable():
    y = fft.fftn(lazy_x())
    assert not is_captured(fft.ifftn(fft.ifftshift(fft.fftshift(y) * X)))
    shifted = fft.fftshift(fft.fftn(lazy_x()))
    assert not is_captured(fft.ifftn(fft.ifftshift(shifted * X)))


#: Bands by axis, of a real spectrum.
BANDS = {
    "first axis": {"band_index": {0: (4, 9)}},
    "last axis": {"band_index": {1: (1, 4)}},
    "from 0 on": {"band_index": {1: (0, 3)}},
    "both": {"band": {0: (-0.2, 0.2), 1: (0.05, 0.45)}},
}


@pytest.mark.parametrize("name", list(BANDS))
@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_band(name, is_computed, is_split):
    band = BANDS[name]
    with split() if is_split else dask.config.set({}), dask.config.set({"scheduler": "sync"}):
        shape = fft.rfftn(lazy_x(), **band).shape
        h = random_array(shape, "c16", 3)
        factor = lazily_made(h) if is_computed else h
        lazy = fft.irfftn(fft.rfftn(lazy_x(), **band) * factor + h, s=SHAPE, axes=(0, 1), **band)
        assert is_captured(lazy)
        assert lazy.shape == SHAPE
        product = fft.rfftn(lazy_x(), **band).compute() * h + h
        expected = fft.irfftn(da.from_array(product), s=SHAPE, axes=(0, 1), **band).compute()
        require_close(lazy, expected)


def test_bands_of_complex_values_have_no_symmetry():
    band = {"axes": (0, 1), "band": {0: (0.1, 0.4)}}
    x = random_array((24, 10), "c16", 0)
    with split():
        lazy = fft.ifftn(fft.fftn(da.from_array(x, chunks=5), **band) * 2, s=(24, 10), **band)
        assert is_captured(lazy)
        spectrum = np.fft.fftn(x)
        frequencies = np.fft.fftfreq(24)
        spectrum[(frequencies < 0.1) | (frequencies > 0.4)] = 0
        require_close(lazy, 2 * np.fft.ifftn(spectrum))


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ({"band_index": {0: (4, 9)}}, {"band_index": {0: (5, 10)}}),
        ({"band_index": {0: (7, 9)}}, {"band_index": {0: (7, 9)}}),
    ],
)
def test_other_bands_are_not_captured(there, back):
    lazy = fft.irfftn(fft.rfftn(lazy_x(), **there) * 2, s=SHAPE, axes=(0, 1), **back)
    assert not is_captured(lazy)


def test_a_band_of_the_result_is_not_captured():
    x = random_array(SHAPE, "c16", 0)
    product = fft.ifftn(da.from_array(x, chunks=4)) * 2
    lazy = fft.fftn(product, band_index={0: (0, 12)})
    assert not is_captured(lazy)
    require_close(lazy, np.fft.fftshift(2 * x, 0))


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
    chunks = tuple(max(1, n // 3) for n in values.shape)
    return da.from_array(values, chunks=chunks).map_blocks(lambda block: block)


#: Products that are not captured: a name and a function of the lazy spectrum, for keywords of both
#: transforms.
UNCAPTURED = {
    "persisted": (lambda y: y.persist() * H, {}, {}),
    "other precision": (lambda y: (y * H).astype("c8"), {}, {}),
    "function of blocks": (lambda y: y.map_blocks(lambda block: 2 * block), {}, {}),
    "array computed of the spectrum": (lambda y: y / abs(y).max(axis=0), {}, {}),
    "sum with another spectrum": (lambda y: y + fft.rfftn(lazy_x(3)), {}, {}),
    "another spectrum and a number": (lambda y: 2 * y * fft.rfftn(lazy_x(3)), {}, {}),
    "spectrum with a norm": (lambda y: y * fft.rfftn(lazy_x(3), norm="ortho"), {}, {}),
    "shifted spectrum": (lambda y: y * fft.fftshift(fft.rfftn(lazy_x(3)), 0), {}, {}),
    "slice": (lambda y: y[::-1] * H, {}, {}),
    "transposed": (lambda y: (y.T * H.T).T, {}, {}),
    "cumulative sum": (lambda y: y.cumsum(0), {}, {}),
    "shifted": (lambda y: fft.fftshift(y, 0) * H, {}, {}),
    "half shifted": (lambda y: fft.ifftshift(fft.fftshift(y) * H), {}, {}),
    "shifted once more": (lambda y: fft.ifftshift(y * H, 0), {}, {}),
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


#: Shapes of two arrays, lengths of the transforms, chunks, and axes. Plans of very small blocks are
#: not captured, because two plans have fewer tasks.
SECOND = [
    ((31, 20), (13, 20), (43, 39), (31, 10), (0, 1)),
    ((13, 6, 5), (13, 4, 5), (9, 5), (5, 3, 5), (1, 2)),
    ((37,), (36,), (73,), 20, (0,)),
    ((3, 1, 4, 2, 6), (2, 1, 4, 2, 6), (3, 1, 4, 2), (3, 1, 2, 2, 6), (0, 1, 2, 3)),
]


@pytest.mark.parametrize("dtypes", ["f8 f8", "f4 f4", "c16 f8", "i4 f8"])
@pytest.mark.parametrize(("shape", "shape2", "s", "chunks", "axes"), SECOND)
@pytest.mark.parametrize("conjugated", ["none", "first", "second"])
def test_a_product_of_two_spectra(dtypes, shape, shape2, s, chunks, axes, conjugated):
    first, second = dtypes.split()
    x = (10 * random_array(shape, "f8", 0)).astype(first)
    k = random_array(shape2, second, 1)
    kind = "" if first == "c16" else "r"
    options = {"s": s, "axes": axes}
    with split():
        spectra = [getattr(fft, f"{kind}fftn")(da.from_array(a, chunks), **options) for a in (x, k)]
        conjugate = {"none": 2, "first": 0, "second": 1}[conjugated]
        factors = [np.conj(y) if n == conjugate else y for n, y in enumerate(spectra)]
        product = factors[0] * factors[1]
        del spectra, factors
        lazy = getattr(fft, f"i{kind}fftn")(product, **options)
        assert is_captured(lazy)
    in_double = [a.astype("f8" if kind else "c16") for a in (x, k)]
    own = [getattr(np.fft, f"{kind}fftn")(a, **options) for a in in_double]
    factors = [np.conj(y) if n == conjugate else y for n, y in enumerate(own)]
    expected = getattr(np.fft, f"i{kind}fftn")(factors[0] * factors[1], **options)
    require_close(lazy, expected, 1e-5 if first == "f4" else 1e-13)


@pytest.mark.parametrize("order", [1, -1])
def test_two_spectra_with_other_numbers_of_axes(order):
    line = random_array(SHAPE[1:], "f8", 3)
    square = random_array((SHAPE[1], SHAPE[1]), "f8", 4)
    spectra = [fft.fft(da.from_array(a, chunks=5), axis=0) for a in (square, line)][::order]
    result = fft.ifft(spectra[0] * spectra[1], axis=0)
    expected = np.fft.ifft(np.fft.fft(square, axis=0) * np.fft.fft(line), axis=0)
    require_close(result, expected)


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
    uncaptured = dask_bigfft.plan(product * product.sum(axis=0), "irfftn")
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

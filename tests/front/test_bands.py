"""Bands of spectra against parts of NumPy's spectra in ascending order."""

import random

import dask
import dask.array as da
import numpy as np
import pytest
from support import heard

import dask_bigfft
from dask_bigfft import fft, plan
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.transforms.bands import Spectrum, with_negatives

FORWARD = ["fftn", "rfftn", "hfftn"]
INVERSE = ["ifftn", "irfftn", "ihfftn"]


def split():
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    return dask.config.set({"bigfft.planner.whole-axis-floor": 1})


def numpys(name, x, lengths=None, axes=None):
    """A transform by NumPy, which has no Hermitian ones of several axes."""
    if name == "hfftn":
        return np.fft.irfftn(x.conj(), lengths, axes, norm="forward")
    if name == "ihfftn":
        return np.fft.rfftn(x, lengths, axes, norm="forward").conj()
    return getattr(np.fft, name)(x, lengths, axes)


def halved_axis(name, axes):
    """The axis with half a spectrum, if there is one."""
    return axes[-1] if name in ("rfftn", "irfftn") else None


def banded(spectrum, bands, half):
    """The band of a spectrum in ascending order."""
    for axis, (start, stop) in bands.items():
        if axis != half:
            spectrum = np.fft.fftshift(spectrum, axis)
        spectrum = spectrum.take(range(start, stop), axis)
    return spectrum


def padded(part, bands, shape, half):
    """A spectrum in natural order, of which only a band is not zero."""
    whole = np.zeros(shape, part.dtype)
    whole[tuple(slice(*bands.get(axis, (None,))) for axis in range(len(shape)))] = part
    return np.fft.ifftshift(whole, [axis for axis in bands if axis != half])


def assert_close(ours, expected, single=False):
    assert ours.shape == expected.shape
    eps = 2e-6 if single else 1e-13
    assert np.linalg.norm(ours - expected) <= eps * max(np.linalg.norm(expected), 1e-300)


def random_bands(draw, sizes, axes, count):
    """Places of bands in spectra of some sizes."""
    bands = {}
    for axis in draw.sample(axes, count):
        start = draw.randrange(sizes[axis])
        bands[axis] = (start, draw.randint(start + 1, sizes[axis]))
    return bands


#: Most cuts of an axis by the number of axes, so that there are at most 100 blocks.
MOST_CUTS = {1: 9, 2: 9, 3: 3, 4: 2, 5: 1}


def random_chunks(draw, n, most_cuts):
    count = min(n - 1, most_cuts, draw.choice([0, 1, 3, 9]))
    cuts = sorted(draw.sample(range(1, n), count))
    return tuple(np.diff([0, *cuts, n]).tolist())


class Case:
    """A transform with bands, its input, and NumPy's answer."""

    def __init__(self, seed):
        draw = random.Random(seed)
        rng = np.random.default_rng(seed)
        ndim = draw.choice([1, 2, 2, 3, 3, 4, 5])
        most = {1: 150, 2: 100, 3: 24, 4: 8, 5: 5}[ndim]
        smooth = [n for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 36, 59, 64, 97, 144) if n <= most]
        lengths = [draw.choice(smooth) for _ in range(ndim)]
        self.name = draw.choice(FORWARD + INVERSE)
        self.axes = tuple(draw.sample(range(ndim), draw.randint(1, ndim)))
        half = halved_axis(self.name, self.axes)
        self.single = draw.random() < 0.3
        sizes = list(lengths)
        last = self.axes[-1]
        if half is not None:
            sizes[half] = lengths[half] // 2 + 1
        self.bands = random_bands(draw, sizes, self.axes, draw.randint(1, len(self.axes)))
        shape = list(lengths)
        if self.name in INVERSE:
            shape = list(sizes)
            for axis, (start, stop) in self.bands.items():
                shape[axis] = stop - start
        elif self.name == "hfftn":
            shape[last] = lengths[last] // 2 + 1
        is_real = self.name in ("rfftn", "ihfftn")
        dtype = ("f8" if is_real else "c16", "f4" if is_real else "c8")[self.single]
        self.x = random_array(shape, dtype, rng)
        self.lengths = [lengths[axis] for axis in self.axes]
        self.chunks = tuple(random_chunks(draw, n, MOST_CUTS[ndim]) for n in shape)
        self.options = {"chunks": draw.choice(["auto", "auto", "preserve", 2])}
        wide = self.x.astype("f8" if is_real else "c16")
        if self.name in FORWARD:
            whole = numpys(self.name, wide, self.lengths, self.axes)
            self.expected = banded(whole, self.bands, half)
        else:
            whole = padded(wide, self.bands, sizes, half)
            self.expected = numpys(self.name, whole, self.lengths, self.axes)

    def lazy(self, **options):
        a = da.from_array(self.x, chunks=self.chunks)
        return getattr(fft, self.name)(
            a,
            s=self.lengths,
            axes=self.axes,
            band_index=self.bands,
            **self.options,
            **options,
        )


@pytest.mark.parametrize("seed", range(60))
def test_a_part_of_numpys_spectrum(seed, tmp_path, sync):
    case = Case(seed)
    carrier = ("shared", "tasks", "disk")[seed % 3]
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(), dask.config.set(settings):
        lazy = case.lazy(verify="checksum" if seed % 4 == 0 else "none")
        result = lazy.compute()
    assert result.dtype == lazy.dtype
    assert_close(result, case.expected, case.single)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize("seed", range(60, 75))
def test_on_devices(seed, device):
    case = Case(seed)
    with split(), simulated_devices(1 << 14):
        result = case.lazy(device=device).compute(scheduler="sync")
    assert_close(result, case.expected, case.single)


@pytest.mark.parametrize("variant", ["dif", "dit", "stockham"])
@pytest.mark.parametrize("name", ["fft", "rfft", "ifft", "irfft"])
def test_variants_of_a_split_axis(name, variant, sync):
    n = 144
    x = random_array((n,), "f8" if name == "rfft" else "c16", 1)
    half = 0 if name in ("rfft", "irfft") else None
    places = (3, 20)
    options = {"variant": variant, "rounds": [9, -1], "band_index": places, "chunks": 5}
    if name in ("fft", "rfft"):
        expected = banded(getattr(np.fft, name)(x), {0: places}, half)
        ours = getattr(fft, name)(da.from_array(x, chunks=16), **options)
    else:
        size = n // 2 + 1 if name == "irfft" else n
        part = x[:17]
        expected = getattr(np.fft, name)(padded(part, {0: places}, (size,), half), n)
        ours = getattr(fft, name)(da.from_array(part, chunks=5), n, **options)
    assert_close(ours.compute(), expected)


def test_half_a_spectrum_is_completed_from_bands_of_other_axes(sync):
    x = random_array((24, 20, 144), "f8", 3)
    a = da.from_array(x, chunks=(6, 20, 24))
    rounds = [{2: 12, 1: 20}, {2: -1, 0: 24}]
    for bands in ({0: (3, 9), 1: (4, 17), 2: (5, 30)}, {0: (10, 15)}, {1: (0, 3), 2: (60, 73)}):
        result = fft.rfftn(a, rounds=rounds, band_index=bands)
        assert_close(result.compute(), banded(np.fft.rfftn(x), bands, 2))
        part = random_array(result.shape, "c16", 4)
        b = da.from_array(part, chunks=3)
        back = fft.irfftn(b, x.shape, axes=(0, 1, 2), rounds=rounds[::-1], band_index=bands)
        whole = padded(part, bands, (24, 20, 73), 2)
        assert_close(back.compute(), np.fft.irfftn(whole, x.shape, axes=(0, 1, 2)))


def test_padding_of_other_axes_is_kept_where_half_a_spectrum_is_completed(sync):
    x = random_array((6, 8, 73), "c16", 5)
    a = da.from_array(x, chunks=(3, 8, 10))
    expected = np.fft.irfftn(x, (12, 16, 144), axes=(0, 1, 2))
    for rounds in ([{2: 12, 1: 16}, {2: 12, 0: 12}], [{0: 12}, {2: 12, 1: 16}, {2: 12}]):
        result = fft.irfftn(a, (12, 16, 144), axes=(0, 1, 2), rounds=rounds)
        assert_close(result.compute(), expected)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 10, 97, 1000])
def test_ends_are_included(n):
    for frequencies, half in ((np.fft.fftfreq(n), False), (np.fft.rfftfreq(n), True)):
        ascending = np.sort(frequencies)
        spectrum = Spectrum(n, half)
        draw = random.Random(n)
        for _ in range(20):
            low, high = sorted(draw.choices(range(len(ascending)), k=2))
            window = spectrum.parse_band((ascending[low], ascending[high]))
            assert spectrum.indices(window) == (low, high + 1)
            assert spectrum.parse_indices((low, high + 1)) == window
        everything = spectrum.parse_band((0 if half else -0.5, 0.5))
        assert spectrum.indices(everything) == (0, len(ascending))


def test_negatives_of_windows():
    for length in (1, 2, 7, 12):
        for start in range(length):
            for count in range(1, length + 1):
                values = {(start + i) % length for i in range(count)}
                first, size = with_negatives((start, count), length)
                wider = {(first + i) % length for i in range(size)}
                assert values <= wider
                assert {-v % length for v in wider} == wider
                assert len(wider) == size


@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_frequencies_of_bands(n, name):
    ours = getattr(fft, name)
    frequencies = np.sort(getattr(np.fft, name)(n, 0.5))
    for start in range(len(frequencies)):
        for stop in range(start + 1, len(frequencies) + 1):
            expected = frequencies[start:stop]
            result = ours(n, 0.5, chunks=2, band_index=(start, stop))
            np.testing.assert_allclose(result.compute(), expected, rtol=1e-15)
            result = ours(n, 0.5, band=(expected[0], expected[-1]))
            np.testing.assert_allclose(result.compute(), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("half", "spacing", "text"),
    [
        (False, 1.0, "multiples of 0.125 from -0.5 to 0.375"),
        (False, -1.0, "multiples of 0.125 from -0.375 to 0.5"),
        (True, -1.0, "multiples of 0.125 from -0.5 to 0$"),
    ],
)
def test_errors_name_the_frequencies_of_the_spectrum(half, spacing, text):
    with pytest.raises(ArgumentError, match=text):
        Spectrum(8, half).parse_band((-0.2, -0.15), spacing)


def test_frequencies_of_a_spectrum():
    a = da.from_array(random_array((12, 15), "f8", 0), chunks=(3, 15))
    spectrum = fft.rfft2(a, band={0: (-0.2, 0.1), 1: (0.1, 0.3)})
    rows = fft.frequencies_of(spectrum, 0).compute()
    np.testing.assert_allclose(rows * 12, [-2, -1, 0, 1], atol=1e-12)
    columns = fft.frequencies_of(spectrum, 1, d=0.5).compute()
    np.testing.assert_allclose(columns, fft.rfftfreq(15, 0.5, band=(0.2, 0.6)).compute())
    shifted = fft.fftshift(spectrum)
    expected = np.fft.fftshift(spectrum.compute())
    np.testing.assert_array_equal(shifted.compute(), expected)
    np.testing.assert_allclose(fft.frequencies_of(shifted, 0).compute(), np.fft.fftshift(rows))


X = da.ones((12, 10), chunks=4)


@pytest.mark.parametrize(
    ("name", "options", "argument"),
    [
        ("fftn", {"band": {0: (0.3, 0.1)}}, "band"),
        ("fftn", {"band": {0: (0.1, 0.6)}}, "band"),
        ("fftn", {"band": {0: (-0.6, 0.1)}}, "band"),
        ("fftn", {"band": {0: (0.1, np.nan)}}, "band"),
        ("fftn", {"band": {0: (0.01, 0.02)}}, "band"),
        ("fftn", {"band": {0: (0.5, 0.5)}}, "band"),
        ("fftn", {"band": {2: (0.1, 0.2)}}, "band"),
        ("fftn", {"band": {0: 0.1}}, "band"),
        ("fftn", {"band": {0: ("a", 0.1)}}, "band"),
        ("fftn", {"band": (0.1, 0.2)}, "band"),
        ("rfftn", {"band": {1: (-0.1, 0.2)}}, "band"),
        ("fft", {"band": {0: (0.1, 0.2)}}, "band"),
        ("fftn", {"band_index": {0: (3, 3)}}, "band_index"),
        ("fftn", {"band_index": {0: (0, 13)}}, "band_index"),
        ("fftn", {"band_index": {0: (-1, 3)}}, "band_index"),
        ("fftn", {"band_index": {0: (0.5, 3)}}, "band_index"),
        ("rfftn", {"band_index": {1: (0, 7)}}, "band_index"),
        ("fftn", {"band": {0: (0, 0.1)}, "band_index": {0: (0, 3)}}, "band_index"),
        ("fft", {"band": (0, 0.1), "order": "transposed"}, "order"),
        ("ifft", {"band": (0, 0.1)}, "n"),
        ("ifftn", {"band": {0: (0, 0.1)}, "s": (-1, 10), "axes": (0, 1)}, "s"),
        ("ifft", {"band": (0, 0.1), "n": 20}, "a"),
        ("irfft", {"band_index": (0, 9), "n": 20}, "a"),
    ],
)
def test_errors_name_the_argument(name, options, argument):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{argument}`"):
        getattr(fft, name)(X, **options)


def test_errors_of_frequencies():
    for options in (
        {"band": (0, 0.1), "order": "transposed"},
        {"band": (0, 0.9)},
        {"band": (0, 0.1), "band_index": (0, 1)},
    ):
        with pytest.raises(ArgumentError):
            fft.fftfreq(64, **options)


# --- what a band costs ----------------------------------------------------------------------------


def eighth(n):
    """A band of an eighth of the frequencies around 0."""
    return (n // 2 - n // 16, n // 2 + n // 16)


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((256, 256, 256), (16, 256, 256)), ((256, 256, 256), (64, 64, 64)), ((2**22,), (2**18,))],
)
def test_exchanges_carry_the_band(shape, chunks):
    x = da.zeros(shape, chunks=chunks, dtype="c8")
    bands = {axis: eighth(n) for axis, n in enumerate(shape)}
    full = plan(x, "fftn")
    part = plan(x, "fftn", band_index=bands)
    full_nbytes = sum(exchange.nbytes for exchange in full.exchanges[1:])
    nbytes = sum(exchange.nbytes for exchange in part.exchanges[1:])
    assert part.expected.bytes_exchanged < full.expected.bytes_exchanged
    assert part.expected.peak_host <= 1.01 * full.expected.peak_host  # the input is in memory
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        in_files = [plan(x, "fftn", band_index=named).expected for named in (None, bands)]
    if len(shape) > 1:  # a line is exchanged whole before its first digit
        assert nbytes <= 0.2 * full_nbytes
        assert in_files[1].scratch < in_files[0].scratch
        assert in_files[1].peak_host < in_files[0].peak_host
    assert "band" in part.explain(details=True)
    assert part.result.size == np.prod([n // 8 for n in shape])


def test_a_band_in_one_block_becomes_several():
    x = da.zeros((64, 64, 64), chunks=-1, dtype="c8")
    for chunks in ("auto", (32, 512, 1024)):
        made = plan(
            x,
            "irfftn",
            s=(512, 512, 1024),
            axes=(0, 1, 2),
            band_index={0: (224, 288), 1: (224, 288), 2: (0, 64)},
            chunks=chunks,
        )
        sizes = [round_.target.largest for round_ in made.rounds]
        assert max(sizes) * 4 <= 512 << 20
        assert made.expected.bytes_exchanged <= 0.1 * made.spec.out_nbytes


def test_slabs_exchange_a_fifth_at_most():
    x = da.zeros((512, 512, 512), chunks=(32, 512, 512), dtype="f4")
    bands = {0: eighth(512), 1: eighth(512), 2: (0, 32)}
    full = plan(x, "rfftn", memory_limit="1 GiB").expected.bytes_exchanged
    assert plan(x, "rfftn", band_index=bands).expected.bytes_exchanged <= 0.2 * full


def test_plans_with_bands_are_json():
    made = plan(da.zeros((64, 64), chunks=8, dtype="f4"), "rfftn", band={0: (-0.1, 0.2)})
    assert dask_bigfft.Plan.from_json(made.to_json()) == made


# --- files, coordinates ---------------------------------------------------------------------------


def test_run_and_back(tmp_path):
    xr = pytest.importorskip("xarray")
    x = random_array((20, 24), "f8", 7)
    coords = {"y": 3 + 0.5 * np.arange(20), "x": 2.0 * np.arange(24)}
    field = xr.DataArray(x, coords, ("y", "x"), name="height").chunk(y=4, x=24)
    places = {"y": (8, 13), "x": (1, 6)}
    expected = banded(np.fft.rfftn(x), {0: places["y"], 1: places["x"]}, 1)
    dask_bigfft.run(field, tmp_path / "part.zarr", "rfftn", band_index=places)
    part = xr.open_zarr(tmp_path / "part.zarr", consolidated=False)["height"]
    assert_close(part.values, expected)
    same = field.bigfft.rfft(["y", "x"], band={"y": (-0.2, 0.2), "x": (0.5 / 24, 2.5 / 24)})
    assert_close(same.values, expected)
    for name in ("freq_y", "freq_x"):
        np.testing.assert_allclose(part[name], same[name], rtol=1e-14)
        assert part[name].attrs == same[name].attrs
    np.testing.assert_allclose(same.freq_y, np.fft.fftshift(np.fft.fftfreq(20, 0.5))[8:13])
    whole = padded(expected, {0: (8, 13), 1: (1, 6)}, (20, 13), 1)
    smooth = np.fft.irfftn(whole, (20, 24), axes=(0, 1))
    for spectrum in (same, part):
        back = spectrum.bigfft.irfft()
        assert_close(back.values, smooth)
        np.testing.assert_allclose(back.y, coords["y"])
    with pytest.raises(ValueError, match="coordinate freq_y"):
        same[1:].bigfft.irfft()
    dask_bigfft.run(
        tmp_path / "part.zarr",
        tmp_path / "back.zarr",
        "irfftn",
        component="height",
        s=(20, 24),
        axes=("freq_y", "freq_x"),
        band_index={"freq_y": (8, 13), "freq_x": (1, 6)},
    )
    back = xr.open_zarr(tmp_path / "back.zarr", consolidated=False)["height"]
    assert_close(back.values, smooth)


def test_the_command_line(tmp_path, capsys):
    from dask_bigfft.cli import main

    zarr = pytest.importorskip("zarr")
    x = random_array((20, 24), "f8", 8)
    np.save(tmp_path / "x.npy", x)
    source = str(tmp_path / "x.npy")
    result = str(tmp_path / "y.zarr")
    main(["run", source, result, "--quiet", "--band", "0=-0.2:0.2,-1=0:0.25"])
    expected = banded(np.fft.fft2(x), {0: (6, 15), 1: (12, 19)}, None)
    assert_close(zarr.open(result, mode="r")[:], expected)
    main(["plan", source, "--kind", "fft", "--axes", "0", "--band", "-.1:.1"])
    assert "-2/20 to 2/20" in capsys.readouterr().out


def test_bands_of_dimensions():
    xr = pytest.importorskip("xarray")
    values = random_array((9, 16), "c16", 2)
    x = xr.DataArray(values, {"y": -1.0 * np.arange(9)}, ("y", "x"))
    part = x.bigfft.fft(band={"y": (-0.25, 0.12)}, shift=True)
    whole = x.bigfft.fft(shift=True)
    inside = whole[(whole.freq_y >= -0.25) & (whole.freq_y <= 0.12)]
    assert inside.shape == part.shape
    np.testing.assert_allclose(part.freq_y, inside.freq_y)
    assert_close(part.values, inside.values)
    for wrong in ({"z": (0, 0.1)}, {"y": (0, 9)}, 3):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="`band`"):
            x.bigfft.fft(band=wrong)


@pytest.mark.parametrize("name", ["fftn", "rfftn"])
@pytest.mark.parametrize(("nbytes", "is_one_pass"), [(1 << 20, True), (1 << 14, False)])
def test_only_the_band_leaves_a_device(
    name,
    nbytes,
    is_one_pass,
    sync,
):
    """Tiles are cropped where they are, if a block needs one pass."""
    x = random_array((16, 23, 31), "f8" if name == "rfftn" else "c16", 1)
    bands = {1: (6, 10), 2: (2, 6)}
    with split(), simulated_devices(nbytes), heard("d2h") as events:
        lazy = getattr(fft, name)(
            da.from_array(x, chunks=(4, 23, 31)), band_index=bands, device="gpu"
        )
        result = lazy.compute()
    whole = numpys(name, x)
    assert_close(result, banded(whole, bands, halved_axis(name, (0, 1, 2))))
    if is_one_pass:
        stored_nbytes = sum(numbers["nbytes"] for _, numbers in events)
        assert stored_nbytes == 2 * result.nbytes  # of two rounds

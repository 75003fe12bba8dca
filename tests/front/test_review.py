"""Cases that once went wrong, or nearly."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse

import dask_bigfft
from dask_bigfft import fft, signal
from dask_bigfft.errors import ArgumentTypeError
from dask_bigfft.testing.oracles import relative_l2

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("shape", [(101, 16), (103, 12), (101, 15), (16, 101)])
@pytest.mark.parametrize("order", ["transposed", ("natural", "transposed")])
def test_half_a_spectrum_in_digits_beside_bluestein(shape, order):
    a = RNG.standard_normal(shape)
    x = da.from_array(a, chunks=(10, 4))
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        spectrum = fft.rfft2(x, order=order)
        back = fft.irfft2(spectrum, s=shape, order=order)
        rectangle = spectrum.compute()
    per_axis = (order,) * 2 if isinstance(order, str) else order
    rows = np.arange(shape[0])
    columns = dask_bigfft.transposed_index(shape[1], real=True)
    if per_axis[0] == "transposed":
        rows = dask_bigfft.transposed_index(shape[0])
    assert relative_l2(rectangle, np.fft.fft2(a)[np.ix_(rows, columns)]) < 1e-14
    assert relative_l2(back.compute(), a) < 1e-14


@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_blocks_that_are_not_what_the_array_declares_are_refused(carrier):
    x = da.from_array(np.arange(64.0), chunks=16)
    short = x.map_blocks(lambda b: b[:4], dtype=float, meta=np.empty(0))
    hidden = x.map_blocks(lambda b: b * 1j, dtype=float, meta=np.empty(0))
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        with pytest.raises(ValueError, match=r"shape \(4,\).*\(16,\)"):
            fft.fft(short).compute(scheduler="sync")
        with pytest.raises(ValueError, match="complex128"):
            fft.rfft(hidden).compute(scheduler="sync")


@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("chunks", [16, 64])
def test_values_that_a_block_masks_are_refused_though_no_metadata_tell(carrier, chunks):
    x = da.from_array(np.arange(64.0), chunks=chunks)

    def reading(most):
        return x.map_blocks(lambda b: np.ma.masked_greater(b, most), dtype=float, meta=np.empty(0))

    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        with pytest.raises(TypeError, match=r"block \(\d,\), in which values are masked.*filled"):
            fft.fft(reading(12)).compute(scheduler="sync")
        assert relative_l2(fft.fft(reading(99)).compute(), np.fft.fft(np.arange(64.0))) < 1e-14


class Quantity:
    """Quantity as pint has it: an array that loses its unit when NumPy converts it."""

    def __init__(self, magnitude, units="m"):
        self.magnitude = magnitude
        self.units = units
        self.shape = magnitude.shape
        self.dtype = magnitude.dtype
        self.ndim = magnitude.ndim

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.magnitude, dtype)

    def __array_function__(
        self,
        function,
        types,
        args,
        kwargs,
    ):
        return NotImplemented


class Coordinates(Quantity):
    """Sparse array that refuses to become dense by itself, as that of the package sparse does."""

    def __init__(self, values):
        super().__init__(values)
        del self.magnitude

    def todense(self):
        return np.zeros(self.shape)

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("cannot convert a sparse array to dense")


#: Blocks behind the metadata of float64, and what their error names.
BLOCKS = {
    "strings": (lambda block: np.full(block.shape, "abc"), "dtype <U3"),
    "times": (lambda block: np.zeros(block.shape, "M8[s]"), "dtype datetime64"),
    "objects": (lambda block: np.full(block.shape, None), "dtype object"),
    "sparse": (lambda block: Coordinates(block), "sparse.*todense"),
    "matrix": (lambda block: scipy.sparse.csr_array(np.atleast_2d(block)), "sparse.*todense"),
    "unit": (lambda block: Quantity(block), "unit.*magnitude"),
    "lists": (lambda block: [[1.0], [2.0, 3.0]], "list"),
}


@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_without_plain_numbers_are_refused_by_name(kind, carrier):
    change, named = BLOCKS[kind]
    x = da.zeros(256, chunks=16).map_blocks(change, dtype=float, meta=np.empty(0))
    whole = da.zeros(256, chunks=256).map_blocks(change, dtype=float, meta=np.empty(0))
    calls = [fft.rfft(x), fft.rfft(whole), fft.dct(whole), fft.fft(x, verify="checksum")]
    calls += [fft.dct(x)]
    with dask.config.set({"bigfft.exchange.carrier": carrier, "bigfft.planner.small": 1}):
        for y in calls:
            with pytest.raises(ArgumentTypeError, match=rf"`a`.*block \(\d+,\).*{named}"):
                y.compute(scheduler="sync")


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if kind != "lists"])
def test_averages_over_segments_refuse_blocks_without_plain_numbers(kind):
    change, named = BLOCKS[kind]
    x = da.zeros(256, chunks=64).map_blocks(change, dtype=float, meta=np.empty(0))
    for _, spectrum in (signal.welch(x, nperseg=16), signal.csd(x, x, nperseg=16)):
        with pytest.raises(ArgumentTypeError, match=rf"`a`.*block \(\d+,\).*{named}"):
            spectrum.compute(scheduler="sync")


def test_an_array_with_a_unit_is_refused_before_it_loses_it():
    with pytest.raises(ArgumentTypeError, match=r"`a`.*magnitude"):
        fft.fft(Quantity(np.ones(8)))

"""Verification of operators: a fault before, in or after a product is found and repaired."""

import contextlib
import itertools
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from laws.law import damaged, small_tiles
from support import heard

from dask_bigfft import signal
from dask_bigfft.errors import VerificationError
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.kernels.transfer import TileProduct
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.faults import DAMAGES, Times
from dask_bigfft.testing.strategies import random_array

#: Shapes, chunks and dtypes: rounds of one and of several axes, lengths that are odd and prime.
CASES = {
    "one axis": ((36,), (12,), "c16"),
    "one real axis": ((30,), (13,), "f8"),
    "slabs": ((4, 3, 10), (2, 3, 10), "f8"),
    "one block": ((6, 7), (6, 7), "f4"),
    "batch": ((3, 1, 20), (2, 1, 20), "c8"),
}

#: Ways of blocks from round to round: settings.
WAYS = {"in place": {}, "disk": {"bigfft.exchange.carrier": "disk"}}


class OneFault:
    """Counter of calls that returns True for a single one of them."""

    def __init__(self):
        self.calls = 0
        self.faulty_call = None
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.calls += 1
            return self.calls - 1 == self.faulty_call


def narrow(*frequencies):
    """A Hermitian function that is 0 at most frequencies."""
    distance = sum(f**2 for f in frequencies)
    delay = np.exp(-2j * np.pi * sum(frequencies))
    return np.where(distance < 0.02, delay, 0)


def products_damaged(monkeypatch, damage, when):
    """Let products be wrong when it is time."""
    original = TileProduct.apply

    def apply(self):
        original(self)
        if when():
            damage(self.tile)

    monkeypatch.setattr(TileProduct, "apply", apply)


@pytest.fixture
def events():
    """Names of the events of verification."""
    with heard("mismatch", "unverified") as seen:
        yield seen


@pytest.fixture
def settings(tmp_path):
    """Settings of plans with several rounds."""
    return {
        "scheduler": "sync",
        "bigfft.planner.small": 0,
        "bigfft.planner.whole-axis-floor": 1,
        "bigfft.scratch.directory": str(tmp_path),
    }


def lazy_filter(name, mode, transfer=narrow):
    """The lazy result of a case in one plan."""
    shape, chunks, dtype = CASES[name]
    x = da.from_array(random_array(shape, dtype, 7), chunks=chunks)
    axes = (2,) if name == "batch" else None
    lazy = signal.fourier_filter(x, transfer, axes, verify=mode)
    (plan,) = transforms_in(lazy).values()
    assert plan.spec.transfer
    return lazy


@pytest.mark.parametrize(
    ("mode", "damage", "tile_nbytes"),
    [
        ("energy", "exponent bit", None),
        ("checksum", "sign bit", 300),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_fault_in_any_fft_or_product_is_repaired(
    monkeypatch,
    settings,
    events,
    name,
    way,
    mode,
    damage,
    tile_nbytes,
):
    """Each one is noticed, also at frequencies that are multiplied by 0."""
    if tile_nbytes is not None:
        small_tiles(monkeypatch, tile_nbytes)
    fault = OneFault()
    damaged(monkeypatch, DAMAGES[damage], fault)
    products_damaged(monkeypatch, DAMAGES[damage], fault)
    with dask.config.set({**settings, **WAYS[way]}):
        lazy = lazy_filter(name, mode)
        right = lazy.compute()
        calls = fault.calls
        assert calls > 3
        assert not events
        for number in range(calls):
            fault.calls = 0
            fault.faulty_call = number
            events.clear()
            result = lazy.compute()
            np.testing.assert_array_equal(result, right, f"fault in call {number} of {calls}")
            # The checks of real results do FFTs of their own, of which they read one part.
            if np.dtype(CASES[name][2]).kind == "c":
                assert [event for event, _ in events] == ["mismatch"], f"call {number} of {calls}"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_any_bit_of_a_product_counts(
    monkeypatch,
    settings,
    events,
    mode,
    damage,
):
    """Products are the same twice, whatever sums notice."""
    with dask.config.set(settings):
        lazy = lazy_filter("one axis", mode)
        right = lazy.compute()
        products_damaged(monkeypatch, DAMAGES[damage], Times(1, after=3))
        result = lazy.compute()
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_a_value_of_the_function_that_is_wrong_once(settings, events, mode):
    is_faulty = Times(0)

    def function(*frequencies):
        values = narrow(*frequencies)
        if is_faulty():
            values[np.unravel_index(np.argmax(abs(values)), values.shape)] *= -1
        return values

    with dask.config.set(settings):
        lazy = lazy_filter("slabs", mode, function)
        right = lazy.compute()
        is_faulty.left = 1
        is_faulty.times = 1
        result = lazy.compute()
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("number", [0, 1])
def test_wrong_twice_is_an_error_that_names_round_and_block(monkeypatch, settings, number):
    """In the FFTs before the product, and in the product."""
    with dask.config.set(settings):
        lazy = lazy_filter("one block", "checksum")
        if number == 0:
            damaged(monkeypatch, DAMAGES["exponent bit"], Times(2))
        else:
            every_other = itertools.cycle([True, False])
            products_damaged(monkeypatch, DAMAGES["sign bit"], every_other.__next__)
        with pytest.raises(VerificationError, match=r"round 1, block \(0, 0\)"):
            lazy.compute()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_cannot_be_verified_says_so(settings, events, value):
    x = random_array((64,), "c16", 7)
    x[5] = value
    with dask.config.set(settings), pytest.warns(RuntimeWarning, match="cannot be verified"):
        signal.fourier_filter(da.from_array(x, chunks=16), narrow, verify="checksum").compute()
    assert {name for name, _ in events} == {"unverified"}


@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_devices_do_a_product_twice(
    monkeypatch,
    settings,
    events,
    mode,
):
    shape, chunks, dtype = CASES["slabs"]
    x = da.from_array(random_array(shape, dtype, 7), chunks=chunks)
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        stack.enter_context(simulated_devices(1 << 14, limits=TileLimits(0, least=64)))
        lazy = signal.fourier_filter(x, narrow, verify=mode, device="gpu")
        right = lazy.compute()
        assert not events
        products_damaged(monkeypatch, DAMAGES["sign bit"], Times(1))
        result = lazy.compute()
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)

"""Verification: it changes no answer, finds what it says that it finds, and repairs it once."""

import functools
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from laws.law import call, planned_small

import dask_bigfft.graph.build
import dask_bigfft.graph.tasks
import dask_bigfft.kernels.cpu
from dask_bigfft import events, fft, plan
from dask_bigfft.errors import VerificationError
from dask_bigfft.exchange import p2p
from dask_bigfft.kernels.libraries import available, get_library
from dask_bigfft.testing.faults import DAMAGES, Dropping, Faulty, Times, flip
from dask_bigfft.testing.strategies import cases, random_array, round_cases

MODES = ("energy", "checksum")

#: Which mode finds what goes wrong inside a round.
FINDS = {
    "exponent bit": MODES,
    "mantissa bit": MODES,
    "sign bit": ("checksum",),
    "swap": ("checksum",),
    "conjugate": ("checksum",),
    "last bit": (),
}


@pytest.fixture
def found():
    """Names of the events of verification."""
    seen = []

    def sink(name, numbers):
        if name in ("mismatch", "unverified"):
            seen.append((name, numbers.get("index")))

    events.add_sink(sink)
    yield seen
    events.remove_sink(sink)


@pytest.fixture(params=[None, 200])
def tiles(request, monkeypatch):
    """Tiles as they are, and so small that a block has many."""
    if request.param is not None:
        monkeypatch.setattr(dask_bigfft.kernels.cpu, "TILE_BYTES", request.param)
        monkeypatch.setattr(dask_bigfft.kernels.cpu, "ROW_BYTES", 1)


def check(case, mode):
    x = case.array
    expected = call(case, x).compute()
    verified = call(case, x, verify=mode).compute()
    np.testing.assert_array_equal(verified, expected)


@given(case=cases(), mode=st.sampled_from(MODES), floor=st.sampled_from([1, None]))
def test_no_answer_changes(tiles, case, mode, floor):
    """And nothing that is right is taken for wrong: not spectra without symmetry, either."""
    with planned_small(floor):
        check(case, mode)


@given(case=round_cases(), mode=st.sampled_from(MODES))
def test_no_answer_of_named_rounds_changes(tiles, case, mode):
    with planned_small(None):
        check(case, mode)


def damaged(monkeypatch, damage, when):
    monkeypatch.setattr(
        dask_bigfft.graph.tasks, "get_library", lambda name: Faulty(get_library(name), damage, when)
    )


def signal(dtype="c16", n=4096):
    return random_array((n,), dtype, 3)


def planned(a):
    with dask.config.set(scheduler="sync"):
        return plan(da.from_array(a, chunks=len(a) // 16), "fft", verify="energy")


def transformed(a, **options):
    with dask.config.set(scheduler="sync"):
        return fft.fft(da.from_array(a, chunks=len(a) // 16), **options).compute()


@pytest.mark.parametrize("dtype", ["c16", "c8", "f8"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", FINDS)
def test_what_is_found_inside_a_round(monkeypatch, found, damage, mode, dtype):
    a = signal(dtype)
    right = transformed(a)
    damaged(monkeypatch, DAMAGES[damage], Times(1, after=5))
    result = transformed(a, verify=mode)
    if mode in FINDS[damage]:
        assert [name for name, _ in found] == ["mismatch"]
        np.testing.assert_array_equal(result, right)
    else:
        assert not found  # a documented blind spot


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [3, 66, 101])
def test_rounds_in_place_are_gone_on_with(monkeypatch, found, mode, after):
    """Tiles that are right have taken the place of what came in when another one is wrong."""
    monkeypatch.setattr(dask_bigfft.kernels.cpu, "TILE_BYTES", 1100)
    monkeypatch.setattr(dask_bigfft.kernels.cpu, "ROW_BYTES", 1)
    assert any(layout is not None for layout in planned(signal()).joints.inside)
    right = transformed(signal())
    damaged(monkeypatch, DAMAGES["exponent bit"], when := Times(1, after))
    result = transformed(signal(), verify=mode)
    assert when.left < 0
    assert [name for name, _ in found] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


def test_without_verification_it_passes(monkeypatch, found):
    right = transformed(signal())
    damaged(monkeypatch, DAMAGES["exponent bit"], Times(1))
    assert np.linalg.norm(transformed(signal()) - right) > 1e-3 * np.linalg.norm(right)
    assert not found


@pytest.mark.parametrize(("mode", "finds"), [("energy", False), ("checksum", True)])
def test_a_twiddle_left_out(monkeypatch, found, mode, finds):
    right = transformed(signal())
    monkeypatch.setattr(dask_bigfft.graph.tasks, "run_round", Dropping(Times(1, after=3)))
    result = transformed(signal(), verify=mode)
    assert bool(found) == finds
    assert np.array_equal(result, right) == finds


@pytest.mark.parametrize("mode", MODES)
def test_wrong_twice_is_an_error_that_names_round_and_block(monkeypatch, mode):
    damaged(monkeypatch, DAMAGES["exponent bit"], Times(2, after=16))
    with pytest.raises(VerificationError, match=r"round 2, block \(\d+,\): the energy is"):
        transformed(signal(), verify=mode)


@pytest.mark.parametrize("kind", ["rfft", "irfft"])
def test_half_spectra(monkeypatch, found, kind):
    """Also the entries that count once, and where another axis is transformed with them."""
    a = random_array((16, 64), "f8" if kind == "rfft" else "c16", 5)
    x = da.from_array(a, chunks=(4, 16))
    with dask.config.set(scheduler="sync"):
        function = getattr(fft, f"{kind}n")
        right = function(x).compute()
        damaged(monkeypatch, lambda values: flip(values[..., :1], "mantissa"), Times(1, after=1))
        result = function(x, verify="energy").compute()
    assert [name for name, _ in found] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(("damage", "after"), [("exponent bit", 5), ("sign bit", 150)])
def test_convolutions_are_done_twice(monkeypatch, found, damage, after):
    """Rounds of Bluestein's algorithm keep no energy: whatever differs is found."""
    a = signal(n=1009)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 100, "scheduler": "sync"}):
        x = da.from_array(a, chunks=64)
        assert "*" in plan(x, "fft").notation
        right = fft.fft(x).compute()
        damaged(monkeypatch, DAMAGES[damage], Times(1, after=after))
        result = fft.fft(x, verify="energy").compute()
    assert [name for name, _ in found] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_what_cannot_be_verified_says_so(found, mode, value):
    a = signal()
    a[77] = value
    with pytest.warns(RuntimeWarning, match="cannot be verified"):
        result = transformed(a, verify=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(result, transformed(a))
    assert "unverified" in {name for name, _ in found}
    assert "mismatch" not in {name for name, _ in found}


@pytest.mark.parametrize("kernel", available())
@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_any_kernel_is_verified(kernel, mode):
    x = random_array((24, 30), "c16", 0)
    with planned_small(1):
        for chunks in [(4, 30), (5, 7), (24, 30)]:
            y = fft.fft2(da.from_array(x, chunks=chunks), verify=mode, kernel=kernel)
            np.testing.assert_allclose(y.compute(), np.fft.fft2(x), rtol=1e-10, atol=1e-10)


def test_unknown_checks_are_refused():
    with pytest.raises(ValueError, match=r"`verify`='crc' is not allowed: need one of none"):
        fft.fft(np.ones(4), verify="crc")
    with dask.config.set({"bigfft.verify": "energy"}):
        assert plan(np.ones(4), "fft").verify == "energy"


# --- shards ---------------------------------------------------------------------------------


def swapped(shards):
    """Two shards of one size change places."""
    names = list(shards)
    one, other = next(
        (a, b) for a in names for b in names if a < b and shards[a][0].size == shards[b][0].size
    )
    return shards | {one: shards[other], other: shards[one]}


def flipped(shards, bit):
    first = next(iter(shards))
    values = shards[first][0].copy()
    flip(values, bit)
    return shards | {first: (values, shards[first][1])}


SHARD_FAULTS = {
    "swap": swapped,
    "exponent": functools.partial(flipped, bit="exponent"),
    "sign": functools.partial(flipped, bit="sign"),
    "last": functools.partial(flipped, bit="last"),
}


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_shards_of_tasks(monkeypatch, fault):
    original, when = dask_bigfft.graph.tasks.compare, Times(1, after=2)

    def broken(number, block, shards):
        original(number, block, SHARD_FAULTS[fault](dict(shards)) if when() else shards)

    monkeypatch.setattr(dask_bigfft.graph.tasks, "compare", broken)
    with dask.config.set({"bigfft.exchange.carrier": "tasks"}):
        np.testing.assert_array_equal(transformed(signal(), verify="energy"), transformed(signal()))
        with pytest.raises(VerificationError, match=r"exchange \d, block \(\d+,\): the shard of"):
            transformed(signal(), verify="checksum")


def test_shards_of_shuffles(monkeypatch):
    """Whatever happened between packing and putting together, in flight or in a file."""
    original, when = p2p.collect, Times(0)

    def broken(*arguments):
        shards = original(*arguments)  # on another worker than the block's this raises
        return swapped(shards) if when() else shards

    monkeypatch.setattr(p2p, "collect", broken)
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
        dask.config.set({"bigfft.exchange.carrier": "p2p"}),
    ):
        x = da.from_array(signal(), chunks=256)
        right = fft.fft(x).compute()
        np.testing.assert_array_equal(fft.fft(x, verify="checksum").compute(), right)
        when.left = 1
        with pytest.raises(VerificationError, match=r"the shard of block \(\d+,\) is not what"):
            fft.fft(x, verify="checksum").compute()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["fftn", "rfftn", "ifftn"])
def test_results_that_are_shifted_on_the_way(found, mode, kind):
    a = random_array((12, 20, 14), "f8" if kind == "rfftn" else "c16", 9)
    x = da.from_array(a, chunks=(4, 5, 14))
    with dask.config.set(scheduler="sync"):
        result = fft.fftshift(getattr(fft, kind)(x, verify=mode), axes=(0, 1, 2)).compute()
    np.testing.assert_allclose(result, np.fft.fftshift(getattr(np.fft, kind)(a)), atol=1e-10)
    assert not found

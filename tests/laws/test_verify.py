"""Verification: it changes no answer, finds what it says that it finds, and repairs it once."""

import contextlib
import functools
import threading
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws.law import PLANNED, call, damaged, planned, small_tiles
from support import heard, local

import dask_bigfft.carriers.tasks
import dask_bigfft.testing.simulated
from dask_bigfft import fft, plan
from dask_bigfft.carriers import shuffle
from dask_bigfft.errors import DamagedShardError, VerificationError
from dask_bigfft.exchange.scratch import Scratch
from dask_bigfft.kernels.checks import near_values
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.faults import DAMAGES, Times, dropping, flip
from dask_bigfft.testing.simulated import transformed as transformed_by_device
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
def events():
    """Names of the events of verification."""
    with heard("mismatch", "unverified") as seen:
        yield seen


@given(
    case=cases() | round_cases(), mode=st.sampled_from(MODES), how=st.sampled_from(list(PLANNED))
)
def test_no_answer_changes(
    tiles,
    case,
    mode,
    how,
):
    """And nothing that is right is taken for wrong: not spectra without symmetry, either."""
    with planned(how):
        right, checked = (call(case, case.array, verify=v).compute() for v in ("none", mode))
    # With SciPy 1.18 the last bit may differ.
    np.testing.assert_allclose(
        checked,
        right,
        0,
        4 * np.finfo(right.dtype).eps * abs(right).sum(),
    )


def signal(dtype="c16", n=4096):
    return random_array((n,), dtype, 3)


def transformed(a, **options):
    with dask.config.set(scheduler="sync"):
        return fft.fft(da.from_array(a, chunks=len(a) // 16), **options).compute()


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        ("c16", 1),
        ("c16", 1e-150),
        ("c8", 1),
        ("c8", 1e-17),
        ("f8", 1),
    ],
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damage", FINDS)
def test_what_is_found_inside_a_round(
    monkeypatch,
    events,
    damage,
    mode,
    dtype,
    scale,
):
    """Also where values are small, as long as their squares are numbers."""
    a = (signal(dtype) * scale).astype(dtype)
    right = transformed(a)
    damaged(monkeypatch, DAMAGES[damage], Times(1, after=5))
    result = transformed(a, verify=mode)
    if mode in FINDS[damage]:
        assert [name for name, _ in events] == ["mismatch"]
        np.testing.assert_array_equal(result, right)
    else:
        assert not events  # a documented blind spot


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [3, 66, 101])
def test_rounds_in_place_are_gone_on_with(
    monkeypatch,
    events,
    mode,
    after,
):
    """Tiles that are right have taken the place of what came in when another one is wrong."""
    small_tiles(monkeypatch, 1100)
    right = transformed(signal())
    when = Times(1, after)
    damaged(monkeypatch, DAMAGES["exponent bit"], when)
    result = transformed(signal(), verify=mode)
    assert when.left < 0
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(
    ("mode", "finds"),
    [
        ("energy", False),
        ("checksum", True),
    ],
)
def test_a_twiddle_left_out(
    monkeypatch,
    events,
    mode,
    finds,
):
    right = transformed(signal())
    monkeypatch.setattr(dask_bigfft.kernels.loop, "transform_tile", dropping(Times(1, after=3)))
    result = transformed(signal(), verify=mode)
    assert bool(events) == finds
    assert np.array_equal(result, right) == finds


@pytest.mark.parametrize("mode", MODES)
def test_wrong_twice_is_an_error_that_names_round_and_block(monkeypatch, mode):
    damaged(monkeypatch, DAMAGES["exponent bit"], Times(2, after=16))
    with pytest.raises(VerificationError, match=r"round 2, blocks? \(\d+,\).*: the energy is"):
        transformed(signal(), verify=mode)


@pytest.mark.parametrize("kind", ["rfft", "irfft"])
def test_half_spectra(monkeypatch, events, kind):
    """Also the entries that count once, and where another axis is transformed with them."""
    a = random_array((16, 64), "f8" if kind == "rfft" else "c16", 5)
    x = da.from_array(a, chunks=(4, 16))
    with dask.config.set(scheduler="sync"):
        function = getattr(fft, f"{kind}n")
        right = function(x).compute()
        damaged(monkeypatch, lambda values: flip(values[..., :1], "mantissa"), Times(1, after=1))
        result = function(x, verify="energy").compute()
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_rounds_that_keep_no_energy_may_be_shared_by_threads_and_devices(events, mode, device):
    """Who does which part of a block is another one each time, and so is the last bit."""
    a = signal(n=1009)
    settings = {"bigfft.planner.whole-axis-floor": 1, "bigfft.hybrid.min-speedup": 0}
    with dask.config.set(settings), simulated_devices(1 << 16, limits=TileLimits(0, least=64)):
        x = da.from_array(a, chunks=144)
        assert "*" in plan(x, "fft", device=device, verify=mode).notation
        result = fft.fft(x, device=device, verify=mode).compute()
    assert np.linalg.norm(result - np.fft.fft(a)) < 1e-14 * np.linalg.norm(result)
    assert not events


@pytest.mark.parametrize(
    ("damage", "after"),
    [
        ("exponent bit", 5),
        ("sign bit", 150),
    ],
)
def test_convolutions_are_done_twice(
    monkeypatch,
    events,
    damage,
    after,
):
    """Rounds of Bluestein's algorithm keep no energy: whatever differs is found."""
    a = signal(n=1009)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 100, "scheduler": "sync"}):
        x = da.from_array(a, chunks=64)
        assert "*" in plan(x, "fft").notation
        right = fft.fft(x).compute()
        damaged(monkeypatch, DAMAGES[damage], Times(1, after=after))
        result = fft.fft(x, verify="energy").compute()
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_what_cannot_be_verified_says_so(events, mode, value):
    a = signal()
    a[77] = value
    with pytest.warns(RuntimeWarning, match="cannot be verified"):
        result = transformed(a, verify=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(result, transformed(a))
    assert "unverified" in {name for name, _ in events}
    assert "mismatch" not in {name for name, _ in events}


@pytest.mark.parametrize("mode", MODES)
def test_an_energy_that_overflows_in_the_transform_cannot_be_verified(mode):
    x = da.full(1024, 3e152, dtype=complex, chunks=-1)
    with pytest.warns(RuntimeWarning, match="cannot be verified"):
        result = fft.fft(x, verify=mode).compute()
    np.testing.assert_allclose(result, np.fft.fft(np.full(1024, 3e152 + 0j)), atol=1e140)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("factor", [2, 3, 7])
def test_thousands_of_short_lines_are_no_fault(events, mode, factor):
    """Sums of so many lines keep their rounding errors below the tolerance."""
    n = factor << 17
    x = da.from_array(signal(n=n), chunks=n // 2)
    rounds = [{0: factor}, {0: -1}]
    assert plan(x, "fft", rounds=rounds).rounds[0].source.full_shape == (1 << 16, factor)
    with dask.config.set(scheduler="sync"):
        result = fft.fft(x, rounds=rounds, verify=mode).compute()
    np.testing.assert_allclose(
        result,
        np.fft.fft(x.compute()),
        rtol=0,
        atol=1e-9,
    )
    assert not events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [(16, 256), (16, 16), (256, 8)])
@pytest.mark.parametrize("dtype", ["f4", "c8", "f8", "c16"])
def test_squares_of_what_is_checked_may_be_too_small(
    events,
    mode,
    chunks,
    dtype,
):
    """As far from the middle of a bell, where values fall below all numbers that there are."""
    t = np.linspace(-1, 1, 256) * (14 if dtype in ("f4", "c8") else 40)
    a = np.exp(-(t[:, None] ** 2 + t**2) / 2).astype(dtype)
    x = da.from_array(a, chunks=chunks)
    for name, where in (("fft", {"axis": 1}), ("fft2", {}), ("ifft", {"axis": 0})):
        function = getattr(fft, name)
        right = function(x, **where)
        result = function(x, verify=mode, **where)
        result, right = dask.compute(result, right, scheduler="sync")
        off = np.linalg.norm(result - right)  # checked tiles are copies, others are read in place
        assert off <= 4 * np.finfo(result.dtype).eps * np.linalg.norm(right)
    assert not events


@pytest.mark.parametrize("kernel", usable())
@pytest.mark.parametrize(
    ("damage", "mode"),
    [
        ("exponent bit", "energy"),
        ("exponent bit", "checksum"),
        ("sign bit", "checksum"),
    ],
)
@pytest.mark.parametrize("kind", ["fft2", "rfft2"])
def test_every_library_with_sources_that_are_only_read(
    monkeypatch,
    events,
    kind,
    damage,
    mode,
    kernel,
):
    small_tiles(monkeypatch, 4400)
    a = random_array((64, 128), "f8" if kind == "rfft2" else "c16", 6)
    x = da.from_array(a, chunks=(16, 128))
    original = a.copy()
    with dask.config.set(scheduler="sync"):
        # Checked, too: some libraries round differently by how many lines they are given.
        right = getattr(fft, kind)(x, verify=mode, kernel=kernel).compute()
        np.testing.assert_allclose(
            right,
            getattr(np.fft, kind)(a),
            rtol=1e-10,
            atol=1e-10,
        )
        when = Times(1, 9)
        damaged(monkeypatch, DAMAGES[damage], when)
        result = getattr(fft, kind)(x, verify=mode, kernel=kernel).compute()
    assert when.left < 0
    assert [name for name, _ in events] == ["mismatch"]
    np.testing.assert_array_equal(result, right)
    np.testing.assert_array_equal(a, original)


# --- one fault anywhere ---------------------------------------------------------------------

#: Calls with rounds: name, shape, chunks, and options. Prime lengths have filters.
CALLS = {
    "prime": ("fft", (31,), (11,), {}),
    "three rounds": ("fft", (256,), (64,), {"rounds": [{0: 4}, {0: 8}, {0: 8}]}),
    "transposed": ("ifft", (240,), (80,), {"order": "transposed"}),
    "half spectra": ("rfftn", (8, 32), (4, 16), {}),
    "to real": ("irfftn", (8, 17), (4, 9), {}),
    "overwritten": ("fft2", (16, 32), (4, 32), {"overwrite_x": True}),
}

#: Ways of blocks from round to round: settings.
WAYS = {
    "in place": {},
    "apart": {"bigfft.exchange.in-place": False},
    "tasks": {"bigfft.exchange.carrier": "tasks"},
    "disk": {"bigfft.exchange.carrier": "disk"},
    "devices": {"bigfft.device": "gpu"},
}


class OneFault:
    """Counter of FFTs that returns True for a single one of them."""

    def __init__(self):
        self.calls = 0
        self.faulty_call = None
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self.calls += 1
            return self.calls - 1 == self.faulty_call


def damaged_devices(monkeypatch, damage, when):
    """Let simulated devices transform wrongly when it is time."""

    def transform(operation, values):
        result = transformed_by_device(operation, values)
        if when():
            damage(result)
        return result

    monkeypatch.setattr(dask_bigfft.testing.simulated, "transformed", transform)


def assert_faults_are_repaired(
    monkeypatch,
    call,
    mode,
    damage,
):
    """Assert that the result of a call is the same with one fault in any FFT."""
    name, shape, chunks, options = call
    fault = OneFault()
    damaged(monkeypatch, DAMAGES[damage], fault)
    damaged_devices(monkeypatch, DAMAGES[damage], fault)
    a = random_array(shape, "f8" if name.startswith("r") else "c16", 7)
    y = getattr(fft, name)(da.from_array(a, chunks=chunks), verify=mode, **options)
    right = y.compute()
    calls = fault.calls
    assert calls > 1
    for number in range(calls):
        fault.calls = 0
        fault.faulty_call = number
        result = y.compute()
        assert fault.calls > number
        np.testing.assert_array_equal(result, right, f"fault in call {number} of {calls}")


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("mode", "damage", "tile_nbytes"),
    [
        ("energy", "exponent bit", None),
        ("checksum", "sign bit", 200),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_in_any_fft_is_repaired(
    monkeypatch,
    tmp_path,
    name,
    way,
    mode,
    damage,
    tile_nbytes,
):
    """Also in rounds of filters: a tile is repeated with values that are intact."""
    if tile_nbytes is not None:
        small_tiles(monkeypatch, tile_nbytes)
    settings = {
        "scheduler": "sync",
        "bigfft.planner.whole-axis-floor": 1,
        "bigfft.scratch.directory": str(tmp_path),
    }
    with dask.config.set({**settings, **WAYS[way]}), contextlib.ExitStack() as devices:
        if way == "devices":
            devices.enter_context(simulated_devices(1 << 14, limits=TileLimits(0, least=64)))
        assert_faults_are_repaired(
            monkeypatch,
            CALLS[name],
            mode,
            damage,
        )


def test_a_fault_in_any_fft_is_repaired_in_real_input_of_prime_length(monkeypatch):
    settings = {"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}
    with dask.config.set(settings):
        call = ("rfft", (17,), (6,), {})
        assert_faults_are_repaired(
            monkeypatch,
            call,
            "energy",
            "exponent bit",
        )


def test_a_fault_in_any_fft_is_repaired_on_workers(monkeypatch):
    settings = {"bigfft.exchange.carrier": "p2p", "bigfft.planner.whole-axis-floor": 1}
    with local(), dask.config.set(settings):
        assert_faults_are_repaired(
            monkeypatch,
            CALLS["prime"],
            "energy",
            "exponent bit",
        )


# --- shards ---------------------------------------------------------------------------------


def swapped(shards):
    """Two shards of one size change places."""
    first, second = next(
        (a, b) for a in shards for b in shards if a < b and shards[a].size == shards[b].size
    )
    return shards | {first: shards[second], second: shards[first]}


def damaged_shard(shards, damage):
    first = next(iter(shards))
    values = shards[first].copy()
    DAMAGES[damage](values)
    return shards | {first: values}


SHARD_FAULTS = {
    "swap of two shards": swapped,
    **{damage: functools.partial(damaged_shard, damage=damage) for damage in DAMAGES},
}


def broken_on_the_way(shards, fault):
    """Shards, each perhaps with the checksum that was sent with it, after a fault."""
    with_checksums = any(isinstance(shard, tuple) for shard in shards.values())
    sent = {a: shard[0] if with_checksums else shard for a, shard in shards.items()}
    values = SHARD_FAULTS[fault](sent)
    assert any(not np.array_equal(values[a], sent[a]) for a in sent)
    return {a: (values[a], shards[a][1]) if with_checksums else values[a] for a in values}


@pytest.mark.parametrize("mode", ["none", *MODES])
@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_shards_of_tasks(
    monkeypatch,
    events,
    fault,
    mode,
):
    """The data themselves are damaged, on their way from one task to another."""
    original = dask_bigfft.carriers.tasks.run_block_of_shards
    when = Times(1, after=2)

    def broken(run, number, block, filter_axes, *inputs):
        count = len(filter_axes)
        filters = inputs[:count]
        sources = inputs[count]
        packed = inputs[count + 1 :]
        shards = dict(zip(sources, packed, strict=True))
        if when():
            shards = broken_on_the_way(shards, fault)
        return original(
            run,
            number,
            block,
            filter_axes,
            *filters,
            sources,
            *shards.values(),
        )

    monkeypatch.setattr(dask_bigfft.carriers.tasks, "run_block_of_shards", broken)
    right = transformed(signal())
    with dask.config.set({"bigfft.exchange.carrier": "tasks"}):
        if mode == "checksum":
            with pytest.raises(VerificationError, match=r"exchange \d, block \(\d+,\): the shard"):
                transformed(signal(), verify=mode)
        else:
            result = transformed(signal(), verify=mode)
            if fault == "last bit":  # which the rounding of later sums may take back
                np.testing.assert_allclose(
                    result,
                    right,
                    rtol=0,
                    atol=1e-12,
                )
            else:
                assert not np.array_equal(result, right)
    assert when.left < 1
    assert [name for name, _ in events] == ["mismatch"] * (mode == "checksum")


def test_shards_of_shuffles(monkeypatch):
    """Whatever happened between packing and putting together, in flight or in a file."""
    original = shuffle.collect
    damaging = threading.Event()
    fault = ""

    def broken(*arguments):
        # On another worker than the block's this raises. All that come meanwhile are damaged: tasks
        # of the computation before, which has ended in an error, may still be on their way.
        shards, free = original(*arguments)
        return broken_on_the_way(shards, fault) if damaging.is_set() else shards, free

    monkeypatch.setattr(shuffle, "collect", broken)
    with local(), dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        x = da.from_array(signal(), chunks=256)
        right = fft.fft(x).compute()
        np.testing.assert_array_equal(fft.fft(x, verify="checksum").compute(), right)
        damaging.set()
        for fault in SHARD_FAULTS:
            with pytest.raises(VerificationError, match=r"the shard of block \(\d+,\) is not what"):
                fft.fft(x, verify="checksum").compute()
            if fault in ("swap of two shards", "exponent bit"):
                assert not np.array_equal(fft.fft(x, verify="energy").compute(), right)


@pytest.mark.parametrize("mode", ["none", *MODES])
@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_scratch_files(
    tmp_path,
    monkeypatch,
    events,
    fault,
    mode,
):
    """What is on the disk is damaged: files have checksums whether or not anything is verified."""
    original = Scratch.read
    when = Times(1, after=2)

    def broken(self, whole, parts, *places):
        if when():
            path = self.path(whole.exchange, whole.target)
            data = np.fromfile(path, np.uint8)
            cuts = {p.source: slice(p.begin, p.begin + p.nbytes) for p in parts}
            values = {a: data[cut].view(complex) for a, cut in cuts.items()}
            for a, shard in SHARD_FAULTS[fault](values).items():
                data[cuts[a]] = shard.copy().view(np.uint8)
            path.write_bytes(data.tobytes())
        original(self, whole, parts, *places)

    monkeypatch.setattr(Scratch, "read", broken)
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.directory": str(tmp_path)}
    with dask.config.set(options), pytest.raises(DamagedShardError, match="not what was written"):
        transformed(signal(), verify=mode)
    assert {name for name, _ in events} == {"mismatch"}


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_two_ways_of_doing_a_round_may_differ_by_rounding_errors_only(dtype):
    values = random_array((300, 70), dtype, 0)
    eps = np.finfo(dtype).eps
    other = values * (1 + 8 * eps)
    assert near_values(values, other)
    assert near_values(np.zeros(8, dtype), np.zeros(8, dtype))
    for damage in ("exponent bit", "sign bit"):
        damaged = values.copy()
        DAMAGES[damage](damaged)
        assert not near_values(values, damaged)
    assert not near_values(values, values * (1 + 4000 * eps))
    for value in (np.nan, np.inf):
        values[5, 7] = value
        different = other.copy()
        assert not near_values(values, different)
        different[5, 7] = np.nan
        assert near_values(values, different)
    values[5, 7] = 0
    for scale in (np.finfo(dtype).tiny / eps, np.finfo(dtype).max / 64):  # of other squares
        ours = (values * scale).astype(dtype)
        other = ours.copy()
        other[3, 3] += scale * eps
        assert near_values(ours, other)
        other[3, 3] += scale
        assert not near_values(ours, other)

"""What is tuned of devices: settings reach the pipeline, and the best ones are found."""

import itertools
from dataclasses import dataclass, replace

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import config, fft
from dask_bigfft.devices import find
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.simulated_ring import RingClock
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import DeviceProfile, Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planning import device_tuning, trials
from dask_bigfft.planning.tuning import tuned
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.transforms.spec import transform_spec

SHAPE, CHUNKS = (256, 256), (64, 256)
NBYTES = 3 << 17


@dataclass(frozen=True)
class Card:
    """A simulated device, and whether the host memory is not pinned."""

    profile: DeviceProfile
    pageable: bool = False


#: One whose calls are slow, and one with slow FFTs where nothing is pinned.
CARDS = (
    Card(DeviceProfile(h2d=2e10, d2h=2e10, call=1e-4, run=0.0, nbytes=6 << 20, name="calls")),
    Card(DeviceProfile(h2d=2e10, d2h=2e10, call=1e-7, run=0.0, flops=5e10, ring=1e10,
                       nbytes=6 << 20, name="slow FFTs"), pageable=True),
)


def request_of(x, **keywords):
    chunks = tuple(tuple(map(int, cut)) for cut in x.chunks)
    return Request(chunks, **{"kernel": "scipy", "carrier": "memory", "device": "cpu"} | keywords)


def clocked(device, plan):
    """What runs a plan on ones, and gives the seconds by a simulated device's clock."""
    x = trials.ones(plan)

    def timed(plan):
        started = device.clock()
        transformed_array(x, plan, config.get("bigfft.exchange.carrier")).persist()
        return device.clock() - started

    return timed


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path), "scheduler": "sync"}):
        yield tmp_path


def asked(card, nbytes):
    spec = transform_spec("fftn", SHAPE, np.dtype("c16"))
    x = da.ones(SHAPE, chunks=CHUNKS, dtype="c16")
    request = request_of(x, device="gpu", device_nbytes=nbytes)
    profile = replace(card.profile, nbytes=nbytes)
    return spec, request, Machine(threads=1, profile=Profile(devices=(profile,)), cards=1)


@pytest.mark.parametrize("streams", ["role", "piece"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_do_not_depend_on_settings(streams, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((16, 32, 60)) + 1j * rng.standard_normal((16, 32, 60))
    x = da.from_array(values, chunks=(4, 32, 60))
    limits = PieceLimits(0, least=256, run_nbytes=64)
    plan = find_plan(transform_spec("fftn", x.shape, x.dtype),
                     request_of(x, device="gpu"), Machine())
    for k, passes in itertools.product((1, 8), (1, 5)):
        settings = DeviceSettings(k, passes, streams, ring_buffers=2, ring_nbytes=1 << 12)
        with simulated_devices(1 << 18, seed=seed, limits=limits) as (device,):
            found = transformed_array(x, replace(plan, settings=settings), "shared").compute()
            assert (device.ring.buffers, device.ring.nbytes) == (2, 1 << 12)
        assert np.allclose(found, np.fft.fftn(values))


def test_a_missing_wait_between_streams_of_pieces_is_found(monkeypatch):
    values = np.random.default_rng(0).standard_normal((64, 64)) + 0j
    x = da.from_array(values, chunks=64)
    plan = find_plan(transform_spec("fftn", x.shape, x.dtype),
                     request_of(x, device="gpu"), Machine())
    plan = replace(plan, settings=DeviceSettings(4, 8, "piece"))
    assert Plan.from_json(plan.to_json()).settings == plan.settings

    def wrong(seed):  # each block crosses twice: what the first crossing writes, the second reads
        limits = PieceLimits(0, least=256, run_nbytes=64)
        with simulated_devices(1 << 14, seed=seed, limits=limits):
            found = transformed_array(x, plan, "shared").compute()
        return not np.allclose(found, np.fft.fftn(values))

    assert not any(map(wrong, range(4)))
    waits = SimulatedDevice.wait

    def careless(self, stream, event):
        if event.name != "stored":
            waits(self, stream, event)

    monkeypatch.setattr(SimulatedDevice, "wait", careless)
    assert any(map(wrong, range(12)))


def test_settings_cut_pieces():
    limits = PieceLimits(1 << 30)
    assert limits.tuned(AS_IS) == limits
    found = limits.tuned(DeviceSettings(buffers=8, passes=32))
    assert (found.slots, found.pieces, found.finer) == (8, 32, (1,))
    with pytest.raises(ValueError, match="buffers"):
        DeviceSettings(buffers=0)


def test_the_region_has_buffers_passes_streams_and_rings():
    pieces = [*device_tuning._group(AS_IS, "pieces")]
    tried = {(s.buffers, s.passes, s.streams) for s in pieces if s != AS_IS}
    wanted = {2, 3, 4, 8}, {4, 8, 16, 32}, {"role", "piece"}
    assert tried == set(itertools.product(*wanted))
    before = DeviceSettings(buffers=3, streams="piece")
    rings = [s for s in device_tuning._group(before, "ring") if s != before]
    assert {s.ring_buffers for s in rings} == {2, 4, 8}
    assert len({s.ring_nbytes for s in rings}) > 2
    assert {replace(s, ring_buffers=None, ring_nbytes=None) for s in rings} == {before}


def by_clock(card, nbytes, plan, settings):
    """Seconds of a plan with some settings, on a device of its own."""
    device = SimulatedDevice(nbytes, profile=card.profile, pageable=card.pageable)
    find.use([device], PieceLimits(nbytes), nbytes)
    try:
        timer = clocked(device, plan)
        return timer(replace(plan, settings=settings))
    finally:
        find.use(None)


@pytest.fixture
def few(monkeypatch):
    """A region that can be tried as a whole."""
    monkeypatch.setattr(trials, "SCALES", (1.0,))
    monkeypatch.setattr(trials, "REPEAT", 1)
    monkeypatch.setattr(device_tuning, "BUFFERS", (2, 3))
    monkeypatch.setattr(device_tuning, "PASSES", (2, 16))
    monkeypatch.setattr(device_tuning, "RING_BUFFERS", (1, 4))
    monkeypatch.setattr(device_tuning, "RING_NBYTES", (1 << 14, 1 << 20))


def test_the_best_settings_are_found_on_unlike_cards(few):
    nbytes, winners = NBYTES, []
    for card in CARDS:
        spec, request, on = asked(card, nbytes)
        device = SimulatedDevice(nbytes, profile=card.profile, pageable=card.pageable)
        find.use([device], PieceLimits(nbytes), nbytes)
        try:
            timer = clocked(device, find_plan(spec, request, on))
            found = tuned(spec, request, on, ["scipy"], timer)
        finally:
            find.use(None)
        plan = replace(found.plan, settings=AS_IS)
        region = [*device_tuning._group(AS_IS, "pieces")]
        times = {s: by_clock(card, nbytes, plan, s) for s in region}
        best = found.plan.settings
        pieces = replace(best, ring_buffers=None, ring_nbytes=None)
        assert times[pieces] <= 1.001 * min(times.values())
        rings = {
            s: by_clock(card, nbytes, plan, s) for s in device_tuning._group(pieces, "ring")
        }
        assert by_clock(card, nbytes, plan, best) <= 1.001 * min(rings.values())
        assert times[pieces] < 0.97 * max(times.values())
        winners.append(best)
    assert winners[0] != winners[1]


def test_settings_are_kept_with_the_plan(few):
    spec, request, on = asked(CARDS[0], NBYTES)
    wanted = DeviceSettings(buffers=2, passes=16, streams="piece")

    def timer(plan):
        return 1.0 if plan.settings == wanted else 2.0

    with simulated_devices(NBYTES):
        found = tuned(spec, request, on, ["scipy"], timer)
        assert found.plan.settings == wanted
        again = tuned(spec, request, on, ["scipy"], timer)
        other = replace(on, profile=Profile(devices=(replace(CARDS[0].profile, name="another"),)))
        assert tuned(spec, request, other, ["scipy"], timer).trials
    assert again.trials == ()
    assert again.plan.settings == wanted


def planned(shape, chunks, settings=AS_IS, **keywords):
    """A transform on a device whose host memory is not pinned."""
    values = np.random.default_rng(1).standard_normal(shape) + 0j
    x = da.from_array(values, chunks=chunks)
    request = request_of(x, device="gpu", **keywords)
    on = Machine(threads=1, profile=Profile(devices=(CARDS[1].profile,)), cards=1)
    plan = find_plan(transform_spec("fftn", x.shape, x.dtype), request, on)
    return values, x, replace(plan, settings=settings)


def test_every_round_uses_the_ring_in_parts_of_its_own(monkeypatch):
    settings = DeviceSettings(ring_buffers=2, ring_nbytes=1 << 14, ring_parts=(1 << 12, 1 << 10))
    values, x, plan = planned((256, 128), (64, 128), settings)
    assert len(plan.rounds) == 2
    assert Plan.from_json(plan.to_json()) == plan
    assert "in parts of 4096, 1024 by round" in str(settings)
    device, made, parts = SimulatedDevice(NBYTES, pageable=True), [], []
    real_ring, real_load = RingClock.__init__, RingClock.load

    def seen(self, *arguments):
        made.append(arguments)
        real_ring(self, *arguments)

    def load(self, *arguments):
        parts.append(self.part)
        return real_load(self, *arguments)

    monkeypatch.setattr(RingClock, "__init__", seen)
    monkeypatch.setattr(RingClock, "load", load)
    find.use([device], PieceLimits(NBYTES), NBYTES)
    try:
        found = transformed_array(x, plan, "shared").compute()
    finally:
        find.use(None)
    assert np.allclose(found, np.fft.fftn(values))
    assert len(made) == 1  # the ring stays one
    kinds = [part for part, _ in itertools.groupby(parts)]
    assert kinds[:2] == [1 << 12, 1 << 10]
    assert set(kinds) <= {1 << 12, 1 << 10, 1 << 14}  # all of it after the last round
    with pytest.raises(ValueError, match="ring_parts"):
        DeviceSettings(ring_parts=(4, 0))


def test_rounds_that_read_the_same_rows_are_tuned_together():
    plan = planned((256, 128), (64, 128))[-1]
    rows = device_tuning.rounds_by_rows(plan, AS_IS, pageable=True)
    shapes = [device_tuning._placed(plan, job, True)[0].schedule.crossings[0].reads[:2]
              for job in device_tuning._jobs(plan, AS_IS)]
    assert sorted(itertools.chain(*rows)) == [0, 1]
    assert len(rows) == len(set(shapes))
    base = DeviceSettings(ring_nbytes=1 << 12)
    tried = [s.ring_parts for s in device_tuning._group(base, (0, 2), 3)]
    assert tried[1:] == [(4096 // n, 4096, 4096 // n) for n in device_tuning.PARTS]
    assert all(s.ring_nbytes == 1 << 12 for s in device_tuning._group(base, (0, 2), 3))


def test_the_parts_of_each_round_are_found_and_kept(few, monkeypatch):
    monkeypatch.setattr(device_tuning, "RING_NBYTES", (1 << 16,))
    wanted = (1 << 14, 1 << 13)
    spec, request, on = asked(CARDS[1], NBYTES)
    device = SimulatedDevice(NBYTES, profile=CARDS[1].profile, pageable=True)

    def timer(plan):
        """Each round is slower in other parts; the ring that is asked for is the fastest."""
        device.staged += 1
        if len(plan.rounds) != 2:
            return 100.0
        parts = plan.settings.ring_parts or (0, 0)
        wrong = sum(a != b for a, b in zip(parts, wanted, strict=True))
        return 2.0 + wrong - (plan.settings.ring_nbytes == 1 << 16)

    monkeypatch.setattr(device_tuning, "rounds_by_rows", lambda *args, **keywords: [(0,), (1,)])
    monkeypatch.setattr(trials, "rounds_by_rows", device_tuning.rounds_by_rows)
    find.use([device], PieceLimits(NBYTES), NBYTES)
    assert find.leases() is not None  # opened, as by a run
    try:
        found = tuned(spec, request, on, ["scipy"], timer)
        again = tuned(spec, request, on, ["scipy"], timer)
    finally:
        find.use(None)
    assert found.plan.settings.ring_nbytes == 1 << 16
    assert found.plan.settings.ring_parts == wanted
    assert again.trials == ()
    assert again.plan.settings == found.plan.settings


@pytest.mark.parametrize("staged", [False, True])
def test_the_ring_is_tried_where_this_transform_goes_through_it(few, staged):
    spec, request, on = asked(CARDS[1], NBYTES)
    device = SimulatedDevice(NBYTES, profile=CARDS[1].profile, pageable=staged)
    device.staged = 5  # something else went through it before
    find.use([device], PieceLimits(NBYTES), NBYTES)
    assert find.leases() is not None
    try:
        with dask.config.set(scheduler="sync"):
            timer = clocked(device, planned((256, 256), (64, 256))[-1])
            found = tuned(spec, request, on, ["scipy"], timer)
    finally:
        find.use(None)
    rings = [trial for trial in found.trials if trial.settings.ring_nbytes is not None]
    assert bool(rings) == staged


def test_the_model_knows_how_much_of_a_card_may_be_used():
    spec, request, on = asked(CARDS[0], NBYTES)
    seconds = {}
    for nbytes in (NBYTES, 1 << 30):
        pairs = trials.region(spec, replace(request, device_nbytes=nbytes), on, ["scipy"])
        seconds[nbytes] = {
            pair[0].notation: pair[0].expected.seconds for pair in pairs if pair[1].scale == 1.0}
    both = set(seconds[NBYTES]) & set(seconds[1 << 30])
    assert both
    assert any(seconds[NBYTES][name] > 1.2 * seconds[1 << 30][name] for name in both)


def test_the_front_door_tunes_devices(few):
    x = da.ones(SHAPE, chunks=CHUNKS, dtype=complex)
    with simulated_devices(1 << 20):
        y = fft.fftn(x, device="gpu", planner="measure")
        assert np.allclose(y.compute(), np.fft.fftn(np.ones(SHAPE)))

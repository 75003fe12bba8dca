"""CPU threads and devices in the same rounds: SciPy's answers, whoever does what."""

import contextlib
import threading
import time
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import on_devices
from laws.test_devices import CASES, KINDS, SMALL, WIDE, assert_close, computed, split, values
from support import heard, local

from dask_bigfft import fft, plan, report
from dask_bigfft.cluster import register
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import workers_of
from dask_bigfft.gpu import dispatch, work_sharing
from dask_bigfft.gpu.dispatch import Place
from dask_bigfft.gpu.operations import FFT
from dask_bigfft.planner.profile import DeviceProfile, LibrarySpeeds, Profile
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.simulated import SimulatedGPU

#: A test that waits for longer than this has failed.
PATIENCE = 10.0


@pytest.fixture(autouse=True)
def every_round_is_shared():
    """The default speeds are those of a card that had better work alone."""
    with dask.config.set({"bigfft.hybrid.min-speedup": 0}):
        yield


def waited_for(ready):
    """Return whether something has happened in time."""
    for _ in range(int(PATIENCE / 0.005)):
        if ready():
            return True
        time.sleep(0.005)
    return False


def feeders():
    """Threads that give pieces to devices now."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("bigfft-feeder")]


def cpu_threads_wait(monkeypatch, ready):
    """Let CPU threads do nothing of blocks before something has happened, if devices take part."""
    real = work_sharing.Interval.take_tile

    def late(self):
        waited_for(lambda: ready() or not self.offers())
        return real(self)

    monkeypatch.setattr(work_sharing.Interval, "take_tile", late)


@pytest.mark.pairs
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("shape", "chunks", "nbytes"), CASES)
def test_every_kind(
    monkeypatch,
    name,
    shape,
    chunks,
    nbytes,
    single,
):
    real = name in ("rfftn", "ihfftn")
    x = values(*shape, real=real, single=single)
    source = x.copy()
    source.flags.writeable = False
    by_hand = dask.config.set({"bigfft.hybrid.cpu-share": 0.4 if single else None})
    with by_hand, split(), simulated_devices(nbytes, 2, seed=len(shape), limits=SMALL) as devices:
        if name in ("fftn", "ifftn"):  # real kinds may need more crossings than one in such a card
            cpu_threads_wait(monkeypatch, lambda: any(device.trace for device in devices))
        lazy = getattr(fft, name)(da.from_array(source, chunks), norm="ortho", device="hybrid")
        transformed, nbytes_of = computed(lazy)
        assert all(device.peak <= nbytes for device in devices)
    expected = getattr(scipy.fft, name)(x, norm="ortho")
    assert transformed.dtype == expected.dtype
    assert_close(transformed, expected, single)
    np.testing.assert_array_equal(source, x)
    shared = nbytes_of.get("round_cpu", 0) + nbytes_of.get("round_device", 0)
    assert 0.99 * nbytes_of["round"] <= shared <= nbytes_of["round"]
    if name in ("fftn", "ifftn"):
        assert nbytes_of["round_device"]


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "limits"),
    [
        ("fft2", (64, 48), (13, 48), WIDE),  # read as slabs of other blocks
        ("fft2", (64, 64), (64, 64), SMALL),  # more crossings than one: done by one or the other
        ("fft", (8191,), (512,), SMALL),  # Bluestein
        ("hfft", (257,), (33,), SMALL),
    ],
)
def test_blocks_that_are_read_or_done_in_other_ways(
    name,
    shape,
    chunks,
    limits,
):
    x = values(*shape)
    with split(), simulated_devices(1 << 14, limits=limits):
        transformed = getattr(fft, name)(da.from_array(x, chunks), device="hybrid").compute()
    assert_close(transformed, getattr(scipy.fft, name)(x))


class Failing(SimulatedGPU):
    """A device whose memory is used up in the middle of a block, again and again."""

    calls = 0

    def compute(self, stream, op, *arrays):
        self.calls += isinstance(op, FFT)
        if isinstance(op, FFT) and self.calls % 7 == 3:
            raise DeviceMemoryError("the GPU is full")
        super().compute(stream, op, *arrays)


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (SimulatedGPU, "compute", DeviceError("the GPU has fallen off the bus")),
        (work_sharing.CPUExecutor, "transform", OSError("no such library")),
    ],
)
def test_an_error_of_either_is_one_of_the_task(
    monkeypatch,
    place,
    name,
    error,
):
    def broken(*arguments, **options):
        raise error

    monkeypatch.setattr(place, name, broken)
    with simulated_devices(1 << 14, limits=SMALL), pytest.raises(type(error), match=str(error)):
        fft.fft2(da.from_array(values(96, 64), (24, 64)), device="hybrid").compute()
    assert waited_for(lambda: not feeders())


@pytest.mark.parametrize("seed", range(3))
def test_many_tasks_share_devices_one_of_which_runs_out_of_memory(monkeypatch, seed):
    """More tasks than leases: all end, with the CPU's answer, and what comes back is done."""
    x = values(384, 64, seed=seed)
    failing = Failing(1 << 14, seed)
    cpu_threads_wait(monkeypatch, lambda: failing.calls >= 3)
    with on_devices(failing, SimulatedGPU(1 << 14, seed)):
        lazy = fft.fft2(da.from_array(x, (24, 64)), device="hybrid")
        spectrum, nbytes_of = computed(lazy, scheduler="threads", num_workers=12)
        assert not dispatch.in_use()
    assert_close(spectrum, scipy.fft.fft2(x))
    assert nbytes_of["fallback"]
    assert nbytes_of["round_cpu"] + nbytes_of["round_device"] == nbytes_of["round"]


#: Speeds of a machine, of which a test alters those of the threads or of the device.
LIBRARY = LibrarySpeeds(
    "ducc0",
    "complex128",
    2e9,
    2e9,
    supports_out=True,
)
EVEN = Profile(
    name="even",
    threads=4,
    copy=2e9,
    together=1.0,
    **dict.fromkeys(("run", "move", "task", "exchange", "pair", "shard", "shared_round"), 0),
    libraries=(LIBRARY,),
    devices=(DeviceProfile(h2d=2e9, d2h=2e9),),
)
SLOW_THREADS = replace(EVEN, libraries=(replace(LIBRARY, flops=6e6, large_flops=6e6),))
SLOW_DEVICE = replace(EVEN, devices=(DeviceProfile(h2d=2e6, d2h=2e6),))


@contextlib.contextmanager
def speeds(
    tmp_path,
    profile,
    gain=1.1,
    nbytes=1 << 30,
):
    """Plans are made with a profile, for four threads and a device."""
    path = tmp_path / "speeds.json"
    path.write_text(profile.to_json())
    settings = {"bigfft.hybrid.min-speedup": gain, "bigfft.planner.profile": str(path)}
    with dask.config.set({**settings, "num_workers": 4}), simulated_devices(nbytes):
        yield


@pytest.fixture
def alike(monkeypatch):
    """A device is forecast to be as fast as a thread."""
    real = Place.for_share
    monkeypatch.setattr(Place, "for_share", lambda *given: replace(real(*given), share=0.5))


@pytest.mark.parametrize(
    ("shape", "chunks", "passes"),
    [
        ((96, 64), (24, 64), 1),
        ((24, 64, 64), (24, 64, 64), 2),
    ],
)
@pytest.mark.parametrize("share", [0, 0.3, 0.75, 1])
def test_a_share_set_by_hand_is_that_of_the_rows_of_each_block(
    shape,
    chunks,
    passes,
    share,
):
    """Tasks wait for a device that others use. A plane takes several passes."""
    x = values(*shape)
    array = da.from_array(x, chunks)
    by_hand = {"bigfft.hybrid.cpu-share": share, "bigfft.hybrid.min-speedup": 9}
    with dask.config.set(by_hand), split(), simulated_devices(1 << 14, limits=SMALL):
        lazy = fft.fft2(array, device="hybrid")
        spectrum, nbytes_of = computed(lazy, scheduler="threads", num_workers=8)
        text = plan(array, "fft2", device="hybrid").explain(details=True)
    assert_close(spectrum, scipy.fft.fft2(x))
    assert nbytes_of["round_cpu"] + nbytes_of["round_device"] == nbytes_of["round"]
    assert abs(nbytes_of["round_cpu"] / nbytes_of["round"] - share) <= 1 / 24
    assert nbytes_of["h2d"] == passes * nbytes_of["round_device"]
    assert f"{100 * share:.0f} % of the rows of each block" in text.replace("\n    ", "")


@pytest.mark.parametrize("late", ["CPU", "device"])
def test_one_does_what_the_other_does_not_come_to(monkeypatch, alike, late):
    """The CPU hangs in its first tile until the device has done three quarters of the block.

    Or the device hangs in each portion until the CPU has taken half of what it left.
    """
    x = values(256, 16)
    real = work_sharing.Interval.land

    def slow(self):
        waited_for(lambda: 2 * self.low >= self.high)
        real(self)

    with simulated_devices(1 << 14, limits=SMALL), heard("h2d") as copies:
        if late == "CPU":
            cpu_threads_wait(
                monkeypatch, lambda: sum(n["nbytes"] for _, n in copies) >= 3 * x.nbytes // 4
            )
        else:
            monkeypatch.setattr(work_sharing.Interval, "land", slow)
        lazy = fft.fft(da.from_array(x, -1), axis=1, device="hybrid")
        spectrum, nbytes_of = computed(lazy)
    assert_close(spectrum, scipy.fft.fft(x, axis=1))
    least = {"CPU": ("round_device", 3 / 4), "device": ("round_cpu", 1 / 8)}[late]
    assert nbytes_of[least[0]] >= least[1] * x.nbytes


@pytest.mark.parametrize(
    ("profile", "device"),
    [
        (SLOW_THREADS, "gpu"),
        (SLOW_DEVICE, "cpu"),
        (EVEN, "hybrid"),
        # CPU threads are a little faster by the model, which is not known as well as a bus.
        (replace(EVEN, shared_round=1.0), "gpu"),
    ],
)
def test_the_faster_ones_do_alone_what_sharing_would_not_gain(tmp_path, profile, device):
    array = da.zeros((4096, 4096), chunks=(256, 4096), dtype="c16")
    with speeds(tmp_path, profile):
        keywords = {"axis": 1, "kernel": "ducc0"}
        alone = {name: plan(array, "fft", device=name, **keywords) for name in ("cpu", "gpu")}
        hybrid = plan(
            array,
            "fft",
            device="hybrid",
            **keywords,
        )
    assert hybrid.device == device
    if device == "hybrid":
        fastest = min(single.expected.seconds for single in alone.values())
        assert hybrid.expected.seconds * 1.1 <= fastest
        assert all(0.3 < share < 0.7 for share in hybrid.shares)
        shares, seconds = zip(*((r.share, r.seconds) for r in hybrid.expected.rounds), strict=True)
        assert shares == hybrid.shares
        assert sum(seconds) == pytest.approx(hybrid.expected.seconds)
    else:
        assert hybrid.rounds == alone[device].rounds
        assert hybrid.expected == alone[device].expected
        assert set(hybrid.shares) == {float(device == "gpu")}
        assert "do all rounds alone by the model" in hybrid.explain(details=True).replace("\n", " ")


def test_whole_transforms_beside_a_slow_bus_are_shared(tmp_path):
    """PCIe 2, and eight threads of an H100's host. Else the GPU takes at once what fits it."""
    slow = DeviceProfile(h2d=6.25e9, d2h=6.25e9)
    library = replace(LIBRARY, large_flops=2.1e9)
    array = da.zeros((16384, 16384), chunks=(1024, 16384), dtype="c16")
    for device, nbytes, gain in ((slow, 1 << 30, 1.2), (DeviceProfile(), 1 << 34, 1)):
        profile = replace(
            EVEN,
            threads=16,
            copy=4.4e9,
            libraries=(library,),
            devices=(device,),
        )
        with speeds(tmp_path, profile, nbytes=nbytes), dask.config.set(num_workers=8):
            alone, both = (plan(array, "fft2", kernel="ducc0", device=d) for d in ("gpu", "hybrid"))
        assert both.device == ("gpu" if gain == 1 else "hybrid")
        assert alone.expected.seconds >= gain * both.expected.seconds


def test_a_task_waits_for_a_device_when_the_cpu_has_done_its_share(monkeypatch, alike):
    x = values(256, 16)
    waits = list[float]()

    def none_is_free(self, tasks, timeout):
        waits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(dispatch.Leases, "lease", none_is_free)
    with simulated_devices(1 << 14, limits=SMALL):
        spectrum = fft.fft(da.from_array(x, -1), axis=1, device="hybrid").compute()
    assert_close(spectrum, scipy.fft.fft(x, axis=1))
    assert 0.4 < [wait > 0 for wait in waits].index(True) / len(waits) < 0.6


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_the_share_of_a_plan_lets_all_end_together(tmp_path, factor):
    """By what each takes alone; one of four threads is left to feeding the device."""
    array = da.zeros((4096, 4096), chunks=(256, 4096), dtype="c16")
    device = DeviceProfile(h2d=factor * 2e9, d2h=factor * 2e9)
    with speeds(tmp_path, replace(EVEN, devices=(device,)), gain=0):
        names = "cpu", "gpu", "hybrid"
        cpu, gpu, hybrid = (plan(array, "fft", axis=1, kernel="ducc0", device=d) for d in names)
    ours = cpu.expected.seconds * 4 / 3
    theirs = gpu.expected.seconds
    (share,) = hybrid.shares
    assert abs(share - ours / (ours + theirs)) <= 0.05
    # Both are slower beside each other.
    assert hybrid.expected.seconds == pytest.approx(share * theirs * (1 + 3 / 35), rel=0.05)
    assert factor < ours / theirs < 1.5 * factor


@pytest.mark.parametrize(
    ("nbytes", "who", "percent", "name"),
    [
        (1 << 19, "round_device", 100, "fft2"),
        (1 << 8, "round_cpu", 0, "ifft2"),
    ],
)
def test_what_one_kind_does_alone_is_forecast_as_its_share(
    nbytes,
    who,
    percent,
    name,
):
    """Of one block that takes several crossings, and of one that no card has room for."""
    x = values(256, 256)
    with simulated_devices(nbytes, limits=SMALL):
        array = da.from_array(x, (256, 256))
        lazy = getattr(fft, name)(array, device="hybrid", kernel="scipy")
        (share,) = plan(
            array,
            name,
            device="hybrid",
            kernel="scipy",
        ).shares
        transformed, nbytes_of = computed(lazy)
        told = str(report(lazy))
    assert_close(transformed, getattr(scipy.fft, name)(x))
    assert {event for event in nbytes_of if event.startswith("round_")} == {who}
    assert nbytes_of[who] == nbytes_of["round"]
    assert share == percent / 100
    assert f"devices  {percent} % of round 1 ({percent} % by the model)" in told


def _simulated():
    dispatch.use([SimulatedGPU(1 << 14)], TileLimits(0, least=256, run_nbytes=64), 1 << 14)


def _spans():
    leases = dispatch.leases()
    return 0 if leases is None else len(leases.engines[0].device.trace)


@pytest.mark.slow
def test_a_cluster_of_workers_with_and_without_devices(tmp_path):
    x = values(128, 64)
    path = tmp_path / "fast.json"
    path.write_text(SLOW_THREADS.to_json())
    by_devices = {"bigfft.hybrid.min-speedup": 1.1, "bigfft.planner.profile": str(path)}
    with dask.config.set({"distributed.worker.daemon": False}), local(processes=True) as client:
        with_devices, without = workers_of(client)
        client.run(_simulated, workers=[with_devices])
        lazy = fft.fft2(da.from_array(x, (16, 64)), device="hybrid")
        (thought,) = report(lazy).runs
        spectrum = lazy.compute()
        spans = client.run(_spans)
        with dask.config.set(by_devices):  # before anybody knows that one worker has none
            line = da.from_array(x.ravel(), 1024)
            assert plan(line, "fft", device="hybrid", kernel="ducc0").device == "gpu"
            alone = fft.fft(line, device="hybrid", kernel="ducc0").compute()
        register(client)
        lazy = fft.fft2(da.from_array(x, (16, 64)), device="hybrid")
        lazy.compute()
        (told,) = report(lazy).runs
    assert_close(spectrum, scipy.fft.fft2(x))
    assert_close(alone, scipy.fft.fft(x.ravel()))
    assert spans[with_devices]
    assert not spans[without]
    assert told.plan.device == "hybrid"
    for before, known in zip(thought.plan.shares, told.plan.expected.rounds, strict=False):
        assert known.share == pytest.approx(before, abs=1e-3)
        assert 0 < told.shares[known.index] < 1
        assert f"round {known.index} ({100 * known.share:.0f} % by the model)" in str(told)

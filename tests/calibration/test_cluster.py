"""Calibration of a cluster: what all its workers have, the slowest of each, and what they share."""

from dataclasses import fields, replace

import dask
import dask.array as da
import pytest
from calibration.test_calibrate import machine

import dask_bigfft
from dask_bigfft.calibration import cluster, threads
from dask_bigfft.calibration.cluster import slowest
from dask_bigfft.events import workers_of
from dask_bigfft.kernels import libraries
from dask_bigfft.machine import environment
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, LibrarySpeeds, Profile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    environment._profile.cache_clear()
    folders = {"wisdom": str(tmp_path / "wisdom"), "scratch": str(tmp_path / "scratch")}
    with dask.config.set({f"bigfft.{name}.directory": path for name, path in folders.items()}):
        yield tmp_path


def only(names):
    libraries.available = lambda: names


def test_a_cluster_has_its_own(client, folder):
    """Two processes: one of them lacks a library, and the profile holds while they are there."""
    pytest.importorskip("ducc0")
    first, second = workers_of(client)
    client.run(only, ["ducc0", "scipy", "pyfftw"], workers=[first])
    client.run(only, ["scipy", "ducc0"], workers=[second])
    profile = dask_bigfft.calibrate(client, nbytes=1 << 14, repeat=1)
    assert {(library.name, library.dtype) for library in profile.libraries} == {
        (name, dtype) for name in ("scipy", "ducc0") for dtype in threads.DTYPES
    }
    assert profile.name.startswith("2 workers on 1 host: the slowest of ")
    assert profile.threads == 1
    assert profile.network > 0
    assert 0 < profile.sent_task < 1
    assert profile.task != DEFAULT.task
    assert {profile.write, profile.read}.isdisjoint({DEFAULT.write, DEFAULT.read})
    assert not list((folder / "scratch").iterdir())
    assert machine().profile == profile
    with dask.config.set(scheduler="threads"):
        assert machine().profile == DEFAULT


# --- disks ----------------------------------------------------------------------------------


class Hosts:
    """Workers whose disks have a speed, which all workers of a host share at a time."""

    def __init__(self, hosts, speeds, full=None):
        self.hosts = hosts
        self.speeds = speeds
        self.full = full
        self.files = {}
        self.sizes = {}
        self.rounds = []

    def each(self, work, arguments):
        self.rounds.append((work, len(arguments)))
        answers = {}
        for address, (path, *nbytes) in arguments.items():
            if work is cluster.written:
                if address == self.full:
                    raise OSError("no space")
                self.files[path] = address
                self.sizes[address] = nbytes[0]
            elif work is not cluster.was_read:
                self.files.pop(path, None)
        for address in arguments:
            host = next(name for name, addresses in self.hosts.items() if address in addresses)
            every = [i for i in self.hosts[host] if i in self.sizes]
            share = sum(self.sizes[i] for i in every) / self.speeds[host]
            # One of them is done early, having had more than its part.
            answers[address] = share / 2 if address == every[0] and len(every) > 1 else share
        return answers


def test_disks_are_as_fast_as_what_the_workers_of_a_host_move_together():
    hosts = {"a": ["a1", "a2", "a3", "a4"], "b": ["b1"]}
    workers = Hosts(hosts, {"a": 2e9, "b": 3e9})
    speeds = cluster.disk_speeds(
        workers.each,
        hosts,
        "/scratch",
        1 << 28,
    )
    assert speeds == {"write": pytest.approx(2e9), "read": pytest.approx(2e9)}
    # all at the same time, and nobody reads while others write
    assert workers.rounds[:2] == [(cluster.written, 5), (cluster.was_read, 5)]
    assert set(workers.sizes.values()) == {1 << 26, 1 << 28}
    assert not workers.files
    workers = Hosts(hosts, {"a": 2e9, "b": 1e9})
    speeds = cluster.disk_speeds(
        workers.each,
        hosts,
        "/scratch",
        1 << 28,
    )
    assert speeds["read"] == pytest.approx(1e9)


def test_no_file_stays_where_a_disk_is_full():
    hosts = {"a": ["a1", "a2"]}
    workers = Hosts(hosts, {"a": 2e9}, full="a2")
    with pytest.raises(OSError, match="no space"):
        cluster.disk_speeds(workers.each, hosts, "/scratch")
    assert not workers.files


# --- the slowest ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", sorted({f.name for f in fields(Profile) if f.type in ("float", float)})
)
def test_a_forecast_for_all_is_no_shorter_than_for_one(name):
    """Seconds are the larger the slower, speeds the smaller: `slowest` knows which is which."""
    value = getattr(DEFAULT, name)
    other = 0.5 if name == "together" else value / 2 or 1.0
    x = da.zeros((1 << 16,), chunks=1 << 12, dtype=complex)
    plan = dask_bigfft.plan(
        x,
        "fft",
        kernel="scipy",
        device="cpu",
    )
    both = DEFAULT, replace(DEFAULT, **{name: other})
    for workers in (1, 2):
        seconds = [plan.forecast(p, workers=workers).seconds for p in (*both, slowest(both))]
        assert seconds[2] == pytest.approx(max(seconds[:2]))


def test_libraries_are_those_that_all_have():
    def of(*names):
        return replace(
            DEFAULT, libraries=tuple(LibrarySpeeds(name, "complex128", 1e9, 1e9) for name in names)
        )

    profile = slowest([of("scipy", "ducc0"), of("pyfftw", "ducc0", "scipy")])
    assert [library.name for library in profile.libraries] == ["scipy", "ducc0"]


def test_devices_are_those_of_workers_that_have_some():
    slow = DeviceProfile(h2d=1e10, call=1e-6)
    fast = DeviceProfile(h2d=2e10, call=2e-6)
    three = (slow,), (fast, fast), (fast, slow)
    profile = slowest([DEFAULT, *(replace(DEFAULT, devices=devices) for devices in three)])
    assert [device.h2d for device in profile.devices] == [1e10, 1e10]
    assert [device.call for device in profile.devices] == [2e-6, 2e-6]

"""Calibration of a cluster: what all its workers have, the slowest of each, and what they share."""

import random
from concurrent.futures import Future
from dataclasses import fields, replace

import dask
import dask.array as da
import pytest
from distributed import Client, LocalCluster

import dask_bigfft
from dask_bigfft import calibration
from dask_bigfft.calibration import cluster
from dask_bigfft.calibration.several import LARGER, slowest
from dask_bigfft.kernels import libraries
from dask_bigfft.planner.profile import (
    DEFAULT,
    Curve,
    DeviceProfile,
    LibrarySpeeds,
    Peer,
    Profile,
    constant,
)
from dask_bigfft.planning import profiles


def machine():
    return dask_bigfft.plan(da.zeros((64, 64), chunks=16, dtype=complex), "fft2").machine


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as found,
        Client(found) as made,
    ):
        yield made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "_read", {})
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path / "wisdom"),
                          "bigfft.scratch.directory": str(tmp_path / "scratch")}):
        yield tmp_path


def only(names):
    libraries.available = lambda: names


def test_a_cluster_has_its_own(client, folder):
    """Two processes: one of them lacks a library, and the profile holds while they are there."""
    pytest.importorskip("ducc0")
    one, other = client.scheduler_info(n_workers=-1)["workers"]
    client.run(only, ["ducc0", "scipy", "pyfftw"], workers=[one])
    client.run(only, ["scipy", "ducc0"], workers=[other])
    found = dask_bigfft.calibrate(client, nbytes=1 << 14, repeat=1)
    assert {(library.name, library.dtype) for library in found.libraries} == {
        (name, dtype) for name in ("scipy", "ducc0") for dtype in calibration.DTYPES}
    assert found.name.startswith("2 workers on 1 host, up to 2 share one and its disk: the slowest")
    assert found.threads == 1
    assert found.network > 0
    assert 0 < found.sent_task < 1
    assert found.pair != DEFAULT.pair
    assert {found.write, found.read}.isdisjoint({DEFAULT.write, DEFAULT.read})
    assert not list((folder / "scratch").iterdir())
    assert machine().profile == found
    with dask.config.set(scheduler="threads"):
        assert machine().profile == DEFAULT


def test_each_host_of_many_workers_works_on_as_much_as_one_process_would():
    workers = {str(i): {"nthreads": 2, "host": "a"} for i in range(8)}
    workers |= {"b": {"nthreads": 16, "host": "b"}, "c": {"nthreads": 0, "host": "c"}}
    found = calibration._efforts(workers, cluster.hosts_of(workers), None, 3)
    each = {effort.nbytes for name, effort in found.items() if name not in "bc"}
    assert each == {calibration.usual_nbytes(16) // 8} == {calibration.PART_NBYTES}
    assert found["b"].nbytes == calibration.usual_nbytes(16)
    assert (found["c"].nbytes, found["c"].threads) == (calibration.usual_nbytes(1), 1)
    asked = calibration._efforts(workers, cluster.hosts_of(workers), 1 << 15, 3)
    assert {effort.nbytes for effort in asked.values()} == {1 << 15}


# --- disks ----------------------------------------------------------------------------------


class Hosts:
    """A client of workers whose disks have a speed, which all workers of a host share at a time.

    `events` are names of what was done, worker by worker, and how many were asked for it before
    somebody waited for an answer.
    """

    def __init__(self, hosts, speeds, monkeypatch, full=None):
        self.hosts, self.speeds, self.full = hosts, speeds, full
        self.asked, self.files, self.sizes, self.rounds = [], {}, {}, []
        for name in ("written", "was_read"):
            monkeypatch.setattr(cluster, name, name)

    def submit(self, work, path, *arguments, workers, allow_other_workers, pure):
        assert not allow_other_workers
        self.asked.append((work, path, arguments, workers[0]))
        return Future()

    def gather(self, futures):
        self.rounds.append([asked[0] for asked in self.asked])
        now, self.asked = self.asked, []
        assert len(futures) == len(now)
        answers = []
        for work, path, arguments, address in now:
            if work == "written":
                if address == self.full:
                    raise OSError("no space")
                self.files[path], self.sizes[address] = address, arguments[0]
            elif callable(work):
                self.files.pop(path, None)
            host = next(name for name, found in self.hosts.items() if address in found)
            every = [i for i in self.hosts[host] if i in self.sizes]
            share = sum(self.sizes[i] for i in every) / self.speeds[host]
            # One of them is done early, having had more than its part.
            answers.append(share / 2 if address == every[0] and len(every) > 1 else share)
        return answers


def test_disks_are_as_fast_as_what_the_workers_of_a_host_move_together(monkeypatch):
    hosts = {"a": ["a1", "a2", "a3", "a4"], "b": ["b1"]}
    client = Hosts(hosts, {"a": 2e9, "b": 3e9}, monkeypatch)
    found = cluster.disks_of(client, hosts, "/scratch", 1 << 28)
    assert found == {"write": pytest.approx(2e9), "read": pytest.approx(2e9)}
    assert client.rounds[0] == ["written"] * 5  # all at the same time,
    assert client.rounds[1] == ["was_read"] * 5  # and nobody reads while others write
    assert set(client.sizes.values()) == {1 << 26, 1 << 28}
    assert not client.files
    client = Hosts(hosts, {"a": 2e9, "b": 1e9}, monkeypatch)
    assert cluster.disks_of(client, hosts, "/scratch", 1 << 28)["read"] == pytest.approx(1e9)


def test_no_file_stays_where_a_disk_is_full(monkeypatch):
    hosts = {"a": ["a1", "a2"]}
    client = Hosts(hosts, {"a": 2e9}, monkeypatch, full="a2")
    with pytest.raises(OSError, match="no space"):
        cluster.disks_of(client, hosts, "/scratch")
    assert not client.files


# --- the slowest ----------------------------------------------------------------------------


def varied(thing, chance):
    """A profile, or a part of one, with every number changed by up to a half."""
    changed = {}
    for field in fields(thing):
        value, factor = getattr(thing, field.name), chance.uniform(0.5, 1.5)
        if isinstance(value, Curve):
            points = tuple((n, speed * chance.uniform(0.5, 1.5)) for n, speed in value.points)
            changed[field.name] = Curve(points)
        elif isinstance(value, float):
            changed[field.name] = min(1.0, value * factor) if value <= 1 else value * factor
        elif field.name == "libraries":
            changed[field.name] = tuple(varied(one, chance) for one in value)
    return replace(thing, **changed)


def known():
    speeds = Curve(((16.0, 4e9), (256.0, 8e9), (4096.0, 5e9)))
    library = LibrarySpeeds("scipy", "complex128", speeds, speeds, powers=constant(0.9),
                            powers_across=constant(0.8), real=constant(1.2), spare=0.5, alone=1.5,
                            company=1.2, whole=Curve(((1.0, 1.0), (1e5, 0.7))))
    return replace(
        DEFAULT, libraries=(library,), alone=1.5, block=1e-5, gathered_block=3e-5, lying_block=2e-5,
        tile=1e-5, tables=1e-4, company=1.3, waiting=1.4, planned=1e-5, start=1e-3, uneven=0.1,
        brief=1e-4,
        stored=Curve(((64.0, 5e9), (4096.0, 9e9))), energy=2e10, checksum=1e10, narrow=1.2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "shape", "chunks", "keywords"),
    [("fftn", (600, 640), (60, 640), {}), ("fftn", (600, 640), (60, 640), {"verify": "energy"}),
     ("rfftn", (64, 60, 96), (8, 60, 96), {}), ("fftn", (1 << 16,), (1 << 12,), {})],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_no_forecast_is_shorter_than_that_of_a_worker(seed, kind, shape, chunks, keywords, workers):
    chance = random.Random(seed)
    all_workers = [varied(known(), chance) for _ in range(3)]
    dtype = "float64" if kind == "rfftn" else "complex128"
    plan = dask_bigfft.plan(
        da.zeros(shape, chunks=chunks, dtype=dtype), kind, kernel="scipy", device="cpu", **keywords)
    each, of_all = (
        [plan.forecast(one, workers=workers, threads=4).seconds for one in found]
        for found in (all_workers, [slowest(all_workers)]))
    assert max(each) <= of_all[0] * (1 + 1e-9)
    assert of_all[0] < 4 * max(each)


def changed(name, factor):
    """A profile in which one number, or all of a curve, is so many times as large."""
    profile = known()
    (library,) = profile.libraries
    owner = library if hasattr(library, name) and name not in ("alone", "company") else profile
    value = getattr(owner, name)
    if isinstance(value, Curve):
        value = Curve(tuple((n, speed * factor) for n, speed in value.points))
    else:
        value *= factor
    if owner is library:
        return replace(profile, libraries=(replace(library, **{name: value}),))
    return replace(profile, **{name: value})


@pytest.mark.parametrize("name", [
    "copy", "alone", "straight", "turned", "turned_whole", "twiddle", "start",
    "planned", "task", "exchange", "uneven", "brief", "block",
    "gathered_block", "tile", "tables", "shard", "company", "waiting", "pair", "sent_shard",
    "network", "energy", "narrow", "along", "across", "whole", "real", "powers", "spare", "write"])
def test_of_each_number_the_slower_one_is_taken(name):
    """Whatever a forecast depends on is longer by the profile of both than by the better one's."""
    told = 0
    for kind, shape, chunks, dtype, keywords, carrier, workers, threads in (
        ("fftn", (600, 640), (60, 640), "c16", {"verify": "energy"}, "auto", 1, 4),
        ("fftn", (512, 640), (64, 640), "c8", {}, "auto", 1, 4),
        ("fftn", (1000, 1200), (500, 1200), "c16", {}, "auto", 1, 16),
        ("rfftn", (64, 60, 96), (8, 60, 96), "f8", {}, "auto", 2, 1),
        ("fftn", (96, 100, 128), (96, 100, 16), "c8", {}, "auto", 1, 4),
        ("fftn", (1 << 16,), (1 << 12,), "c16", {}, "auto", 1, 4),
        ("fftn", (1 << 16,), (1 << 12,), "c16", {}, "tasks", 1, 4),
        ("fftn", (1 << 22,), (1 << 18,), "c16", {}, "disk", 1, 4),
        ("fftn", (4, 900, 900), (1, 900, 900), "c16", {"axes": (1, 2)}, "auto", 1, 1),
    ):
        x = da.zeros(shape, chunks=chunks, dtype=dtype)
        with dask.config.set({"bigfft.exchange.carrier": carrier, "scheduler": "threads"}):
            plan = dask_bigfft.plan(x, kind, kernel="scipy", device="cpu", **keywords)
        both = changed(name, 1.0), changed(name, 0.5)
        one, other, found = (
            plan.forecast(profile, workers=workers, threads=threads).seconds
            for profile in (*both, slowest(both)))
        assert found == pytest.approx(max(one, other))
        told += one != other
    assert told


def test_each_quantity_is_that_of_its_slowest_worker():
    found = slowest([
        Profile("a", 2, copy=3e9, tile=1e-5, straight=Curve(((64.0, 2e9), (256.0, 9e9)))),
        Profile("b", 4, copy=2e9, tile=2e-5, straight=Curve(((64.0, 3e9), (256.0, 8e9)))),
    ])
    assert (found.threads, found.copy, found.tile) == (4, 2e9, 2e-5)
    assert [(n, pytest.approx(speed)) for n, speed in found.straight.points] == [
        (64.0, 2e9), (256.0, 8e9)]


def test_curves_of_other_sizes_are_compared_where_either_was_measured():
    one, other = Curve(((16.0, 4e9), (1024.0, 4e9))), Curve(((64.0, 8e9), (4096.0, 1e9)))
    found = slowest([replace(DEFAULT, turned=curve) for curve in (one, other)]).turned
    assert [size for size, _ in found.points] == [16.0, 64.0, 1024.0, 4096.0]
    assert all(speed == min(one.at(size), other.at(size)) for size, speed in found.points)


def test_libraries_are_those_that_all_have():
    def of(*names):
        return replace(DEFAULT, libraries=tuple(
            LibrarySpeeds(name, "complex128", constant(1e9), constant(1e9),
                          direct_along=constant(2e9) if name == "ducc0" else None)
            for name in names))

    found = slowest([of("scipy", "ducc0"), of("pyfftw", "ducc0", "scipy")])
    assert [library.name for library in found.libraries] == ["scipy", "ducc0"]
    assert [library.direct_along for library in found.libraries] == [None, constant(2e9)]


def test_devices_are_those_of_workers_that_have_some():
    slow, fast = DeviceProfile(h2d=1e10, call=1e-6), DeviceProfile(h2d=2e10, call=2e-6)
    pair = (Peer(0, 1, 3e11), Peer(1, 0, 2e11))
    found = slowest([
        DEFAULT,
        replace(DEFAULT, devices=(slow,), together=0.9),
        replace(DEFAULT, devices=(fast, fast), together=0.8, peers=pair),
        replace(DEFAULT, devices=(fast, slow), together=0.85, peers=pair[:1]),
    ])
    assert [device.h2d for device in found.devices] == [1e10, 1e10]
    assert [device.call for device in found.devices] == [2e-6, 2e-6]
    assert found.together == 0.8  # that of a worker without devices is nobody's
    assert found.peers == pair[:1]  # one worker has no other way back than by the host


def test_every_number_of_a_profile_says_which_way_is_slow():
    """A new one is a speed, unless it is named: so it should be looked at here."""
    numbers = {
        field.name for kind in (Profile, LibrarySpeeds, DeviceProfile, Peer)
        for field in fields(kind) if not {"str", "bool", "tuple"} & set(str(field.type).split("["))
    } - {str(name) for name in ("name", "dtype", "elsewhere", "libraries", "devices", "peers")}
    assert numbers >= LARGER
    assert numbers - LARGER == {
        "copy", "alone", "straight", "turned", "straight_whole", "turned_whole", "lying",
        "lying_turned", "stored", "twiddle", "touch", "flops", "network", "write", "read",
        "together", "shared_tiles", "energy", "checksum", "along", "across", "whole",
        "direct_along", "direct_across", "away_along", "away_across", "powers", "powers_across",
        "spare", "h2d", "d2h", "memory", "nbytes", "pin", "ring", "by_size", "by_row",
        "h2d_by_size", "h2d_by_row", "d2h_by_size", "d2h_by_row", "lengths",
        "source", "target", "speed"}

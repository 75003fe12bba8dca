"""`kernel="auto"` on a cluster: the fastest library of those that every worker has."""

import asyncio
import os
import re
import signal
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support import local

import dask_bigfft
from dask_bigfft import events, fft
from dask_bigfft.errors import ArgumentError, FallbackWarning
from dask_bigfft.kernels import fastest as wisdom
from dask_bigfft.kernels.libraries import get_library, usable
from dask_bigfft.machine import environment
from dask_bigfft.planner.profile import DEFAULT, LibrarySpeeds
from dask_bigfft.runs import resumable
from dask_bigfft.testing.clusters import Processes
from dask_bigfft.testing.traps import until

pytest.importorskip("ducc0")
zarr = pytest.importorskip("zarr")


DOUBLE = np.dtype("c16")
LONG = np.dtype("G")
FIELD = np.random.default_rng(5).standard_normal((32, 48))
COMPLEX = FIELD + 1j * FIELD[::-1]


@pytest.fixture(scope="module")
def several():
    """Three workers in this process, by the names 0 to 2."""
    with local(workers=3) as cluster:
        yield cluster.cluster


@pytest.fixture
def client(several):
    with Client(several) as connected, dask.config.set({"bigfft.kernel": "auto"}):
        yield connected


@pytest.fixture(autouse=True)
def ducc_is_fast(tmp_path, monkeypatch):
    """As far as it is measured; nothing is known of this machine but that."""

    def rates(names, dtype):
        return {name: 2.0 if name == "ducc0" else 1.0 for name in names}

    monkeypatch.setattr(wisdom, "measured_rates", rates)
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield


#: What workers answer by their names, and who was asked: a worker finds it by its module.
OF_WORKER: list[Any] = []
ASKED: list[Any] = []


def told(dask_worker=None):
    """What is asked of workers, and of this process."""
    if dask_worker is None:
        return usable()
    ASKED.append(dask_worker.name)
    return OF_WORKER[-1](dask_worker.name)


async def told_later(dask_worker=None):
    """What is asked of workers that may take their time."""
    return await told(dask_worker)


def tell(monkeypatch, of_worker):
    """Let workers answer by their names; return who is asked."""
    OF_WORKER.append(of_worker)
    ASKED.clear()
    monkeypatch.setattr(environment, "usable", told)
    return ASKED


def chosen(dtype="c16", **extras):
    return dask_bigfft.plan(da.zeros(64, chunks=8, dtype=dtype), "fft", **extras).kernel


def test_workers_that_have_all_take_the_fastest(client):
    assert chosen() == chosen("f4") == chosen("G") == "ducc0"
    assert chosen(kernel="scipy") == "scipy"
    y = fft.fftn(da.from_array(COMPLEX, chunks=(8, 48)))
    wanted = fft.fftn(da.from_array(COMPLEX, chunks=(8, 48)), kernel="ducc0").compute()
    np.testing.assert_array_equal(y.compute(), wanted)


def test_workers_are_asked_once(client, several, monkeypatch):
    requested = tell(monkeypatch, lambda name: usable())
    for _ in range(3):
        assert chosen() == "ducc0"
    assert sorted(requested) == [0, 1, 2]
    several.scale(4)
    client.wait_for_workers(4, timeout=60)
    try:
        for _ in range(2):
            assert chosen() == "ducc0"
        assert sorted(requested) == [0, 1, 2, 3]
    finally:
        several.scale(3)
        until(lambda: len(events.workers_of(client)) == 3)
    with Client(several.scheduler_address):
        assert chosen() == "ducc0"  # another client may be another cluster's
    assert len(requested) == 7


def test_workers_are_listed_once_in_a_call_by_the_scheduler(client, monkeypatch):
    monkeypatch.setattr(events, "LASTS", 60.0)
    monkeypatch.setattr(client, "scheduler_info", lambda **_: {"workers": {}})  # as it may be
    assert len(events.workers_of(client)) == 3
    assert events.workers_of(client) is events.workers_of(client)


def without(name, version=None):
    """What works here, but one library, or another version of it."""
    others = {library: is_of for library, is_of in usable().items() if library != name}
    return others if version is None else others | {name: version}


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_a_library_that_one_process_lacks_is_not_taken(client, monkeypatch, version):
    """Nor one that this process lacks: the same graph may be computed here, too."""
    tell(monkeypatch, lambda name: without("ducc0", version) if name == 1 else usable())
    assert chosen() == chosen("G") == "scipy"  # all others are as fast
    assert set(environment.common_libraries(DOUBLE)[0]) == set(usable()) - {"ducc0"}
    monkeypatch.setattr(environment, "_known", weakref.WeakKeyDictionary())
    tell(monkeypatch, lambda name: {"scipy": f"0.{name}"})
    assert environment.common_libraries(DOUBLE)[0] == ("scipy",)  # in whatever versions
    tell(monkeypatch, lambda name: usable())
    monkeypatch.setattr(environment, "_known", weakref.WeakKeyDictionary())
    assert chosen() == "ducc0"
    monkeypatch.setattr(environment, "usable", lambda: without("ducc0"))
    assert chosen() == "scipy"


@pytest.mark.parametrize("error", [True, False])
def test_a_fallback_is_named(client, monkeypatch, error):
    """By the plan, a warning and the report; results may differ in the last bits."""

    async def sick(name):
        if name == 1 and error:
            raise OSError("no")
        await asyncio.sleep(30 if name == 1 else 0)
        return usable()

    requested = tell(monkeypatch, sick)
    monkeypatch.setattr(environment, "usable", told_later)
    monkeypatch.setattr(environment, "_own_libraries", lambda dtype: usable())
    monkeypatch.setattr(environment, "PATIENCE", (1.0, 2.0))
    x = da.from_array(COMPLEX, chunks=(8, 48))
    why = r"scipy instead of 'auto': 1 of 3 workers have\s+not\s+told"
    with pytest.warns(FallbackWarning, match=why):
        plan = dask_bigfft.plan(x, "fftn")
    assert plan.kernel == "scipy"
    assert re.search(why, plan.explain(details=True))
    assert sorted(requested) == [0, 1, 1, 2]  # the others have answered
    with pytest.warns(FallbackWarning, match=why):
        y = fft.fftn(x)
    y.compute()
    assert re.search(why, str(dask_bigfft.report(y)))
    assert sorted(requested) == [0, 1, 1, 2]  # for a while
    tell(monkeypatch, lambda name: usable())
    monkeypatch.setattr(environment, "_paused", {})
    monkeypatch.setattr(environment, "PATIENCE", (60.0,))
    own_plan = dask_bigfft.plan(x, "fftn")
    assert own_plan.kernel == "ducc0"
    assert not re.search(why, own_plan.explain(details=True))


def test_a_worker_that_is_killed_while_it_is_asked_is_left_out(tmp_path):
    """Nobody else has to do without the fastest library."""
    with (
        Processes(tmp_path, 2) as cluster,
        Client(scheduler_file=cluster.file) as client,
        dask.config.set({"bigfft.kernel": "auto"}),
    ):
        client.wait_for_workers(2, timeout=60)
        victim = cluster.alive[0]
        os.kill(victim.pid, signal.SIGSTOP)  # so it is there, and does not answer
        threading.Timer(1.0, victim.kill).start()
        assert chosen() == "ducc0"


def test_a_resumed_run_keeps_its_library(client, monkeypatch, tmp_path):
    """Also where workers do not answer by now: the result is the same to the bit."""
    np.save(tmp_path / "in.npy", COMPLEX)
    source = tmp_path / "in.npy"
    scratch = tmp_path / "scratch"
    requested = {"kind": "fftn", "block_size": COMPLEX.nbytes // 4}
    wanted = dask_bigfft.run(source, tmp_path / "wanted.zarr", **requested)
    assert wanted.plan.kernel == "ducc0"

    def fail(*arguments):
        raise OSError("a worker was killed")

    with monkeypatch.context() as patch:
        patch.setattr(resumable, "_make", fail)
        with pytest.raises(OSError, match="killed"):
            dask_bigfft.run(source, tmp_path / "out.zarr", scratch=scratch, **requested)
    tell(monkeypatch, lambda name: {})
    assert chosen() == "scipy"
    report = dask_bigfft.run(
        source, tmp_path / "out.zarr", scratch=scratch, resume=True, **requested
    )
    assert report.plan.kernel == "ducc0"
    spectrum = zarr.open_array(tmp_path / "out.zarr", mode="r")[...]
    np.testing.assert_array_equal(
        spectrum, zarr.open_array(tmp_path / "wanted.zarr", mode="r")[...]
    )


def hide():
    """Make the process one where a library is not installed."""
    get_library("scipy")
    sys.modules["ducc0"] = None  # type: ignore[assignment]


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
def test_a_worker_that_comes_later_without_the_library_is_named(carrier):
    """A graph that was made before says who lacks what; those made afterwards do without."""
    with (
        dask.config.set({"bigfft.exchange.carrier": carrier, "bigfft.kernel": "auto"}),
        local(workers=1, processes=True) as client,
    ):
        (first,) = events.workers_of(client)
        x = da.from_array(COMPLEX, chunks=(4, 48))
        early = fft.fftn(x)
        assert chosen() == "ducc0"
        client.cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        (late,) = events.workers_of(client).keys() - {first}
        client.run(hide, workers=[late])
        with pytest.raises(ArgumentError, match=rf"`kernel`='ducc0' .*on worker {late}: scipy"):
            early.compute()
        assert chosen() != "ducc0"
        np.testing.assert_allclose(fft.fftn(x).compute(), np.fft.fftn(COMPLEX), atol=1e-11)


def test_nobody_to_ask_is_scipy():
    with local(workers=0):
        assert chosen(kernel="auto") == "scipy"


def speeds(**rates):
    library_speeds = (LibrarySpeeds(name, "complex128", rate, rate) for name, rate in rates.items())
    return replace(DEFAULT, libraries=tuple(library_speeds))


def test_a_profile_with_speeds_of_all_says_which_is_the_fastest(client, tmp_path):
    """Else it is measured here, as for what a profile says nothing of."""
    workers = events.workers_of(client).values()
    path = Path(environment.profile_path(environment.cluster_place(workers)))
    fast = next((name for name in usable() if name not in ("scipy", "ducc0")), "scipy")
    rates = {name: 2e9 if name == fast else 1e9 for name in usable()}
    assert environment.save_profile(speeds(**rates), path)
    assert environment.profile_of(workers).library(fast, "complex128").flops == 2e9
    assert chosen() == fast
    assert chosen("c8") == chosen("G") == "ducc0"
    assert environment.save_profile(speeds(scipy=2e9), tmp_path / "some.json")
    with dask.config.set({"bigfft.planner.profile": str(tmp_path / "some.json")}):
        assert chosen() == "ducc0"

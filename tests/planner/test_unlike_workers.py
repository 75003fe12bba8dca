"""Plans for clusters whose workers have unlike devices, by what the scheduler says of them."""

from dataclasses import replace

import dask
import dask.array as da
import distributed
import pytest
from laws.test_hybrid import EVEN, SLOW_THREADS

import dask_bigfft
from dask_bigfft.carriers.run import PlanRun
from dask_bigfft.gpu.dispatch import METRIC
from dask_bigfft.machine.environment import workers_devices


def registered(count):
    """What the scheduler says of a worker that has told of its devices."""
    return {"metrics": {METRIC: {"devices": [{"name": "a card"}] * count, "in_use": 0}}}


def declared(count):
    return {"resources": {"GPU": count}}


#: Before its first heartbeat, and without being asked for anything.
SILENT = {"metrics": {}, "resources": {}}
FOUND = {"gpu": {"name": "a card"}}


@pytest.mark.parametrize(
    ("workers", "known"),
    [
        ([registered(1), registered(0), registered(1)], [0, 1, 1]),
        ([registered(2), registered(2)], [2, 2]),
        ([registered(0)], [0]),
        ([registered(1), SILENT], []),
        ([declared(1), SILENT, declared(4)], [0, 1, 4]),
        ([{"resources": {"gpu": 1.0}}, SILENT], [0, 1]),
        ([{**declared(1), **registered(0)}, registered(1)], [0, 1]),
        ([FOUND, SILENT], [0, 1]),
        ([{**FOUND, **declared(2)}], [2]),
        ([SILENT, SILENT], []),
    ],
)
def test_what_workers_have_told(workers, known):
    assert workers_devices(workers) == known


class Client:
    """One that knows its workers, and can run nothing."""

    asynchronous = True

    def __init__(self, workers):
        self.workers = workers

    def scheduler_info(self, n_workers):
        facts = {
            "memory_limit": 1 << 34,
            "nthreads": 4,
            "host": "127.0.0.1",
            "metrics": {},
        }
        return {"workers": {str(i): facts | own for i, own in enumerate(self.workers)}}


@pytest.fixture
def plan_on(tmp_path, monkeypatch):
    """Makes a plan for a cluster of some workers, with some speeds."""

    def made(
        workers,
        device="hybrid",
        profile=EVEN,
        gain=1.1,
    ):
        path = tmp_path / "speeds.json"
        path.write_text(replace(profile, sent_task=0).to_json())
        monkeypatch.setattr(distributed, "default_client", lambda: Client(workers))
        x = da.zeros((4096, 4096), chunks=(256, 4096), dtype="c16")
        settings = {"bigfft.planner.profile": str(path), "bigfft.hybrid.min-speedup": gain}
        with dask.config.set(settings):
            return dask_bigfft.plan(
                x,
                "fft",
                axis=1,
                device=device,
                kernel="ducc0",
            )

    return made


def share_of(plan):
    (forecast,) = plan.expected.rounds
    return forecast.share


@pytest.mark.parametrize("told", [registered, declared])
@pytest.mark.parametrize("gain", [0, 1.1])
def test_the_share_is_that_of_workers_with_most_devices(plan_on, told, gain):
    like = plan_on([told(1)] * 4, gain=gain)
    half = plan_on([told(1), told(0)] * 2, gain=gain)
    assert like.device == half.device == "hybrid"
    assert 0.3 < share_of(like) < 0.7
    assert half == like
    assert type(half).from_json(half.to_json()) == half


def test_devices_that_do_all_are_not_demanded_of_workers_without(plan_on):
    plan = plan_on([SILENT, SILENT], profile=SLOW_THREADS)
    assert (plan.device, plan.shares) == ("gpu", (1.0,))
    assert PlanRun(plan).place.device == PlanRun(plan).places[0].device == "auto"
    requested = plan_on([SILENT, SILENT], "gpu", profile=SLOW_THREADS)
    assert PlanRun(requested).place.device == PlanRun(requested).places[0].device == "gpu"


def test_a_cluster_without_devices_shares_nothing(plan_on):
    plan = plan_on([registered(0)] * 2)
    assert (plan.device, plan.shares, share_of(plan)) == ("cpu", (), 0)


@pytest.mark.parametrize(
    ("device", "counts", "gpus"),
    [
        ("auto", (2, 1), 1),
        ("auto", (0, 1), 0),
        ("gpu", (2, 3), 2),
        ("gpu", (0, 1), 1),
        ("cpu", (1, 1), 0),
    ],
)
def test_others_count_the_least_that_every_worker_has(
    plan_on,
    device,
    counts,
    gpus,
):
    assert plan_on([registered(count) for count in counts], device).machine.gpus == gpus

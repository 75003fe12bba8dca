"""The tuner: by a clock that we set, and once for real."""

import json
import logging
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft import fft, files
from dask_bigfft.machine import tuner
from dask_bigfft.machine.tuner import problem_class, region, tuned
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array
from dask_bigfft.transforms.spec import transform_spec

MACHINE = Machine(memory_limit=1 << 34, threads=2)

#: Part of the reason for a plan that was measured in the call.
MEASURED = "the fastest of"


def requested(shape=(1024, 1024), chunks=((128,) * 8, (1024,)), name="fftn", **options):
    return transform_spec(name, shape, np.dtype("c16")), Request(chunks, **options)


class Clock:
    """A timer by which one plan is the fastest, all others twice as slow."""

    def __init__(self, favourite):
        self.favourite = favourite
        self.calls = []

    def __call__(self, plan):
        self.calls.append(plan)
        return 1.0 if self.favourite(plan) else 2.0


def test_the_fastest_wins_and_is_remembered(folder):
    favourite = region(*requested(), MACHINE, ["scipy"])[1].plan
    clock = Clock(lambda plan: plan.rounds == favourite.rounds)
    winner = tuned(
        *requested(),
        MACHINE,
        ["scipy"],
        clock,
    )
    assert winner.rounds == favourite.rounds
    assert MEASURED in winner.reason
    clock.calls.clear()
    again = tuned(
        *requested(),
        MACHINE,
        ["scipy"],
        clock,
    )
    assert clock.calls == []
    assert again.rounds == favourite.rounds
    assert MEASURED not in again.reason


def test_wisdom_holds_for_the_class_and_no_other(folder):
    clock = Clock(lambda plan: True)
    tuned(
        *requested(),
        MACHINE,
        ["scipy"],
        clock,
    )
    clock.calls.clear()
    like = requested((1000, 1000), ((200,) * 5, (1000,)))
    own = problem_class(*requested(), ["scipy"])
    assert problem_class(*like, ["scipy"]) == own
    assert MEASURED not in tuned(*like, MACHINE, ["scipy"], clock).reason
    larger = requested((2048, 1024), ((256,) * 8, (1024,)))
    for other in (larger, requested(name="ifftn"), requested(verify="energy")):
        assert problem_class(*other, ["scipy"]) != own
        assert MEASURED in tuned(*other, MACHINE, ["scipy"], clock).reason
    clock.calls.clear()
    assert MEASURED in tuned(*requested(), Machine(1 << 34, threads=3), ["scipy"], clock).reason


def test_what_won_of_fewer_choices_is_no_wisdom_for_more(folder):
    """As of one FFT library, of rounds by hand, and of a part of a device's memory."""
    clock = Clock(lambda plan: plan.kernel == "ducc0")
    rounds = (((0, 8), (1, 1)), ((0, 128), (1, 1024)))
    for kernels, few in (
        (["scipy"], {}),
        (["scipy", "ducc0"], {"rounds": rounds}),
        (["scipy", "ducc0"], {"device_nbytes": 1 << 20}),
    ):
        assert MEASURED in tuned(*requested(**few), MACHINE, kernels, clock).reason
        assert MEASURED not in tuned(*requested(**few), MACHINE, kernels, clock).reason
    winner = tuned(
        *requested(),
        MACHINE,
        ["scipy", "ducc0"],
        clock,
    )
    assert MEASURED in winner.reason
    assert winner.kernel == "ducc0"
    again = tuned(
        *requested(),
        MACHINE,
        ["ducc0", "scipy"],
        clock,
    )
    assert (MEASURED in again.reason, again.kernel) == (False, "ducc0")


@pytest.mark.parametrize("what", ["device_software", "workers_place"])
def test_wisdom_of_other_device_software_or_workers_is_measured_again(folder, monkeypatch, what):
    clock = Clock(lambda plan: True)
    gpus = int(what == "device_software")
    spec, request = requested(device="gpu" if gpus else "auto")
    machine = replace(MACHINE, gpus=gpus)
    monkeypatch.setattr(tuner, "on_devices", lambda plan: False)
    for value in ({"cupy": "14.0"}, {"cupy": "14.1"}):
        monkeypatch.setattr(tuner, what, lambda value=value: dict(value))
        first = tuned(
            spec,
            request,
            machine,
            ["scipy"],
            clock,
        )
        assert MEASURED in first.reason
        again = tuned(
            spec,
            request,
            machine,
            ["scipy"],
            clock,
        )
        assert MEASURED not in again.reason


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ('"plans"', '"plants"', True),
        ('"notation"', '"notion"', True),
        ('"winner"', '"loser"', True),
        ("}", "", True),
        ('"scale": ', '"scale": -', True),
        ('"machine"', '"engine"', False),
        ('"schema": ', '"schema": 1', False),
        ('"device": "', '"devices": "', True),
        ('"buffers": null', '"buffers": 0', True),
        ('"numpy": "', '"numpy": "0.', False),
    ],
)
def test_damaged_or_foreign_wisdom_is_measured_again(
    folder,
    caplog,
    old,
    new,
    reported,
):
    clock = Clock(lambda plan: True)
    tuned(
        *requested(),
        MACHINE,
        ["scipy"],
        clock,
    )
    path = folder / "plans.json"
    whole = path.read_text()
    assert old in whole
    path.write_text(whole.replace(old, new))
    with caplog.at_level(logging.WARNING):
        assert MEASURED in tuned(*requested(), MACHINE, ["scipy"], clock).reason
    assert ("damaged" in caplog.text) == reported
    assert json.loads(path.read_text()).keys() == json.loads(whole).keys()


def test_a_plan_says_why_it_was_not_measured(folder):
    x = da.zeros((512, 512), chunks=(64, 512), dtype=complex)
    keywords = {"kernel": "scipy", "memory_limit": "16 MiB"}
    unmeasured = dask_bigfft.plan(
        x,
        "fft2",
        planner="measure",
        **keywords,
    )
    assert "not measured: array and result take more than 30 % of the memory" in unmeasured.reason
    assert " ".join(unmeasured.explain(details=True).split()).count("not measured: array") == 1
    with simulated_devices(1 << 20):
        shared = dask_bigfft.plan(
            x,
            "fft2",
            planner="measure",
            device="hybrid",
            **keywords,
        )
        assert "not measured: array and result take more" in shared.reason
    assert "not measured" not in dask_bigfft.plan(x, "fft2", **keywords).reason
    assert not list(folder.iterdir())


def test_for_real(folder, sync):
    values = random_array((64, 96), "c16", 0)
    x = da.from_array(values, chunks=(16, 96))
    y = fft.fft2(x, planner="measure")
    assert np.allclose(y.compute(), np.fft.fft2(values))
    entries = json.loads((folder / "plans.json").read_text())["plans"]
    assert len(entries) == 1
    (entry,) = entries.values()
    assert entry["context"]["machine"] == json.loads(json.dumps(files.machine()))
    plan = dask_bigfft.plan(x, "fft2", planner="measure")
    assert plan.reason.startswith("the fastest when such")
    with dask.config.set({"bigfft.planner.mode": "measure"}):
        assert dask_bigfft.plan(x, "fft2").reason == plan.reason
    assert dask_bigfft.plan(x, "fft2", planner="estimate").reason != plan.reason

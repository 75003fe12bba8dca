"""A run whose rounds are done on a card goes on with the same libraries there, or not at all."""

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from runs.resuming import NBYTES, again, close, stored, values_of

from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import Request, execute
from dask_bigfft.testing.devices import simulated_devices

zarr = pytest.importorskip("zarr")

CARD = {"card": "big one", "cupy": "14.0.1", "cufft": "12200"}


def begin(device: str) -> dict[str, str]:
    """Begin a run that does nothing yet; return the versions that it has pinned."""

    def store(result: Any, sink: Any) -> None:
        raise KeyboardInterrupt

    options = {"device": device}
    asked = Request(Path("in.zarr"), Path("out.zarr"), "fft", options=options, block_size=NBYTES)
    with pytest.raises(KeyboardInterrupt):
        execute(asked, store, scratch=Path("scratch"))
    found = json.loads(Path("scratch/run.json").read_text())["versions"]
    return {name: found[name] for name in CARD if name in found}


@pytest.mark.parametrize("name", CARD)
def test_another_library_or_card_is_refused_by_name(here: Path, name: str) -> None:
    with simulated_devices(1 << 20) as (device,):
        device.software = dict(CARD)
        assert begin("gpu") == CARD
        device.software = {**CARD, name: "another"}
        with pytest.raises(ArgumentError, match=f"{name} {CARD[name]}, which.*this is another"):
            again(device="gpu")
        device.software = {key: text for key, text in CARD.items() if key != name}
        with pytest.raises(ArgumentError, match=f"{name} {CARD[name]}, which.*this is none"):
            again(device="gpu")
        device.software = dict(CARD)
        again(device="gpu")
    assert close("out.zarr", np.fft.fft(values_of("in.zarr")))


def test_a_run_without_a_card_does_not_go_on_with_one(here: Path) -> None:
    """Where nobody says which, and blocks are worth the trip."""
    values = np.random.default_rng(3).normal(size=(2, 1 << 16)) + 0j
    stored("large.zarr", values, (1, 1 << 16))
    Path("in.zarr").rename("small.zarr")
    Path("large.zarr").rename("in.zarr")
    assert begin("auto") == {}
    with simulated_devices(1 << 22), pytest.raises(ArgumentError, match="no card, which"):
        again(device="auto")
    again(device="auto")


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_what_no_card_does_depends_on_none(here: Path, device: str) -> None:
    """Its blocks are too small, or nobody wants one."""
    with simulated_devices(1 << 20):
        assert begin(device) == {}
    again(device=device)


def test_a_cluster_is_asked(here: Path) -> None:
    from distributed import Client, LocalCluster

    with (
        simulated_devices(1 << 20) as (device,),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
        dask.config.set(scheduler="dask.distributed"),
    ):
        device.software = dict(CARD)
        assert begin("gpu") == CARD
        again(device="gpu")

"""The experiment on rounds along columns, on simulated devices in the place of a card."""

import contextlib
import json
import time
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from dask_bigfft.bench import gpu_columns, gpu_report
from dask_bigfft.bench.gpu_bench import GIB, Bench, Results
from dask_bigfft.bench.gpu_columns import VARIANTS, columns, engines
from dask_bigfft.devices import cuda_kernels
from dask_bigfft.devices.cupy_device import Span
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.kernels import gpu_plans

SCALE = 1 << 11


class Card(SimulatedDevice):
    """A simulated device that tells what it did as a card does."""

    made: ClassVar = []

    def __init__(self, ordinal, traced=False):
        super().__init__(4 * GIB // SCALE)
        self.told = 0
        Card.made.append(self)

    def stream(self, name):
        found = super().stream(name)
        found.raw = contextlib.nullcontext()
        return found

    def spans(self):
        self.synchronize_all()
        new, self.told = self.trace[self.told :], len(self.trace)
        names = {"multiply": "twiddle"}
        return [Span(s.engine, names.get(s.operation, s.operation), s.start, s.end, 1) for s in new]


@pytest.fixture
def launched(monkeypatch):
    """Kernels that were launched, by name, with what they were told."""
    found = []

    def kernel_of(source, name):
        assert f"void {name}(" in source
        return lambda grid, block, arguments: found.append((name, grid, block, arguments))

    memory = SimpleNamespace(Memory=lambda nbytes: SimpleNamespace(ptr=256), Device=lambda n: None)
    monkeypatch.setattr(
        gpu_columns, "cupy", lambda: SimpleNamespace(RawKernel=kernel_of, cuda=memory))
    monkeypatch.setattr(gpu_columns, "current", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(gpu_columns, "held", lambda budget: contextlib.nullcontext())
    monkeypatch.setattr(gpu_columns, "CupyDevice", Card)
    monkeypatch.setattr(Card, "made", [])
    return found


def test_every_variant_is_measured(tmp_path, launched, monkeypatch):
    results = Results(tmp_path / "gpu.json", time.monotonic() + 600)
    nbytes = 4 * GIB // SCALE
    bench = Bench(results, SCALE, 2 * nbytes, 2 * GIB // SCALE, duplex=1e9)
    bench.memory = [np.zeros(nbytes, np.uint8) for _ in range(2)]
    tiled = gpu_plans.TILED_NBYTES
    monkeypatch.setattr(gpu_columns, "CACHED_NBYTES", 64 << 10)
    columns(bench)
    rows = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["columns"]
    assert [row["variant"] for row in rows] == 2 * [variant.name for variant in VARIANTS]
    assert {row["block_mib"] for row in rows} == {2.0, 0.125}
    by_name = {row["variant"]: row for row in rows[: len(VARIANTS)]}
    assert by_name["small pieces"]["pieces"] > by_name["as it is"]["pieces"]
    assert by_name["4 slots"]["slots"] == 4 > by_name["as it is"]["slots"]
    assert by_name["along rows"]["reads"][0] < by_name["as it is"]["reads"][0]
    assert {"h2d busy", "compute busy", "d2h ms"} <= set(by_name["as it is"])
    assert "compute busy" not in by_name["nothing computed"]
    kernels = {name: [call for call in launched if call[0] == name] for name in ("wait", "traffic")}
    assert all(kernels.values())
    assert all(int(ns) > 0 for _, grid, _, (ns,) in kernels["wait"] if grid == (1,))
    assert {grid for _, grid, _, _ in kernels["traffic"]} == {(cuda_kernels.GRID,)}
    told = {(int(count), int(among)) for *_, (_, count, among) in kernels["traffic"]}
    cached = 64 << 10
    assert {among < count for count, among in told} == {False, True}
    assert all(among in (count, cached // 16) for count, among in told)
    assert tiled == gpu_plans.TILED_NBYTES
    assert not any({"fft", "multiply"} & set(vars(card)) for card in Card.made)
    assert all(card.closed for card in Card.made)
    results.found |= {"machine": {}, "gpu": {"name": "card", "memory": 2**30, "cupy": "14"}}
    gpu_report.write_report(results.found, tmp_path / "gpu.md")
    assert "| kernels that wait |" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_nothing_is_begun_when_time_is_over(tmp_path, launched):
    results = Results(tmp_path / "gpu.json", time.monotonic() - 1)
    bench = Bench(results, SCALE, 4 * GIB // SCALE, 2 * GIB // SCALE, duplex=1e9)
    bench.memory = [np.zeros(bench.nbytes, np.uint8)]
    columns(bench)
    assert not results.found
    assert not Card.made


def test_traffic_that_the_cache_keeps_and_does_not():
    kept, passing = (gpu_columns.traffic(*way) for way in (gpu_columns.KEPT, gpu_columns.PASSING))
    assert "double2 v = *at;" in kept
    assert "*at = v;" in kept
    assert "__ldcs(at)" in passing
    assert "__stcs(at, v);" in passing


def test_engines_that_did_nothing():
    assert engines([]) == {}

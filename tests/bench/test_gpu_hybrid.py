"""The hybrid benchmark, dry: simulated devices in the place of cards."""

import json
import time

import dask
import numpy as np
import scipy.fft

from dask_bigfft.bench import gpu_bench, gpu_hybrid, gpu_routes
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.peers import SimulatedPeers
from dask_bigfft.testing.devices import simulated_devices


def bench_in(tmp_path):
    results = gpu_bench.Results(tmp_path / "found.json", time.monotonic() + 60)
    results.found["machine"] = {"cpu": "some"}
    results.found["gpu"] = {"name": "simulated device", "count": 2, "cupy": "none"}
    return gpu_bench.Bench(results, 1 << 14, 1 << 20, 0)


def test_every_problem_and_its_answer(tmp_path):
    bench = bench_in(tmp_path)
    limits = PieceLimits(0, least=1 << 12, run_nbytes=64)
    with dask.config.set({"bigfft.hybrid-gain": 0}), simulated_devices(1 << 22, limits=limits):
        gpu_hybrid.hybrid(bench, 2, [gpu_hybrid.PROBLEMS[i] for i in (4, 6, 7)])
    found = json.loads((tmp_path / "found.json").read_text())
    rows = found["forced"]
    assert len(rows) == 3
    assert [row["device"] for row in found["model"]] == ["cpu", "gpu", "hybrid"]
    assert rows[0]["expected_gain"] == min(
        rows[0]["expected"][place] for place in ("cpu", "gpu")
    ) / rows[0]["expected"]["hybrid"]
    for row in rows:
        assert row["error"] < 1e-6
        assert 0 < row["low"] <= row["gain"] <= row["high"]
        assert len(row["seconds"]["hybrid"]) == 2 * gpu_hybrid.MORE  # they are short
    assert rows[0]["share"] > 0
    gpu_hybrid.write_report(bench.results.found, tmp_path / "found.md")
    assert "| hybrid |" in (tmp_path / "found.md").read_text()


def test_every_route(tmp_path):
    bench = bench_in(tmp_path)
    gpu_routes.routes(bench, lambda: SimulatedPeers((1 << 24,) * 2), 1)
    rows = bench.results.found["peers"]
    moved = {row["route"]: row["moved"] for row in rows}
    assert moved == {"host": 2.0, "staged": 1.5, "swap": 1.0, "kernel": 1.0}
    swap = {row["batches"]: row["peak_gib"] for row in rows if row["route"] == "swap"}
    kernel = {row["batches"]: row["peak_gib"] for row in rows if row["route"] == "kernel"}
    assert all(swap[count] >= kernel[count] for count in swap)


def test_the_values_that_a_transform_between_cards_is_held_against():
    n, line = 6, gpu_routes._line(6)
    values = line[:, None, None] * line[:, None] * line
    found = [gpu_routes._frequency(n, k) for k in ((0, 0, 0), (1, 5, 2))]
    expected = scipy.fft.fftn(values)
    assert np.allclose(found, [expected[0, 0, 0], expected[1, 5, 2]], rtol=1e-13)

"""The GPU benchmark's host parts: shapes, distances, overlap and the report, without a card."""

import json
import time

import dask
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.bench import gpu_bench, gpu_data, gpu_peers, gpu_report, gpu_rounds
from dask_bigfft.devices.cupy_device import Span
from dask_bigfft.devices.limits import PieceLimits


@pytest.mark.parametrize(("elements", "ndim"), [(2**10, 1), (2**11, 2), (2**30, 3), (2**31, 3)])
def test_shapes_hold_all_elements(elements, ndim):
    shape = gpu_data.even_shape(elements, ndim)
    assert np.prod(shape, dtype=object) == elements
    assert list(shape) == sorted(shape)
    assert shape[-1] <= 2 * shape[0]


def test_answers_are_compared_block_by_block():
    rng = np.random.default_rng(0)
    memory = [np.empty(64 * 64 * 16 // 4, np.uint8) for _ in range(4)]
    gpu_data.fill(memory, "c16")
    x = np.concatenate(memory).view("c16").reshape(64, 64)
    assert abs(x.real.std() - 1) < 0.1
    lazy = gpu_data.lazy(memory, (64, 64), "c16")
    assert np.array_equal(lazy.compute(scheduler="sync"), x)
    expected = scipy.fft.fft2(x, norm="ortho")
    with dask.config.set(scheduler="sync"):
        done = fft.fft2(lazy, norm="ortho").persist()
    assert gpu_data.distance(done, expected) < 1e-15
    off = expected * (1 + 1e-3 * rng.standard_normal())
    assert gpu_data.distance(done, off) > 1e-6


def test_a_round_of_the_benchmark_fits_its_budget():
    job = gpu_rounds.one_round((4096, 4096), (0, 1), "c16")
    schedule = job.plan(PieceLimits(1 << 26)).schedule
    assert len(schedule.crossings) > 1
    assert schedule.slots * schedule.slot_nbytes <= 1 << 26


def test_engines_at_work_together_are_counted():
    spans = [
        Span("h2d", "h2d", 0.0, 4.0, 1), Span("compute", "fft", 1.0, 3.0, 1),
        Span("d2h", "d2h", 2.0, 5.0, 1),
    ]
    found = gpu_peers.overlap(spans)
    assert found["seconds"] == 5.0
    assert [found[k] for k in ("one or more", "two or more", "all three")] == [1.0, 0.6, 0.2]


def test_cpu_libraries_give_the_same_answer():
    x = np.random.default_rng(1).standard_normal((32, 8)) + 0j
    for run in gpu_peers.cpu_libraries(2).values():
        out = np.empty_like(x)
        run(x, out)
        np.testing.assert_allclose(out, scipy.fft.fft2(x, norm="ortho"), atol=1e-13)


def test_results_are_written_as_they_come_and_reported(tmp_path):
    results = gpu_bench.Results(tmp_path / "gpu.json", time.monotonic() - 1)
    assert results.over
    results.found["machine"], results.found["gpu"] = {"cores": 2}, {
        "name": "card", "memory": 2**30, "cupy": "14"}
    results.add("transforms", name="2D", shape=(4, 4), dtype="c16", block_mib=1.0, seconds=2.0,
                rounds="{Y} {X}", exchanges=1, round_fraction=0.5, error=1e-16)
    results.add("cpu", peer="ducc0", shape=(4, 4), dtype="c16", seconds=5.0)
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    gpu_report.write_report(found, tmp_path / "gpu.md")
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    (row,) = [line for line in text.splitlines() if "{Y} {X}" in line]
    assert "| 2.500 |" in row  # ducc0 takes 2.5 times as long

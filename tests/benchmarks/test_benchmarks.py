"""Benchmark programs run to their ends at a tiny scale, with checked results; pages are current."""

import json

import dask
import numpy as np
import pytest
from support import python

from benchmarks import __main__ as benchmarks
from benchmarks import core, pages, problems, rows
from dask_bigfft.testing.devices import simulated_devices

TINY = ("--scale", "0.00002", "--threads", "2")

#: Arguments of each program, and the rows that it writes.
PROGRAMS = {
    "memory": ("--only real-512x512x256-x16 --repeat 1 --kernels scipy", 1),
    "small": ("--only *(1000,)* help --repeat 2", 3),
    "convolution": (["--only", "taps: oaconvolve", "--repeat", "1"], 1),
    "verification": ("--only 3d --repeat 1 --kernels scipy", 1),
    "forecasts": (
        "--only slabs --repeat 1 --turns 1 --no-calibration --kernels scipy "
        "--parts errors tuner paper",
        5,
    ),
    "out_of_core": ("--only 3d --repeat 1 --kernels scipy", 1),
    "limited": (["--only", "one axis, 64 MiB", "--repeat", "1"], 1),
    "clusters": (["--only", "first: 4096 blocks", "--repeat", "1"], 1),
    "guard": (f"--before {core.ROOT} --rows tall-8192*x16 --pairs 1 --repeat 1 --kernels scipy", 1),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run_and_check_their_results(program, tmp_path):
    arguments, count = PROGRAMS[program]
    arguments = arguments.split() if isinstance(arguments, str) else arguments
    out = tmp_path / "found.json"
    python("-m", "benchmarks", program, *TINY, *arguments, "--out", out, cwd=core.ROOT)
    found = json.loads(out.read_text())
    written = [row for section in found["sections"].values() for row in section]
    assert len(written) == count
    assert all(row["ok"] for row in written if "tasks" not in row)  # on paper
    assert all(row["name"] in pages.page(found) for row in written)


def test_every_program_is_run_by_a_test_or_needs_a_gpu():
    """A check that nothing runs would state what no longer holds."""
    by_gpu_session = {"gpu", "on_gpus"}
    assert set(benchmarks.PROGRAMS) == {*PROGRAMS, "pages", *by_gpu_session}


@pytest.mark.parametrize("what", ["rounds", "transforms", "ring", "unpinned"])
def test_rows_for_a_gpu_run_on_a_simulated_one(what, tmp_path):
    task = rows.Task(2**-14, 2, 1, "scipy", tmp_path)
    with simulated_devices(1 << 20), dask.config.set(scheduler="sync"):
        figures, check = rows.on_gpu(what, task)
    assert check["ok"]
    assert len(figures) == (5 if what in ("rounds", "ring") else 3)


def test_checks_find_a_wrong_value():
    problem = problems.Problem("fftn", (64, 8), "c16", 4)
    x = problems.fill(np.empty(problem.shape, problem.dtype))
    truth, right = problems.Truth.of(problem, x), np.fft.fftn(x)
    assert truth.check(right)["ok"]
    for wrong in (right[::-1], right * (1 + 1e-9), right[:, :4], np.full_like(right, np.nan)):
        assert not truth.check(np.ascontiguousarray(wrong))["ok"]


def test_pages_and_figures_are_those_of_the_json():
    assert pages.main(["--check"]) == 0
    assert sum(path.stat().st_size for path in pages.RESULTS.iterdir()) <= 500 << 10

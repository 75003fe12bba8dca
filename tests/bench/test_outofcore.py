"""The program for arrays larger than memory: right answers, and memory as forecast."""

import json

import numpy as np
import pytest

from dask_bigfft.bench import outofcore, outofcore_data
from dask_bigfft.bench.cgroup import memory_cgroup
from dask_bigfft.bench.outofcore_data import OutOfCore

zarr = pytest.importorskip("zarr")

SMALL = [
    OutOfCore("3d", "fftn", (6, 8, 10), (2, 8, 10), "c8"),
    OutOfCore("1d", "fft", (1000,), (128,), "c16"),
]


@pytest.mark.parametrize("problem", SMALL, ids=lambda p: p.name)
def test_the_direct_transform_is_numpys(tmp_path, problem):
    truth = outofcore_data.make_source(problem, tmp_path / "in.zarr")
    values = zarr.open_array(tmp_path / "in.zarr", mode="r")[...]
    assert values.std() > 1
    spectrum = np.fft.fftn(values.astype("c16"))
    for at, value in truth["wanted"].items():
        assert abs(spectrum[at] - value) < 1e-9 * np.linalg.norm(values)
    np.testing.assert_allclose(truth["energy"], np.linalg.norm(values.astype("c16")) ** 2)
    options = {"chunks": problem.chunks, "compressors": None, "dtype": problem.dtype}
    answer = zarr.create_array(tmp_path / "out.zarr", shape=problem.shape, **options)
    answer[...] = spectrum
    errors = outofcore_data.check_answer(problem, tmp_path / "out.zarr", truth)
    assert max(errors.values()) < problem.tolerance
    spectrum[outofcore_data.frequencies(problem)[-1]] *= -1
    answer[...] = spectrum
    assert outofcore_data.check_answer(problem, tmp_path / "out.zarr", truth)["frequencies"] > 1e-3
    answer[...] = spectrum * 1.01
    assert outofcore_data.check_answer(problem, tmp_path / "out.zarr", truth)["parseval"] > 1e-3


def test_the_program(tmp_path, capsys):
    arguments = ["--scale", "small", "--only", "1d", "--repeat", "1", "--folder",
                 str(tmp_path / "f"), "--out", str(tmp_path / "out.json")]
    assert outofcore.main(arguments) == 0
    text = capsys.readouterr().out
    assert "right (frequencies" in text
    assert "efficiency" in text
    found = json.loads((tmp_path / "out.json").read_text())["1d"]
    assert found["passes"] == 8  # one axis in natural order: read 4 times, written 4 times
    assert found["rounds"][0]["copy"]["bytes"] == found["rounds"][0]["ours"]["bytes"]
    assert list((tmp_path / "f").iterdir()) == []
    arguments[2:4] = ["--only", "3d", "1d"]  # what is there is kept
    assert outofcore.main([*arguments, "--resume", "--threads", "2"]) == 0
    again = json.loads((tmp_path / "out.json").read_text())
    assert again["1d"] == found
    assert len(again["1d"]["rounds"]) == 1
    assert again["3d"]["passes"] == 4
    assert again["3d"]["right"]


def test_memory_is_as_forecast(tmp_path):
    """Measured in a process of its own, in a memory cgroup where one can be made."""
    problem = OutOfCore("3d", "fftn", (40, 512, 1024), (10, 512, 1024), "c8")
    outofcore_data.make_source(problem, tmp_path / "in.zarr")
    budget = 640 << 20
    task = {"problem": problem.__dict__, "folder": str(tmp_path), "threads": 2, "budget": budget,
            "kernel": "auto"}
    with memory_cgroup(budget) as group:
        found = outofcore._call("ours", task, group)
    assert "error" not in found, found
    assert found["carrier"] == "disk"
    assert found["memory_peak"] <= found["memory_forecast"] <= found["memory_limit"]
    # The forecast lets every thread have all that it ever needs at the same time.
    assert found["memory_peak"] >= 0.7 * found["memory_forecast"]
    if group is not None:
        assert found["cgroup_peak"] <= budget

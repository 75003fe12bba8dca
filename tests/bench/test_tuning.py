"""The tuner's benchmark, tiny: its tables say what was tried."""

import json
from dataclasses import replace

import pytest

from dask_bigfft.bench import tuning
from dask_bigfft.bench.model import Problem
from dask_bigfft.planner.profile import DEFAULT
from dask_bigfft.planning import profiles
from dask_bigfft.testing.devices import simulated_devices


def test_the_tables(tmp_path, monkeypatch):
    small = Problem("small plane", "fftn", (64, 96), (16, 96))
    monkeypatch.setattr(tuning, "PROBLEMS", (small,))
    monkeypatch.setattr(tuning, "CPU", ("small plane",))
    monkeypatch.setattr(tuning, "CARDS", ())
    slow = replace(DEFAULT, name="a slow machine", copy=1e6, task=0.5)

    def calibrate():
        assert profiles.save_profile(slow, profiles.profile_path())
        return slow

    monkeypatch.setattr(tuning, "calibrate", calibrate)
    path = tmp_path / "tuning.json"
    assert tuning.main(["--out", str(path)]) == 0
    (row,) = json.loads(path.read_text())["tuned"]
    forecasts = [trial["forecast"] for trial in row["trials"]]
    assert tuning.main(["--calibrate", "--out", str(path)]) == 0
    assert json.loads(path.read_text())["profile"] == "a slow machine"
    (row,) = json.loads(path.read_text())["tuned"]
    assert min(trial["forecast"] for trial in row["trials"]) > 1.0 > max(forecasts)
    (row,) = json.loads(path.read_text())["tuned"]
    assert row["place"] == "cpu"
    times = [trial["measured"] for trial in row["trials"]]
    assert row["seconds"] == pytest.approx(sorted(times[0])[len(times[0]) // 2])
    assert row["gain"] >= 0.99
    text = path.with_suffix(".md").read_text()
    assert row["table"] in text
    assert f"gain {row['gain']:.2f}" in text


def test_what_a_card_is_tuned_with(tmp_path, monkeypatch):
    small = Problem("small box", "fftn", (16, 32, 64), (4, 32, 64))
    loose = Problem("small box that is not pinned", "fftn", (16, 32, 160), (4, 32, 160))
    monkeypatch.setattr(tuning, "GPU", (small,))
    monkeypatch.setattr(tuning, "UNPINNED", loose)
    monkeypatch.setattr(tuning, "CARD_NBYTES", 1 << 18)
    path = tmp_path / "tuning.json"
    with simulated_devices(1 << 20) as devices:
        assert tuning.main(["--device", "gpu", "--out", str(path)]) == 0
        assert devices[0].peak > 0
    rows = json.loads(path.read_text())["tuned"]
    assert [row["problem"] for row in rows] == [small.name, loose.name]
    for row in rows:
        assert row["place"] == "gpu"
        tried = {trial["pieces"] != "" for trial in row["trials"]}
        assert tried == {True, False}  # plans, and settings of the pipeline with the best of them
        assert all(trial["measured"] for trial in row["trials"])

"""The tuner's benchmark, tiny: its tables say what was tried."""

import json

import pytest

from dask_bigfft.bench import tuning
from dask_bigfft.bench.model import Problem


def test_the_tables(tmp_path, monkeypatch):
    small = Problem("small plane", "fftn", (64, 96), (16, 96))
    monkeypatch.setattr(tuning, "PROBLEMS", (small,))
    monkeypatch.setattr(tuning, "CPU", ("small plane",))
    monkeypatch.setattr(tuning, "CARDS", ())
    path = tmp_path / "tuning.json"
    assert tuning.main(["--out", str(path)]) == 0
    (row,) = json.loads(path.read_text())["tuned"]
    assert row["place"] == "cpu"
    times = [trial["measured"] for trial in row["trials"]]
    assert row["seconds"] == pytest.approx(sorted(times[0])[len(times[0]) // 2])
    assert row["gain"] >= 0.99
    text = path.with_suffix(".md").read_text()
    assert row["table"] in text
    assert f"gain {row['gain']:.2f}" in text

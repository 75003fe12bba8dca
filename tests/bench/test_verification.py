"""The benchmark of checks: a small run gives costs for every library, problem and mode."""

import json
import math

from dask_bigfft import events
from dask_bigfft.bench import verification
from dask_bigfft.kernels.libraries import usable


def test_costs_by_library_problem_and_mode(tmp_path, capsys):
    path, kernels = tmp_path / "out.json", [*usable()][:2]
    problems = ["2d", "1d", "2d on disk"]
    arguments = ["--only", *problems, "--scale", "64", "--repeat", "1", "--out", str(path)]
    assert verification.main([*arguments, "--kernel", *kernels]) in (0, 1)
    found = json.loads(path.read_text())["kernels"]
    assert list(found) == list(kernels)
    for costs in found.values():
        assert list(costs) == problems
        for modes in costs.values():
            assert set(modes) == {"again", "energy", "checksum"}
            for mid, low, high in (by[key] for by in modes.values() for key in by):
                assert low <= mid <= high
                assert math.isfinite(mid)
    said = capsys.readouterr().out
    assert "asked: 5 %" in said
    for line in said.splitlines():  # a verdict by each clock, of what is asked of
        verdicts = sum(line.count(f", {word}") for word in ("kept", "missed", "open"))
        assert verdicts == (2 if "asked" in line else 0)


def test_what_is_on_a_disk_goes_through_scratch_files(monkeypatch, tmp_path):
    """And the folder is gone afterwards."""
    seen = []

    def sink(name, numbers):
        seen.append(name)

    monkeypatch.setattr(verification.tempfile, "tempdir", str(tmp_path))
    events.add_sink(sink)
    try:
        verification.costs("2d on disk", 1, scale=64)
    finally:
        events.remove_sink(sink)
    assert {"scratch_write", "scratch_read"} <= set(seen)
    assert not list(tmp_path.iterdir())

"""The benchmark of large transforms, tiny: what it says follows from what it measured."""

import json
import statistics

import pytest

from dask_bigfft.bench import large
from dask_bigfft.bench.large import LARGE, main
from dask_bigfft.calibration.probes import Probe, measured_stages
from dask_bigfft.planner.profile import Profile


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.json"
    speeds = path.with_name("speeds.json")
    speeds.write_text(Profile("known", 2).to_json())
    arguments = ["--scale", "0.0005", "--threads", "2", "--repeat", "2", "--kernels", "scipy"]
    assert main([*arguments, "--profile", str(speeds), "--out", str(path)]) in (0, 1)
    assert Profile.from_json(path.with_suffix(".profile.json").read_text()) == Profile("known", 2)
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_forecasts_are_held_against_times(found):
    rows = found[0]["rows"]
    assert [row["problem"] for row in rows] == [problem.name for problem in LARGE]
    for row in rows:
        assert len(row["times"]) == 2
        assert row["seconds"] == statistics.median(row["times"])
        assert row["error"] == pytest.approx(row["forecast"] / row["seconds"] - 1)
        assert row["problem"] in found[1]


def test_rounds_are_unfolded(found):
    for row in found[0]["rows"]:
        assert row["phases"]
        for one in row["phases"]:
            assert one["blocks"] > 0
            assert 0 <= one["copies"] + one["ffts"] <= one["busy"] < 2 * sum(row["times"])
            if one["copies"] + one["ffts"]:
                assert 0 < one["worked_copies"] + one["worked_ffts"] <= one["worked"]


def test_what_calibration_measures_is_kept(tmp_path, monkeypatch):
    """So that another way to price the same probes can be tried afterwards."""
    shapes = []

    def measure(effort, folder, kernels):
        for shape in ((64, 96), (48, 80)):
            probe = Probe("fftn", shape, "c16", 0, 4, (((1, shape[1]),), ((0, shape[0]),)))
            shapes.append(list(shape))
            measured_stages(probe.plan(2), 2, 1)
        return Profile("known", 2)

    monkeypatch.setattr(large.calibration, "measure", measure)
    crowd = Probe("fftn", (16, 24), "c16", 0, 4, (((0, 16),), ((1, 24),)))
    monkeypatch.setattr(large, "CROWDS", (crowd,))
    path = tmp_path / "deep" / "large.json"
    arguments = ["--problems", "rows of 200", "--kernels", "scipy", "--repeat", "1"]
    main([*arguments, "--scale", "0.001", "--threads", "2", "--out", str(path)])
    lines = path.with_suffix(".trace.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["probe"][1] for one in found] == [*shapes, [16, 24], [16, 24]]
    assert [one["threads"] for one in found] == [2, 2, 1, 2]
    for one in found:
        first, second = one["stages"]
        assert 0 < first["worked"]["fft"] <= first["worked"]["round"]
        assert 0 < sum(second["parts"].values()) <= second["seconds"]
    measured_stages(Probe("fftn", (8, 8), "c16", 0, 2, (((1, 8),),)).plan(2), 2, 1)
    assert path.with_suffix(".trace.jsonl").read_text().splitlines() == lines  # it is over


def test_large_arrays_can_be_left_out(tmp_path, capsys):
    speeds = tmp_path / "speeds.json"
    speeds.write_text(Profile("known", 2).to_json())
    arguments = ["--problems", "line", "--scale", "0.001", "--kernels", "scipy", "--repeat", "1",
                 "--threads", "2", "--profile", str(speeds), "--most"]
    main([*arguments, "0.2"])
    told = capsys.readouterr().out
    assert "line of 128 MiB" in told
    assert "line of 2 GiB" not in told
    with pytest.raises(SystemExit):
        main([*arguments, "1e-9"])


def test_what_is_not_there_is_refused(capsys):
    for arguments in (["--problems", "nothing"], ["--kernels", "nothing"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "nothing" in capsys.readouterr().err

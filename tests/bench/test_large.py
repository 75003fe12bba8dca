"""The benchmark of large transforms, tiny: what it says follows from what it measured."""

import json
import statistics

import pytest

from dask_bigfft.bench.large import LARGE, main
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


def test_what_is_not_there_is_refused(capsys):
    for arguments in (["--problems", "nothing"], ["--kernels", "nothing"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "nothing" in capsys.readouterr().err

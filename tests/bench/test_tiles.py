"""The benchmark of tiles, tiny: it cuts blocks as it says, and refuses answers that differ."""

import json

import pytest

from dask_bigfft.bench import tiles
from dask_bigfft.decomposition.tiles import tile_bytes_of


def test_tiles_of_a_size_whatever_the_threads():
    with tiles.tiles_of(1 << 23, 1 << 21):
        assert tile_bytes_of(1) == tile_bytes_of(64) == 1 << 23
        assert tile_bytes_of(64, changes=True) == 1 << 21
    assert tile_bytes_of(1) == 1 << 21


def test_each_size_is_run_in_every_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "SIZES", ((4096, 2048), (512, 512)))
    seen = []
    real = tiles._run

    def run(x, plan):
        seen.append((tile_bytes_of(2), tile_bytes_of(2, changes=True)))
        return real(x, plan)

    monkeypatch.setattr(tiles, "_run", run)
    path = tmp_path / "tiles.json"
    arguments = ["--scale", "0.0005", "--most", "0.1", "--threads", "2", "--repeat", "2"]
    assert tiles.main([*arguments, "--out", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {row["problem"] for row in rows} == {
        problem.name for problem in tiles.LARGE if problem.nbytes <= 0.1 * (1 << 30)}
    assert seen == [(4096, 2048), (512, 512)] * (3 * len(rows))
    for row in rows:
        assert [(one["nbytes"], one["changed"]) for one in row["tiles"]] == list(tiles.SIZES)
        assert all(one["seconds"] > 0 for one in row["tiles"])
        assert f"| {row['problem']} | {row['kernel']} |" in path.with_suffix(".md").read_text()


def test_other_answers_are_refused(monkeypatch):
    real, runs = tiles._run, []

    def wrong(x, plan):
        runs.append(plan)
        numbers, result = real(x, plan)
        return numbers, result * (1 + 1e-9 * (len(runs) > 1))

    monkeypatch.setattr(tiles, "_run", wrong)
    with pytest.raises(ArithmeticError, match="off"):
        tiles.main(["--scale", "0.0005", "--most", "0.1", "--threads", "2", "--repeat", "1"])
    assert len(runs) == 2

"""The benchmark of checks: a small run gives costs for every library, problem and mode."""

import json
import math

from dask_bigfft.bench import verification
from dask_bigfft.kernels.libraries import available


def test_costs_by_library_problem_and_mode(tmp_path, capsys):
    path, kernels = tmp_path / "out.json", available()[:2]
    arguments = ["--only", "2d", "1d", "--scale", "64", "--repeat", "1", "--out", str(path)]
    assert verification.main([*arguments, "--kernel", *kernels]) in (0, 1)
    found = json.loads(path.read_text())["kernels"]
    assert list(found) == list(kernels)
    for problems in found.values():
        assert list(problems) == ["2d", "1d"]
        for modes in problems.values():
            assert set(modes) == {"again", "energy", "checksum"}
            for mid, low, high in (by[key] for by in modes.values() for key in by):
                assert low <= mid <= high
                assert math.isfinite(mid)
    assert "asked: 5 %" in capsys.readouterr().out

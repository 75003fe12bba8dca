"""The benchmark of convolutions: its answers are checked, small ones run, and a table comes out."""

import json

import numpy as np
import pytest

from dask_bigfft.bench import convolution


@pytest.mark.parametrize(
    ("problem", "contender"), [(p, c) for p, found in convolution.PROBLEMS.items() for c in found]
)
def test_every_contender_gives_the_right_answer(problem, contender):
    found = convolution.measure(problem, contender, 1 << 13, 4, 1)
    assert found["ok"], found
    assert found["error"] < found["tolerance"] < 1e-12
    assert found["input_bytes"] >= 8 << 13
    assert json.dumps(found)


@pytest.mark.parametrize(
    "wrong",
    [lambda r: r[:-1], lambda r: r * (1 + 1e-6), lambda r: np.roll(r, 1), lambda r: r[::-1]],
)
def test_a_wrong_answer_shows(wrong, monkeypatch):
    right = convolution.CONTENDERS["scipy"]
    monkeypatch.setitem(convolution.CONTENDERS, "scipy", lambda inputs: wrong(right(inputs)))
    assert not convolution.measure("full", "scipy", 1 << 12, 4, 1)["ok"]


def test_targets():
    row = {"warm": 2.0, "cold": 4.0, "peak_bytes": 100, "error": 1e-15, "ok": True}
    peer = {**row, "warm": 5.0, "cold": 6.0, "peak_bytes": 200}
    found = convolution.targets({"full": {"fftconvolve": row, "da.fft": peer}})
    assert [(ratio, met) for _, ratio, met in found] == [(2.5, True), (1.5, False), (2.0, True)]
    assert convolution.targets({"full": {"scipy": row}}) == []


def test_the_program(tmp_path, capsys, monkeypatch):
    """What a child cannot do is said and counts as wrong."""
    answers = iter([
        {"cold": 1.0, "warm": 0.5, "peak_bytes": 1 << 20, "input_bytes": 8, "error": 1e-15,
         "tolerance": 1e-14, "ok": True},
        {"error_text": "MemoryError", "ok": False},
        {"cold": 1.0, "warm": 0.5, "peak_bytes": 1 << 20, "input_bytes": 8, "error": 1e-15,
         "tolerance": 1e-14, "ok": True},
    ])
    monkeypatch.setattr(convolution, "_child", lambda _: next(answers))
    out = tmp_path / "found.json"
    assert convolution.main(["--only", "full", "--repeat", "1", "--out", str(out)]) == 1
    assert "did not run" in capsys.readouterr().out
    assert json.loads(out.read_text())["medians"]["full"]["fftconvolve"]["ok"]
    assert out.with_suffix(".md").exists()


def test_what_is_slow_runs_once_and_every_run_is_written(tmp_path, monkeypatch):
    """Ours run in every turn, however long they take."""
    out, seen = tmp_path / "found.json", []

    def child(arguments):
        known = json.loads(out.read_text()) if out.exists() else {"runs": {"taps": {}}}
        seen.append((arguments[1], sum(map(len, known["runs"]["taps"].values()))))
        assert not known.get("complete")
        cold = 2 * convolution.LONG if arguments[1] in ("fftconvolve", "da.fft") else 1.0
        return {"cold": cold, "warm": cold, "peak_bytes": 8, "error": 0.0, "ok": True}

    monkeypatch.setattr(convolution, "_child", child)
    assert convolution.main(["--only", "taps", "--repeat", "3", "--out", str(out)]) == 0
    names = [name for name, _ in seen]
    assert {name: names.count(name) for name in names} == {
        "fftconvolve": 3, "oaconvolve": 3, "da.fft": 1, "scipy": 3, "scipy.oaconvolve": 3
    }
    assert [written for _, written in seen] == list(range(len(seen)))
    assert json.loads(out.read_text())["complete"]


def test_a_child_is_this_program(capsys):
    assert convolution.main(["--child", "taps", "oaconvolve", "8192", "4", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]

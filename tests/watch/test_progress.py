"""Progress shows of a run what has been done of it."""

import io
from types import SimpleNamespace

import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.watch import progress
from dask_bigfft.watch.progress import (
    Board,
    LocalProgress,
    PlanProgress,
    TextDisplay,
    line_of,
    runs_html,
)


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


def run_of(clock, **tasks):
    """A run of two rounds, with a number of tasks of each stage."""
    plan = dask_bigfft.plan(da.zeros((64, 64), chunks=(8, 64), dtype="c16"), "fftn")
    run = PlanProgress(plan, "0a1b", lambda: clock.now)
    run.total.update(tasks)
    return run


def test_stages_weigh_their_bytes(clock):
    assert run_of(clock).summary()["stage"] == "starting"
    run = run_of(clock, read=8, round1=8, round2=8)  # writing is fused into the last round
    said = run.summary()
    assert (said["bytes_done"], said["bytes_total"]) == (0, 3 * 65536)
    for stage in ["read"] * 8 + ["round1"] * 4:
        run.count(stage)
    clock.now = 60.0
    said = run.summary()
    assert (said["bytes_done"], said["bytes_total"]) == (65536 + 32768, 3 * 65536)
    assert "50 %" in line_of([said])
    assert line_of([said]).endswith("60.0 s elapsed, 60.0 s left")


def test_a_run_that_is_done_stops_its_clock(clock):
    run = run_of(clock, read=8, round1=8, round2=8)
    for stage in ["read"] * 8 + ["round1"] * 8 + ["round2"] * 8:
        clock.now += 1
        run.count(stage)
    clock.now = 1000.0
    run.stop("cancelled")
    said = run.summary()
    assert (said["state"], said["elapsed"], said["left"]) == ("done", 24.0, None)
    assert 24 * said["flops_per_second"] == pytest.approx(run.plan.expected.flops)


def test_compiling_is_shown_and_left_out_of_speeds(clock):
    run = run_of(clock, round1=8, round2=8)
    stream = io.StringIO()
    board = Board()
    shown = TextDisplay(stream)
    board.runs["0a1b"] = run
    assert board.hear("compiling", {"plan": "0a1b", "index": 1})
    shown.show(board.summaries())
    clock.now = 20.0
    assert board.hear("compile", {"plan": "0a1b-filter0", "index": 1, "seconds": 20.0})
    assert not board.hear("compile", {"plan": "another", "seconds": 1.0})
    assert not board.hear("round", {"plan": "0a1b", "seconds": 1.0})
    clock.now = 30.0
    for _ in range(8):
        run.count("round1")
    (said,) = board.summaries()
    shown.show([said])
    assert (said["elapsed"], said["left"]) == (10.0, 5.0)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("compiling")
    assert second.startswith("round 2 of 2")
    assert second.endswith("10.0 s elapsed, 20.0 s of compiling before, 5.00 s left")
    assert "20.0 s of compiling before" in runs_html([said])


def test_a_terminal_has_one_line_that_is_rewritten(clock, monkeypatch):
    monkeypatch.setattr(progress, "OFTEN", 0.0)
    stream = io.StringIO()
    stream.isatty = lambda: True
    shown = TextDisplay(stream)
    run = run_of(clock, round1=2, round2=2)
    for stage in ("round1", "round1", "round2", "round2"):
        run.count(stage)
        shown.show([run.summary()])
    shown.show([run.summary()], last=True)
    *lines, last = stream.getvalue().split("\r")
    assert len(lines) == 5
    assert "\n" not in "".join(lines)
    assert last.startswith(f"[{20 * '#'}] done")


def test_two_transforms_one_after_the_other_are_two_runs():
    x = da.random.default_rng(0).standard_normal((64, 64), chunks=(8, 64))
    spectrum = fft.fft2(x)
    with LocalProgress(TextDisplay(io.StringIO())) as shown:
        fft.ifft2(spectrum * (abs(spectrum) > 1)).real.compute(scheduler="sync")
    first, second = sorted(shown.board.runs.values(), key=lambda run: run.started)
    assert [first.plan.spec.name, second.plan.spec.name] == ["fft2", "ifft2"]
    assert first.stopped <= second.stopped
    assert [run["state"] for run in shown.board.summaries()] == ["done", "done"]
    assert first.token != second.token

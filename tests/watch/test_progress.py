"""Progress shows of a run what has been done of it."""

import io
import sys
from types import SimpleNamespace

import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft import fft, signal
from dask_bigfft.watch.progress import (
    Board,
    LocalProgress,
    PlanProgress,
    line_of,
    runs_html,
    text_display,
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
    assert line_of([said]).endswith("60.00 s elapsed, 60.00 s left")


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
    shown = text_display(stream)
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
    assert second.endswith("10.00 s elapsed, 20.00 s of compiling before, 5.00 s left")
    assert "20.00 s of compiling before" in runs_html([said])


def on_a_terminal():
    """A stream that says that it is a terminal, and its display."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    return stream, text_display(stream)


def test_a_terminal_has_one_bar_that_is_rewritten(clock):
    pytest.importorskip("tqdm")
    stream, shown = on_a_terminal()
    run = run_of(clock, round1=2, round2=2)
    shown.show([], last=True)  # nothing is left of the display without a transform
    assert not stream.getvalue()
    for stage in ("round1", "round1", "round2", "round2"):
        run.count(stage)
        shown.show([run.summary()])
    assert "\n" not in stream.getvalue()
    shown.show([run.summary()], last=True)
    *_, last = stream.getvalue().split("\r")
    assert last.startswith("done: 100%")
    assert "192k/192k" in last  # 3 * 65536 bytes
    assert last.endswith("\n")

    again = run_of(clock, round1=2, round2=2)
    again.count("round1")
    shown.show([run.summary(), again.summary()])  # another computation has another bar
    *_, line = stream.getvalue().split("\r")
    assert line.startswith("transform 2 of 2, round 1 of 2:")


def test_without_tqdm_a_terminal_has_lines(clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    stream, shown = on_a_terminal()
    run = run_of(clock, round1=1, round2=1)
    for stage in ("round1", "round2"):
        run.count(stage)
        shown.show([run.summary()])
    first, second = stream.getvalue().splitlines()
    assert first.startswith("round 2 of 2")
    assert second.startswith("done")


def test_nothing_is_shown_without_streams(monkeypatch):
    """As in a daemon, or under pythonw on Windows."""
    monkeypatch.setattr(sys, "stderr", None)
    y = fft.fft(da.ones(4096, chunks=512))
    assert dask_bigfft.progress(y).compute()[0] == 4096
    with dask_bigfft.progress():
        assert y.compute()[0] == 4096


def test_two_transforms_one_after_the_other_are_two_runs():
    x = da.random.default_rng(0).standard_normal((64, 64), chunks=(8, 64))
    spectrum = fft.fft2(x)
    with LocalProgress(text_display(io.StringIO())) as shown:
        fft.ifft2(spectrum * (abs(spectrum) > 1)).real.compute(scheduler="sync")
    first, second = sorted(shown.board.runs.values(), key=lambda run: run.started)
    assert [first.plan.spec.name, second.plan.spec.name] == ["fft2", "ifft2"]
    assert first.stopped <= second.stopped
    assert [run["state"] for run in shown.board.summaries()] == ["done", "done"]
    assert first.token != second.token


def test_plans_without_a_forecast_are_shown():
    x = da.random.default_rng(1).standard_normal(2**16, chunks=2**12)
    y = da.random.default_rng(2).standard_normal(2**16, chunks=2**12)
    with LocalProgress(text_display(io.StringIO())) as shown:
        signal.fftconvolve(x, y).sum().compute(scheduler="sync")
    runs = shown.board.runs.values()
    assert {run.plan.expected.seconds for run in runs} >= {0}
    assert any(run.stopped for run in runs)

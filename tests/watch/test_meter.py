"""What is shown of a run is what has been done of it."""

import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.storage import sources
from dask_bigfft.watch.display import LocalProgress, TextDisplay, runs_html
from dask_bigfft.watch.meter import Board, Meter


class Terminal:
    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def meter_of(shape=(64, 64), now=lambda: 0.0):
    source = sources.da.zeros(shape, chunks=(8, 64), dtype="c16")
    return Meter(dask_bigfft.plan(source, "fftn"), now)


def names(reading=8, first=8, second=8):
    last = ["bigfft_round2-store-map-1"] * second
    return ["array-1"] * reading + ["bigfft_round1-1"] * first + last


def test_the_meter_weighs_stages_by_their_bytes():
    time_now = [0.0]
    meter = meter_of(now=lambda: time_now[0])
    assert meter.stage == "starting"
    meter.expect([*names(), "bigfft_barrier2-1", "bigfft_plan-1"])
    assert meter.nbytes == (0, 4 * 65536 - 65536)  # writing is fused into the last round
    for _ in range(8):
        meter.add("array-1")
    for _ in range(4):
        meter.add("bigfft_round1-1")
    time_now[0] = 60.0
    assert meter.nbytes == (65536 + 32768, 3 * 65536)
    assert "50 %" in meter.line()
    assert meter.line().endswith("1:00 elapsed, 1:00 left")


def test_a_run_that_is_done_stops_its_clock():
    time_now = [0.0]
    meter = meter_of(now=lambda: time_now[0])
    meter.expect(names())
    for name in names():
        time_now[0] += 1
        meter.add(name)
    time_now[0] = 1000.0
    assert (meter.state, meter.elapsed, meter.left) == ("done", 24.0, None)
    assert meter.flops == pytest.approx(meter.plan.expected.flops)
    meter.fail("cancelled")
    assert meter.state == "done"


def test_compiling_is_shown_and_left_out_of_speeds():
    time_now = [0.0]
    meter, stream = meter_of(now=lambda: time_now[0]), Terminal(terminal=False)
    board, shown = Board(), TextDisplay(stream)
    board.meters["0a1b"] = meter
    meter.expect(names(reading=0))
    meter.begin()
    assert board.hear("compiling", {"plan": "0a1b", "index": 1})
    shown.show([meter.as_dict()])
    time_now[0] = 20.0
    assert board.hear("compile", {"plan": "0a1b-filter0", "index": 1, "seconds": 20.0})
    assert not board.hear("compile", {"plan": "another", "seconds": 1.0})
    assert not board.hear("round", {"plan": "0a1b", "seconds": 1.0})
    time_now[0] = 30.0
    for name in names(reading=0, second=0):
        meter.add(name)
    shown.show([meter.as_dict()])
    assert meter.elapsed == 10.0
    assert meter.left == 5.0
    first, second = stream.text.splitlines()
    assert first.startswith("compiling")
    assert second.startswith("round 2 of 2")
    assert second.endswith("0:10 elapsed, 20.0 s of compiling before, 0:05 left")
    assert "20.0 s of compiling before" in runs_html([meter.as_dict()])


# --- boards ---------------------------------------------------------------------------------


class Quiet:
    def show(self, runs):
        pass

    close = show


def watched(y, scheduler="sync", display=None, **options):
    board = Board()
    with LocalProgress(display or Quiet(), board):
        y.compute(scheduler=scheduler, **options)
    return list(board.meters.values())


def source(seed=0):
    return da.random.default_rng(seed).standard_normal((64, 64), chunks=(8, 64))


def test_two_transforms_one_after_the_other_are_two_runs():
    spectrum = fft.fft2(source())
    found = watched(fft.ifft2(spectrum * (abs(spectrum) > 1)).real)
    first, second = sorted(found, key=lambda meter: meter.started)
    assert [first.plan.spec.name, second.plan.spec.name] == ["fft2", "ifft2"]
    assert first.stopped <= second.stopped
    assert first.state == second.state == "done"
    assert first.token != second.token

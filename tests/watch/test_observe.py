"""What `progress` and `report` say is what was done, here and on a cluster; Ctrl-C stops it."""

import io
import signal
import subprocess
import sys
import threading
import time
import types
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from support import environment, failing, in_threads

import dask_bigfft
from dask_bigfft import fft, progress, report
from dask_bigfft.errors import ArgumentError
from dask_bigfft.events import PlanRecord, Span, Total, workers_of
from dask_bigfft.planner.phases import phase_forecasts
from dask_bigfft.watch.report import RunReport

FIELD = np.random.default_rng(5).standard_normal((64, 64))


def blocks(seed=0):
    return da.from_array(FIELD + seed, chunks=(8, 64))


# --- progress -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_progress_returns_the_computed_array(scheduler):
    said = io.StringIO()
    with dask.config.set(scheduler=scheduler):
        y = progress(fft.fft2(blocks(1)), stream=said)
    assert np.allclose(y, np.fft.fft2(FIELD + 1))
    assert len(y.__dask_graph__()) == y.npartitions  # nothing is left to do
    assert "round 1 of 2" in said.getvalue()
    assert said.getvalue().splitlines()[-1].startswith("done          100 %")


def test_progress_of_several_and_as_a_context():
    said = io.StringIO()
    first, second = progress(fft.fft2(blocks(2)), fft.fft2(blocks(3)), stream=said)
    assert np.allclose(first - second, np.fft.fft2(FIELD + 2) - np.fft.fft2(FIELD + 3))
    assert "transform 2 of 2" in said.getvalue()
    said = io.StringIO()
    with progress(stream=said):
        total = abs(fft.fft2(blocks(4))).sum().compute()
    assert np.isclose(total, abs(np.fft.fft2(FIELD + 4)).sum())
    assert "100 %" in said.getvalue()


#: Chains that dask joins to one task, where transforms are made in one block.
JOINED = {
    "one transform": (lambda x: abs(fft.rfft(x, axis=0)) / 2, ["rfft"]),
    "there and back": (lambda x: fft.irfft2(fft.rfft2(x)), ["rfft2", "irfft2"]),
    "something between": (lambda x: fft.ifft2(fft.fft2(x) * 2) + 1, ["fft2", "ifft2"]),
}


def shown_as_done(chain):
    """What is shown of a joined chain, which is done at the end and reported."""
    function, names = JOINED[chain]
    said = io.StringIO()
    with dask.config.set({"bigfft.planner.small": "64 MiB", "bigfft.capture": "never"}):
        y = progress(function(blocks(sum(map(ord, chain)))), stream=said)
    last = said.getvalue().splitlines()[-1]
    assert "done" in last
    assert "100 %" in last
    assert ("transform 2 of 2" in last) == (len(names) == 2)
    runs = report(y).runs
    assert sorted(run.plan.spec.name for run in runs) == sorted(names)
    assert all(run.seconds > 0 for run in runs)
    return said.getvalue()


@pytest.mark.parametrize("chain", JOINED)
def test_progress_of_transforms_that_dask_joins_to_one_task(chain):
    with dask.config.set(scheduler="threads"):
        assert "round 1 of 1" in shown_as_done(chain)


@pytest.fixture
def callbacks_of_several_threads():
    """Callbacks of dask are those of a process.

    Of two computations in threads, the one that ends last brings the other's callback back.
    """
    yield
    Callback.active.clear()


def test_progress_in_two_threads(callbacks_of_several_threads):
    """One array begins after the other, and goes on after its end."""
    begun = threading.Event()
    ended = threading.Event()

    def waiting(block, seed):
        assert begun.wait(30) if seed == 0 else begun.set() or ended.wait(30)
        return block

    def shown(seed):
        y = fft.fft2(blocks(seed).map_blocks(waiting, seed, dtype=float, meta=np.empty((0, 0))))
        spectrum = progress(y, stream=io.StringIO())
        ended.set()
        return np.allclose(spectrum, np.fft.fft2(FIELD + seed))

    assert in_threads(2, shown) == [True, True]


def test_progress_and_report_on_a_cluster(client):
    said = io.StringIO()
    y = progress(fft.fft2(blocks(5)), stream=said)
    assert np.allclose(y.compute(), np.fft.fft2(FIELD + 5))
    assert said.getvalue().splitlines()[-1].startswith("done          100 %")
    (run,) = report(y).runs
    assert set(run.places) <= set(workers_of(client))
    blocks_of = [round_.target.blocks for round_ in run.plan.rounds]
    assert [row.count for row in run.rows if row.phase == "round"] == blocks_of
    assert "worker 0" in run.timeline()
    with progress(stream=said):
        assert np.allclose(fft.fft2(blocks(6)).compute(), np.fft.fft2(FIELD + 6))


def test_progress_of_joined_tasks_on_a_cluster(client):
    for chain in JOINED:
        shown_as_done(chain)


def test_an_error_of_a_task_is_raised(client):
    x = failing(blocks(7))
    for scheduler in ("threads", None):
        with dask.config.set(scheduler=scheduler), pytest.raises(RuntimeError, match="broken"):
            progress(fft.fft2(x), stream=io.StringIO())


def test_what_is_no_array_is_refused():
    with pytest.raises(ArgumentError, match="`arrays`='ndarray'"):
        progress(FIELD)


def test_in_a_notebook_bars_are_drawn_in_place(monkeypatch):
    shown = []

    def show(html, display_id):
        shown.append(html)
        return types.SimpleNamespace(update=shown.append)

    fake = types.SimpleNamespace(
        get_ipython=lambda: types.SimpleNamespace(kernel=object()),
        display=types.SimpleNamespace(display=show, HTML=str),
    )
    monkeypatch.setitem(sys.modules, "IPython", fake)
    progress(fft.fft2(blocks(8)))
    assert "starting" in shown[0]
    assert 'value="8" max="8"' in shown[-1]
    with dask.config.set({"bigfft.planner.small": "64 MiB"}):
        progress(abs(fft.rfft(blocks(9), axis=0)))
    assert 'value="1" max="1"' in shown[-1]
    progress(blocks(9) + 1)  # nothing is left of the display without a transform
    assert shown[-1] == ""


@pytest.mark.parametrize("where", ["threads", "cluster", "disk", "device", "sync"])
def test_ctrl_c_stops_what_runs_and_lets_go_of_files_devices_and_memory(where, tmp_path):
    scratch = tmp_path / "scratch"
    script = Path(__file__).with_name("interrupted.py")
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, str(script), where, str(scratch)],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    ) as process:
        assert [process.stdout.readline() for _ in range(12)] == 12 * ["begun\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    said = out.splitlines()
    assert said.count("begun") < 28, err
    assert [line for line in said if line != "begun"] == [
        f"interrupted: files {where == 'disk'} running 0",
        "left (0, 0, 0, 0) 0",
        "again True 0",
        "device True",
    ], err


# --- reports --------------------------------------------------------------------------------


def seconds_of_rounds(run):
    """Thread seconds of each round, by its rows and by its blocks."""
    by_row = {row.index: row.seconds for row in run.rows if row.phase == "round"}
    by_block = dict.fromkeys(by_row, 0.0)
    for span in run.spans:
        if span.phase == "round":
            by_block[span.index] += span.stop - span.start
    return by_row, by_block


@pytest.mark.parametrize("carrier", ["auto", "tasks", "disk"])
def test_a_report_is_about_the_last_run(carrier):
    """Earlier ones, of the array, of part of it and of an equal array, are only counted."""
    with dask.config.set({"bigfft.exchange.carrier": carrier, "scheduler": "threads"}):
        y = fft.fft2(blocks(20))
        y.compute()
        y.blocks[0, 0].compute()
        fft.fft2(blocks(20)).compute()
        begun = time.time()
        y.compute()
    (run,) = report(y).runs
    assert run.runs == 4
    assert "4" in dict(run.summary)["runs"]
    assert min(span.start for span in run.spans) >= begun
    blocks_of = {i: round_.target.blocks for i, round_ in enumerate(run.plan.rounds, 1)}
    assert {row.index: row.count for row in run.rows if row.phase == "round"} == blocks_of
    by_row, by_block = seconds_of_rounds(run)
    assert by_row == pytest.approx(by_block, rel=1e-3)


def test_a_report_is_about_the_last_run_on_a_cluster(client):
    y = fft.fft2(blocks(21))
    for _ in range(3):
        y.compute()
    (run,) = report(y).runs
    assert run.runs == 3
    by_row, by_block = seconds_of_rounds(run)
    assert by_row == pytest.approx(by_block, rel=1e-3)
    blocks_of = [round_.target.blocks for round_ in run.plan.rounds]
    assert [row.count for row in run.rows if row.phase == "round"] == blocks_of


def test_a_report_of_counters_alone_has_means():
    """The last run is not known of them, or of more blocks than are recorded."""
    run = by_hand()
    totals = {phase: total.plus(total) for phase, total in run.places[""].totals.items()}
    twice = RunReport(run.plan, run.token, {"": PlanRecord(totals)})
    assert twice.runs == 2
    assert [replace(row, limit=None) for row in twice.rows] == run.rows


@pytest.fixture(scope="module")
def computed():
    """A transform that has been computed once."""
    y = fft.fft2(blocks(10))
    y.compute(scheduler="threads")
    return y


def test_a_report_has_the_plan_and_every_block(computed):
    (run,) = report(computed).runs
    assert run.runs == 1
    assert "runs" not in dict(run.summary)
    count = sum(round_.target.blocks for round_ in run.plan.rounds)
    assert len([span for span in run.spans if span.phase == "round"]) == count
    assert run.plan == dask_bigfft.plan(blocks(10), "fft2")
    assert " busy " in str(run)
    assert "forecast" in str(report(computed))


@pytest.mark.parametrize("index", [1, 2])
def test_a_report_has_each_round_with_its_forecast(computed, index):
    (run,) = report(computed).runs
    (forecast,) = (p for p in phase_forecasts(run.plan) if (p.name, p.index) == ("round", index))
    (row,) = (row for row in run.rows if (row.phase, row.index) == ("round", index))
    assert (row.count, row.nbytes) == (forecast.count, forecast.nbytes)
    assert row.forecast == forecast.seconds
    parts = sum(part.seconds for part in run.rows if part.is_part and part.index == index)
    assert parts <= row.seconds * 1.0001


def test_rows_have_a_limit_by_the_profile_of_a_machine():
    assert all(row.limit for row in by_hand("m").rows)


def by_hand(name=""):
    """A plan and a record whose numbers are known, with the name of a machine's profile."""
    plan = dask_bigfft.plan(da.zeros((4, 4), chunks=(2, 4)), "fft2")
    profile = replace(plan.machine.profile, name=name)
    plan = replace(plan, machine=replace(plan.machine, profile=profile))
    record = PlanRecord(rss_before=100, rss_peak=400)
    for index, start in ((1, 10.0), (2, 12.0)):
        for lane in (0, 1):
            span = Span(
                "round",
                index,
                start + lane,
                start + lane + 1,
                lane,
                128,
            )
            record.spans.append(span)
            total = Total(1, 128, 1.0, span.start, span.stop)
            record.totals["round", index] = total.plus(record.totals.get(("round", index)))
    return RunReport(plan, "0a", {"": record})


def test_the_picture_is_drawn_to_scale():
    svg = ElementTree.fromstring(by_hand().timeline())
    bars = [rect for rect in svg.iter("{http://www.w3.org/2000/svg}rect") if len(rect)]
    left = min(float(bar.get("x")) for bar in bars)
    scale = float(bars[0].get("width"))
    assert sorted(round((float(bar.get("x")) - left) / scale) for bar in bars) == [0, 1, 2, 3]
    assert len({bar.get("y") for bar in bars}) == len({bar.get("fill") for bar in bars}) == 2


def test_names_in_html_are_escaped():
    run = by_hand()
    hurt = RunReport(run.plan, run.token, {"<w>": run.places[""]})
    assert "<w>" not in hurt._repr_html_()
    ElementTree.fromstring(hurt.timeline())

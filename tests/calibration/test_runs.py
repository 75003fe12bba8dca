"""What graphs take beside their blocks, found again in runs that were made up of it."""

import math
import time
from types import SimpleNamespace

import dask
import pytest

from dask_bigfft.calibration import runs
from dask_bigfft.calibration.timelines import Span, Timeline, _span, _Watch, taken
from dask_bigfft.planner.cost import forecast_rounds, model_of
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.machine import Machine
from dask_bigfft.planner.profile import LibrarySpeeds, Profile, constant
from dask_bigfft.planner.thread_seconds import adrift
from dask_bigfft.planning.trials import ones

TRUE = {"start": 2e-3, "planned": 5e-5, "task": 3e-4, "exchange": 7e-4, "uneven": 0.1,
        "brief": 1e-4, "waiting": 2.0}

#: How many times as long copies and FFTs take in a graph, by library.
OF_LIBRARY = {"scipy": 1.25, "ducc0": 0.8}


def made_up(plan, late=0.0, library=1.0, clock=1.0):
    """What a plan would take where everything between its blocks is as `TRUE` says.

    Threads have a processor for blocks `library` times as long as was forecast. By the clock copies
    and FFTs take `clock` times as long as that.
    """
    spans = []
    for number, found in enumerate(forecast_rounds(plan, model_of(plan))):
        lanes, blocks = min(2, found.blocks), found.blocks
        copies, ffts = library * found.gather, library * found.fft
        if number == len(plan.rounds):  # nothing is done
            spans.append(Span(number + 1, blocks, 1, TRUE["exchange"] + late,
                              blocks * TRUE["brief"], 0.0, 0.0, 0.0, 0.0))
            continue
        lane = sum(
            count * block_seconds(
                lanes, (copies + ffts) / blocks, found.handling / blocks + often * TRUE["task"])
            for count, often in ((lanes, 1), (blocks - lanes, TRUE["waiting"])))
        worked = (copies + ffts, copies, ffts)
        copies, ffts = clock * copies, clock * ffts
        busy = copies + ffts + found.handling
        before = TRUE["exchange"]
        if number == 0:
            before = TRUE["start"] + TRUE["planned"] * runs._tasks(plan)
        tail = lanes * (TRUE["uneven"] if blocks <= lanes else adrift(lanes)) * busy / blocks
        span = Span(number + 1, blocks, lanes, before + late, lane - busy, tail, busy, copies, ffts,
                    worked)
        spans.append(span)
    return Timeline(1.0, 0.0, tuple(spans))


def test_what_lies_between_blocks_is_found(monkeypatch):
    def timelines(plans, repeat, until):
        # One of three runs of each was held up by something else.
        return [[made_up(plan), made_up(plan, 1.0), made_up(plan)] for plan in plans]

    monkeypatch.setattr(runs, "_timelines", timelines)
    profile = Profile("one", 2, task=TRUE["task"] + TRUE["planned"], block=1e-4, tables=1e-3)
    found = runs.between_blocks(profile, 32 << 20, 1, ["scipy", "ducc0"])
    libraries = found.pop("libraries")
    assert found == pytest.approx(TRUE, rel=1e-3, abs=1e-9)
    assert libraries == ()  # the profile knows of none


def test_what_graphs_add_is_found_for_each_library(monkeypatch):
    def timelines(plans, repeat, until):
        return [[made_up(plan, library=OF_LIBRARY[plan.kernel], clock=6.0)] for plan in plans]

    monkeypatch.setattr(runs, "_timelines", timelines)
    curve = constant(1e9)
    libraries = [LibrarySpeeds(name, dtype, curve, curve)
                 for name in (*OF_LIBRARY, "pyfftw") for dtype in ("complex128", "complex64")]
    profile = Profile("one", 2, task=TRUE["task"] + TRUE["planned"], libraries=tuple(libraries))
    found = runs.between_blocks(profile, 32 << 20, 1, list(OF_LIBRARY))["libraries"]
    assert [(one.name, one.dtype) for one in found] == [(one.name, one.dtype) for one in libraries]
    others = sum(OF_LIBRARY.values()) / 2  # of one that was not run: in the middle of those
    for one in found:
        assert one.company == pytest.approx(OF_LIBRARY.get(one.name, others), rel=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 16, 32, 200])
def test_many_threads_do_not_make_many_more_chunks(threads):
    on = Machine(None, threads, 1, profile=Profile("many", threads))
    for plan, (_, few) in zip(runs._plans(1 << 20, ["scipy"], on), runs.SHAPES, strict=True):
        most = max(few, runs.MOST_CHUNKS, threads)
        assert few <= plan.source.blocks <= most
        if few * threads // 2 <= runs.MOST_CHUNKS:  # where there is no limit, as many for each
            assert plan.source.blocks > max(few, few * threads // 2) / 2


def test_a_round_is_unfolded():
    watch = _Watch()
    watch.parts = {(1, "gather"): 0.5, (1, "scatter"): 0.25, (1, "fft"): 2.0, (2, "fft"): 9.0}
    blocks = [(7, 1.0, 2.0), (8, 1.5, 3.0), (7, 2.25, 3.5), (8, 3.0, 4.0)]
    found = _span(watch, 1, blocks, 0.5)
    assert (found.blocks, found.lanes, found.before) == (4, 2, 0.5)
    assert found.busy == 1.0 + 1.5 + 1.25 + 1.0
    assert found.tail == 0.5  # of thread 7, until the other one is done
    assert found.idle == 0.5 + 0.25  # thread 8 began late, 7 waited for its second block
    assert (found.copies, found.ffts) == (0.75, 2.0)
    assert _span(watch, 1, blocks, 1.25).before == 0.0  # others of the round before still worked


def small_plan():
    on = Machine(None, 2, 1, profile=Profile("one", 2))
    (plan, *_) = runs._plans(1 << 16, ["scipy"], on)
    return plan


def test_what_is_run_has_memory_of_its_own():
    blocks = dask.compute(*ones(small_plan()).to_delayed().ravel())
    assert all(block.flags.c_contiguous for block in blocks)


def test_a_computation_is_the_sum_of_what_it_is_unfolded_into():
    plan = small_plan()
    with dask.config.set(scheduler="threads", num_workers=2):
        started = time.perf_counter()
        found = taken(ones(plan), plan)
        most = time.perf_counter() - started
    assert [span.blocks for span in found.spans] == [
        exchange.target.blocks for exchange in plan.exchanges]
    assert 0 < found.seconds < most
    lanes = [(s.busy + s.idle + s.tail) / s.lanes + s.before for s in found.spans]
    assert sum(lanes) + found.after == pytest.approx(found.seconds)
    for span in found.spans:
        assert 0 <= span.copies + span.ffts <= span.busy
        assert span.tail >= 0


def test_whole_transforms_are_run():
    found = runs.between_blocks(Profile("one", 2), 1 << 16, 1, ["scipy"])
    assert set(found) == {*TRUE, "libraries"}
    assert found.pop("libraries") == ()
    assert all(0 <= value <= runs.LONGEST_WAIT for value in found.values())
    assert runs.LEAST <= found["waiting"] <= runs.LONGEST_WAIT


def test_a_line_starts_and_rises_from_nothing_at_least():
    assert runs._line([(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]) == pytest.approx((1.0, 2.0))
    assert runs._line([(1.0, 3.0), (3.0, 1.0)]) == pytest.approx((2.0, 0.0))


def test_tails_are_of_lanes_that_had_work_until_then():
    def span(block, tail, idle=0.0, lanes=2, blocks=2):
        busy = blocks * block
        return Span(1, blocks, lanes, 0.0, idle * busy, lanes * tail, busy, 0.0, 0.0)

    steady = [span(0.01, 0.003), span(0.02, 0.004), span(0.04, 0.006)]
    assert runs._tails(steady) == pytest.approx((0.002, 0.1))
    assert runs._tails([*steady, span(0.05, 0.1, idle=2.0)]) == pytest.approx((0.002, 0.1))
    drifting = span(0.06, 0.002 + adrift(2) * 0.06, blocks=4)
    assert runs._tails([*steady, drifting]) == pytest.approx((0.002, 0.1))
    busiest = [span(0.01, 0.003, idle=2.0), span(0.02, 0.004, idle=2.0)]
    assert runs._tails(busiest) == pytest.approx((0.002, 0.1))
    assert runs._tails([span(0.02, 0.004, lanes=1)]) == (0.0, 0.0)


def test_rounds_without_work_say_nothing_of_a_library():
    span = SimpleNamespace(copies=0.0, ffts=0.0, worked=(0.0, 0.0, 0.0))
    assert runs._of_library([runs.Seen(SimpleNamespace(gather=0.0, fft=0.0), span, True)]) == 1.0
    assert runs._of_library([]) == 1.0


@pytest.mark.parametrize(("until", "expected"), [(math.inf, 9), (0.0, 3)])
def test_runs_that_take_long_are_fewer(until, expected):
    with dask.config.set(scheduler="threads", num_workers=2):
        plans = list(runs._plans(1 << 18, ["scipy"], Machine(None, 2, 1)))[:1]
        (found,) = runs._timelines(plans, 1, until)
    assert len(found) == expected

"""What threads cost each other, found again in probes that were made up of it."""

from dataclasses import replace

import pytest

from dask_bigfft.calibration import cpu, fft_libraries
from dask_bigfft.calibration.cpu import HANDLED, Effort, handled, sampled
from dask_bigfft.calibration.crowds import in_company
from dask_bigfft.calibration.probes import Probe, Stage, measured_stages
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.traffic import calls

PYTHON = dict.fromkeys(HANDLED, 1e-4)

#: Seconds of work in a block, from those in which Python matters most to none.
FREE = (1e-4, 1e-3, 1e-2, 1e-1)


@pytest.fixture(scope="module")
def samples():
    """Of many blocks and of few."""
    probes = [Probe("fftn", (32, 64), "c16", 0, ways, (((1, 64),), ((0, 32),)))
              for ways in (16, 32)]
    return [one for probe in probes for one in sampled(probe, Effort(1, 1 << 14, 1))]


def made_up(samples, threads, slack, wake, held_up=0):
    """What these samples would have taken threads."""
    found = []
    for free in FREE:
        for sample in samples:
            blocks = sample.exchange.target.blocks
            needed = sum(n * 1e-4 for n in handled(sample)[:-1]) / blocks
            wakes = wake * calls(sample.round, sample.flow) if sample.round else 0.0
            taken = block_seconds(threads, slack * free, needed, wakes) * blocks
            if len(found) < held_up:
                taken *= 20
            stage = Stage(taken, {"fft": 0.9 * taken}, 0.0,
                          {"fft": free * blocks, "round": taken, "begun": 0.0})
            found.append(replace(sample, stage=stage))
    return found


@pytest.mark.parametrize(("threads", "slack", "wake"), [
    (2, 1.1, 1e-4), (16, 1.3, 7e-5), (16, 1, 1e-6), (16, 8.0, 5e-5)])
@pytest.mark.parametrize("held_up", [0, 2])
def test_what_threads_wait_is_found(samples, threads, slack, wake, held_up):
    found = in_company(made_up(samples, threads, slack, wake, held_up), threads, PYTHON)
    near = 0.02 if held_up == 0 else 0.25
    assert found["slack"] == pytest.approx(slack, rel=near)
    assert found["wake"] == pytest.approx(wake, rel=4 * near, abs=1e-4 * near)


def test_one_thread_waits_for_nobody(samples):
    assert in_company(made_up(samples, 1, 1.5, 9e-4), 1, PYTHON) == {
        "slack": pytest.approx(1.5, rel=0.01), "wake": 0.0}


def test_without_samples_nothing_is_said():
    assert in_company([], 4, PYTHON) == {"slack": 1.0, "wake": 0.0}


def test_speeds_are_those_of_work_and_not_of_waiting(monkeypatch):
    """Threads that wait for the interpreter ten times as long as they work are not slower."""
    real = measured_stages

    def waiting(plan, threads, repeat):
        return [
            replace(stage, seconds=10 * stage.seconds,
                    parts={name: 10 * seconds for name, seconds in stage.parts.items()})
            for stage in real(plan, threads, 1)]

    monkeypatch.setattr(cpu, "measured_stages", waiting)
    monkeypatch.setattr(fft_libraries, "measured_stages", waiting)
    probe = Probe("fftn", (64, 4096), "c16", 0, 4, (((0, 64),), ((1, 4096),)), together=False)
    effort = Effort(2, 1 << 18, 1)
    first, _ = sampled(probe, effort)
    worked = first.stage.worked
    points = {}
    cpu._gathered(first, points, 2)
    (speed,) = points["straight"][first.row] if "straight" in points else points["copy"][0.0]
    assert speed == pytest.approx(first.exchange.nbytes / worked["gather"])
    assert first.stage.fft == worked["fft"]
    assert first.stage.fft < sum(first.stage.parts.values()) / 2
    assert len(effort.seen) == 2  # so that both tell how long threads wait


def test_what_a_library_s_own_threads_do_counts_by_the_clock(monkeypatch):
    """They have processors of their own, which nobody asks."""
    seconds = iter([4.0, 1.0])

    def taken(plan, threads, repeat):
        wall = next(seconds)
        return [Stage(wall, {"fft": wall}, wall, {"fft": 1.0})]

    monkeypatch.setattr(fft_libraries, "measured_stages", taken)
    found = fft_libraries._spare(
        fft_libraries.LibrarySpeeds("scipy", "complex128", *2 * [cpu.Curve(((1.0, 1e9),))]),
        1 << 12, Effort(4, 1 << 16, 1))
    assert found == 1.0


def test_python_s_seconds_are_the_less_of_what_two_clocks_say():
    early = Stage(2.0, {"fft": 1.5}, 2.0, {"fft": 1.5, "round": 2.2})  # had begun before the clock
    others = Stage(9.0, {"fft": 3.0}, 9.0, {"fft": 1.5, "round": 2.0})
    unknown = Stage(2.0, {"fft": 1.5}, 2.0)
    assert [stage.rest for stage in (early, others, unknown)] == [0.5, 0.5, 0.5]

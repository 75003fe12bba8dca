"""What the model prices, held against what can be worked out by hand."""

import json
import math
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.calibration.probes import Probe
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.planner.cost import forecast, fresh_seconds, joints_in, model_of, peak_host
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.machine import Machine
from dask_bigfft.planner.profile import Curve, DeviceProfile, LibrarySpeeds, Profile, constant
from dask_bigfft.planner.seconds import Model
from dask_bigfft.planner.thread_seconds import adrift
from dask_bigfft.planner.traffic import Traffic, calls, traffic
from dask_bigfft.planner.wording import human_seconds


def test_what_candidates_have_in_common_is_worked_out_once(monkeypatch):
    asked, plainly = [], Model._stage

    def noted(self, number, *what):
        asked.append(what)
        return plainly(self, number, *what)

    monkeypatch.setattr(Model, "_stage", noted)
    x = da.zeros((6, 8, 14), chunks=(3, 3, 4), dtype=complex)
    plan = dask_bigfft.plan(x, "fftn")
    assert len(asked) == len(set(asked)) > 100
    model = Model(plan.machine)
    numbers = [model.stage(n, plan.source, plan.rounds[0]).index for n in (1, 2, 1)]
    assert numbers == [1, 2, 1]


def repaired(threads, free, python):
    """Seconds of a block by the balance of a closed queue's states: machines and a repairman."""
    ratio = python / free
    states = [
        math.factorial(threads) / math.factorial(threads - k) * ratio**k
        for k in range(threads + 1)
    ]
    busy = 1 - states[0] / sum(states)
    return threads * python / busy


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("python", [0.01, 0.3, 1.0, 5.0])
def test_threads_wait_for_the_interpreter_as_machines_for_a_repairman(threads, python):
    found = block_seconds(threads, 1.0, python)
    assert found == pytest.approx(repaired(threads, 1.0, python))
    assert found >= max(1.0 + python, threads * python)


def balanced(threads, free, python, wakes):
    """The same by the flows between all states, which are in balance, solved as they stand."""
    flows = np.zeros((threads + 1, threads + 1))
    for needed in range(threads):
        slow = python + (wakes if needed else 0.0)
        flows[needed, needed + 1] = (threads - needed) / free
        flows[needed + 1, needed] = 1 / slow
    flows -= np.diag(flows.sum(axis=1))
    system = np.vstack([flows.T, np.ones(threads + 1)])
    states = np.linalg.lstsq(system, np.eye(threads + 2)[-1], rcond=None)[0]
    done = sum(states[needed + 1] * flows[needed + 1, needed] for needed in range(threads))
    return threads / done


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("python", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("wakes", [0.0, 0.6])
def test_the_interpreter_is_slower_while_threads_wait_for_it(threads, python, wakes):
    found = block_seconds(threads, 1.0, python, wakes)
    assert found == pytest.approx(balanced(threads, 1.0, python, wakes))
    if not wakes:
        assert found == pytest.approx(repaired(threads, 1.0, python))


def test_without_python_nobody_waits():
    assert block_seconds(64, 2.0, 0.0) == 2.0
    assert block_seconds(64, 0.0, 2.0) == 128.0
    assert block_seconds(64, 0.0, 2.0, wakes=4.0) == 384.0
    assert block_seconds(1, 0.0, 2.0, wakes=4.0) == 2.0


def test_many_threads_stay_finite():
    assert block_seconds(10_000, 1e-9, 1.0) == pytest.approx(10_000)
    assert block_seconds(256, 1e9, 1e-9, wakes=1e-9) == pytest.approx(1e9)


def test_threads_take_longer_than_they_have_a_processor():
    """Only for what they do: Python's seconds are those of the clock."""
    plan = planned((64, 1024), (16, 1024), QUICK, threads=1)
    work = sum(found.fft + found.gather for found in forecast(plan).rounds)
    assert seconds(plan, slack=1.25) - seconds(plan) == pytest.approx(work / 4)


def test_threads_are_woken_after_each_copy_and_fft():
    """But not one by itself; what Python does for a block at a stretch takes as long as ever."""
    python = replace(QUICK, lying_block=1e-3, block=1e-3)
    alone, four = (planned((64, 1024), (16, 1024), python, threads=n) for n in (1, 4))
    assert seconds(alone, wake=1e-3) == seconds(alone)
    woken = replace(four, machine=replace(four.machine, profile=replace(python, wake=1e-3)))
    first, second = forecast(woken).rounds  # which copies a block, or where it lies, and stores it
    assert (first.woken, second.woken) == pytest.approx((4 * 2e-3, 4 * 3e-3))
    assert seconds(woken) > seconds(four) + 3 * (2e-3 + 3e-3)
    assert seconds(four, lying_block=1e-3 + 3e-3, block=1e-3 + 2e-3) > seconds(woken)


@pytest.mark.parametrize(("read", "stored", "tiles", "expected"), [
    ("none", 0, 1, 1), ("block", 0, 1, 2), ("lying", 64, 5, 15)])
def test_a_thread_comes_back_from_what_is_copied_and_from_each_fft(read, stored, tiles, expected):
    round_ = planned((64, 1024), (16, 1024), QUICK).rounds[0]
    flow = Traffic(read, 64.0, False, stored, False, False, tiles, False)
    assert calls(round_, flow) == expected
    assert calls(replace(round_, steps=2 * round_.steps), flow) == expected + tiles


def planned(shape, chunks, profile, threads=2, **options):
    x = da.zeros(shape, chunks=chunks, dtype=complex)
    plan = dask_bigfft.plan(x, "fftn", kernel="scipy", device="cpu", **options)
    return replace(plan, machine=Machine(None, threads, profile=profile, shared=True))


def seconds(plan, **speeds):
    """Forecast of a plan where some speeds are others."""
    profile = replace(plan.machine.profile, **speeds)
    return forecast(replace(plan, machine=replace(plan.machine, profile=profile))).seconds


def library(**speeds):
    curve = Curve(((1.0, 1e9),))
    return LibrarySpeeds("scipy", "complex128", curve, curve, **speeds)


QUICK = Profile("no overheads", 2, start=0.0, task=0.0, exchange=0.0, shard=0.0, pair=0.0,
                libraries=(library(),))


def test_a_round_of_one_block_uses_all_threads():
    plan = planned((64, 1024), (64, 1024), QUICK, threads=4)
    fft = sum(found.fft for found in forecast(plan).rounds)
    shared = seconds(plan, libraries=(library(spare=1.0),))
    assert seconds(plan) - shared == pytest.approx(fft * 3 / 4)
    many = planned((64, 1024), (4, 1024), QUICK, threads=4)
    assert seconds(many) == seconds(many, libraries=(library(spare=1.0),))


def test_threads_share_the_memory_that_there_is():
    """Fewer of them are faster each, as far as one alone is, and none faster than all together."""
    four = replace(QUICK, threads=4)
    plan = planned((64, 1024), (16, 1024), four, threads=4)  # as many blocks as threads
    two, three = (planned((64, 1024), (rows, 1024), four, threads=4) for rows in (32, 22))

    def each(plan, alone, spare=0.0):
        fast = replace(plan.machine.profile, libraries=(library(alone=alone, spare=spare),))
        return sum(f.fft / f.blocks for f in plan.forecast(fast, threads=4).rounds)

    assert each(plan, 4.0) == each(plan, 1.0)
    assert each(two, 1.5) == pytest.approx(each(two, 1.0) / 1.5)
    assert each(two, 4.0) == pytest.approx(each(two, 1.0) / 2)
    assert each(two, 4.0, spare=1.0) == pytest.approx(each(two, 1.0) / 2)
    assert each(three, 4.0) == pytest.approx(each(three, 1.0) * 3 / 4)


def test_the_last_blocks_have_the_memory_for_themselves():
    """Six blocks on four threads: the last two are as fast as two threads are."""
    plan = planned((96, 1024), (16, 1024), replace(QUICK, threads=4), threads=4)
    fft = sum(found.fft for found in forecast(plan).rounds) / 6
    alone = seconds(plan, libraries=(library(alone=1.5),))
    assert seconds(plan) - alone == pytest.approx(fft * (1 - 1 / 1.5))


@pytest.mark.parametrize("mode", ["energy", "checksum"])
def test_what_is_verified_takes_longer(mode):
    plan = planned((256, 256), (128, 256), QUICK, verify=mode)
    nbytes = 2 * len(plan.rounds) * 16 * 256**2
    assert seconds(plan, **{mode: 1e9}) - seconds(plan) == pytest.approx(nbytes / 1e9 / 2)
    plain = planned((256, 256), (128, 256), QUICK)
    assert seconds(plain, **{mode: 1e9}) == seconds(plain)


@pytest.mark.parametrize(
    "arguments",
    [{"workers": 0}, {"workers": -3}, {"threads": 0}, {"threads": 1.5}, {"cards": -1}],
)
def test_another_machine_has_whole_numbers_of_things(arguments):
    plan = planned((64, 64), (16, 64), Profile())
    ((name, value),) = arguments.items()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{name}`={value}"):
        plan.forecast(Profile(), **arguments)
    with pytest.raises(ArgumentTypeError, match="`profile`"):
        plan.forecast("fast")
    assert plan.forecast(Profile(), workers=2, threads=1, cards=0).seconds > 0


def test_a_machine_like_this_one_has_the_same_forecast():
    plan = dask_bigfft.plan(da.zeros((512, 512), chunks=(64, 512)), "fft2", kernel="scipy")
    profile, machine = plan.machine.profile, plan.machine
    found = plan.forecast(profile, threads=machine.threads, cards=machine.cards)
    assert machine.shared
    assert found == plan.expected
    assert plan.forecast(profile, workers=2, threads=1).seconds != plan.expected.seconds


def test_lines_that_meet_in_a_cache_are_slow():
    powers = Curve(((1024.0, 1.5), (4096.0, 0.75)))
    found = library(elsewhere=True, powers=powers, powers_across=Curve(((1.0, 0.5),)))
    assert found.rate(1024, innermost=True) == 1.5e9
    assert found.rate(2048, innermost=True) == pytest.approx(1e9 * math.sqrt(1.5 * 0.75))
    assert found.rate(65536, innermost=True) == pytest.approx(0.75e9)
    assert found.rate(1000, innermost=True) == 1e9
    assert found.rate(1024, innermost=False) == 0.5e9  # in tiles
    assert found.rate(1000, innermost=False) == 1e9
    assert found.rate(1000, innermost=False, direct=True, step=8192) == 0.5e9
    assert found.rate(1024, innermost=False, direct=True, step=8000) == 1e9


def test_results_that_go_elsewhere_are_slow_and_short_lines_take_a_pass():
    found = LibrarySpeeds(
        "ducc0", "complex128", constant(1e9), constant(2e9), direct_across=constant(4e9),
        away_across=constant(3e9), direct_along=Curve(((36.0, 6e9), (72.0, 8e9))),
    )
    assert found.rate(100, innermost=False, direct=True) == 4e9
    assert found.rate(100, innermost=False, direct=True, away=True) == 3e9
    assert found.rate(100, innermost=True, direct=True, away=True) == 8e9  # as in its place
    seconds = [math.log2(n) / found.rate(n, innermost=True, direct=True) for n in (2, 6, 36)]
    assert seconds == pytest.approx([seconds[0]] * 3)  # for each number


def test_only_one_step_on_whole_blocks_goes_elsewhere():
    def flows(rounds, together=True):
        plan = Probe("fftn", (64, 48, 32), "c16", 0, 4, rounds, "ducc0", together).plan(2)
        joints = joints_in(plan)
        after = (*joints.exchanges, None)
        for number, round_ in enumerate(plan.rounds):
            writes = after[number + 1]
            writes = writes if writes is not None and writes.home == number + 1 else None
            inside = joints.inside[number] is not None
            near = plan.exchanges[number].source == round_.source
            flow = traffic(round_, 16, True, joints.exchanges[number], writes, inside, near)
            yield flow.direct, flow.away

    one, two, three = ((2, 32),), ((1, 48),), ((0, 64),)
    assert list(flows((one, two, three))) == [(True, True), (True, True), (True, False)]
    assert list(flows(((*one, *two), three))) == [(True, False), (True, False)]


def test_profiles_that_lack_a_number_are_not_read():
    content = json.loads(Profile().to_json())
    del content["profile"]["wake"]
    with pytest.raises(ValueError, match="wake"):
        Profile.from_json(json.dumps(content))


def test_a_first_run_waits_for_fresh_pages():
    plan = planned((1024, 1024), (64, 1024), replace(QUICK, touch=1e9))
    nbytes = peak_host(plan) - 16 * 1024**2
    assert fresh_seconds(plan) == pytest.approx(nbytes / 1e9)
    assert f"{human_seconds(nbytes / 1e9)} more, for fresh pages" in plan.explain()
    assert "first run" not in planned((1024, 1024), (64, 1024), Profile()).explain()


def test_a_first_run_on_a_card_waits_for_pinned_pages():
    x = da.zeros((256, 4096), chunks=(32, 4096), dtype=complex)
    plan = replace(dask_bigfft.plan(x, "fft", device="cpu", kernel="scipy"), device="gpu")
    slow, fast = DeviceProfile(pin=1e9), DeviceProfile(pin=4e9)
    profile = Profile("cards", 2, touch=1e10, devices=(slow, fast))
    two = replace(plan, machine=replace(plan.machine, profile=profile, cards=2))
    nbytes = peak_host(two) - 16 * 256 * 4096
    assert nbytes > 0
    assert fresh_seconds(two) == pytest.approx(nbytes / 1e9)
    alone = replace(two, machine=replace(two.machine, profile=replace(profile, devices=(fast,))))
    assert fresh_seconds(alone) == pytest.approx(nbytes / 4e9)
    nobody = replace(alone, device="cpu")
    assert fresh_seconds(nobody) == pytest.approx((peak_host(nobody) - 16 * 256 * 4096) / 1e10)


def test_later_tasks_wait_as_long_as_was_measured():
    """Also where they are handed out sooner in a graph than by themselves."""
    plan = planned((1024, 1024), (16, 1024), replace(QUICK, task=1e-5), threads=1)
    slow, usual, soon = (seconds(plan, waiting=waiting) for waiting in (2.0, 1.0, 0.5))
    assert slow - usual == pytest.approx(2 * (usual - soon))
    later = sum(found.blocks - 1 for found in forecast(plan).rounds)
    assert slow - usual == pytest.approx(1e-5 * later)


def handling(plan, **entries):
    profile = replace(QUICK, **entries)
    machine = replace(plan.machine, profile=profile)
    return [found.handling for found in forecast(replace(plan, machine=machine)).rounds]


def test_python_sees_to_blocks_by_how_they_are_read():
    columns = planned((256, 256), (32, 256), QUICK)  # rows lie whole, then columns are gathered
    gathered = replace(columns, machine=replace(columns.machine, shared=False))
    assert columns.notation == "{X} {Y}"
    assert handling(gathered, block=1.0, gathered_block=100.0, shard=1e4, tables=0.5)[:2] == [
        8.0, 8 * 100.0 + 64 * 1e4 + 0.5]
    assert handling(gathered, lying_block=1.0)[:2] == [0.0, 0.0]
    assert handling(columns, tables=1.0)[0] == 0.0
    lying = replace(columns, machine=replace(columns.machine, shared=True))
    assert handling(lying, block=1.0, gathered_block=100.0, lying_block=7.0, shard=1e4)[:2] == [
        8.0, 8 * 7.0]


def test_copies_take_longer_in_company_and_ffts_do_not():
    plan = planned((256, 256), (128, 256), QUICK)
    copies = sum(found.gather for found in forecast(plan).rounds)
    assert copies > 0
    assert seconds(plan, company=2.0) - seconds(plan) == pytest.approx(copies / 2)


def test_tasks_are_put_in_order_before_the_first_runs():
    plan = planned((256, 256), (64, 256), QUICK)
    tasks = sum(e.shape.blocks_out + (0 if e.local else e.shape.groups) for e in plan.exchanges)
    assert tasks > 8
    assert seconds(plan, planned=1e-3) - seconds(plan) == pytest.approx(1e-3 * tasks)
    many = replace(plan, machine=replace(plan.machine, workers=2, shared=False))
    assert seconds(many, planned=1e-3) == seconds(many)  # its scheduler does that


def test_threads_wait_for_the_last_of_long_blocks():
    plan = planned((256, 256), (128, 256), QUICK)
    blocks = sum((f.gather + f.fft) / f.blocks for f in forecast(plan).rounds)
    assert seconds(plan, uneven=0.5) - seconds(plan) == pytest.approx(blocks / 2)
    several = planned((256, 256), (16, 256), QUICK)  # as chance has it, whatever one block does
    assert seconds(several, uneven=0.5) == seconds(several)
    found = [model_of(several).side_by_side(blocks, 0.0, 1.0, 0.0) for blocks in (8, 9)]
    assert found == pytest.approx([4 + 1 / 6, 5])  # whoever is ready first takes the ninth
    alone = planned((256, 256), (128, 256), QUICK, threads=1)
    assert seconds(alone, uneven=0.5) == seconds(alone)


def test_lanes_that_do_not_keep_step_end_at_any_time():
    rng = np.random.default_rng(5)
    for lanes in (1, 2, 5, 16):
        ends = rng.random((20_000, lanes))
        waited = (ends.max(axis=1) - ends.mean(axis=1)).mean()
        assert adrift(lanes) == pytest.approx(waited, abs=5e-3)


def test_blocks_that_lie_where_they_should_be_are_brief_tasks():
    plan = planned((1 << 16,), (1 << 12,), QUICK)
    plan = replace(plan, machine=replace(plan.machine, shared=True))
    assert joints_in(plan).exchanges[-1] is not None
    assert len(forecast(plan).rounds) == len(plan.rounds) + 1
    blocks = plan.result.blocks
    assert seconds(plan, brief=1e-3) - seconds(plan, brief=0.0) == pytest.approx(1e-3 * blocks)
    before = sum(e.shape.blocks_out + e.shape.groups for e in plan.exchanges[:-1])
    assert seconds(plan, planned=1e-3) - seconds(plan) == pytest.approx(1e-3 * before)


def test_only_the_first_fft_of_a_tile_reads_memory():
    """The others find in a cache what it has left, unless the block is no tile."""
    ducc = LibrarySpeeds(
        "ducc0", "complex128", constant(4e9), constant(3e9), elsewhere=True,
        direct_along=constant(2e9), direct_across=constant(1e9))

    def ffts(shape, rounds, along=4e9):
        found = replace(ducc, along=constant(along))
        plan = Probe("fftn", shape, "c16", 0, 4, rounds, "ducc0").plan(2)
        machine = replace(plan.machine, profile=replace(QUICK, libraries=(found,)))
        return forecast(replace(plan, machine=machine)).rounds[0].fft

    def count(shape, axis):
        return 5 * math.prod(shape) * math.log2(shape[axis])

    one, two, three = ((2, 32),), ((1, 48),), ((0, 64),)
    shape = (64, 48, 32)  # planes are tiles
    expected = count(shape, 1) / 1e9 + count(shape, 2) / 4e9
    assert ffts(shape, ((*two, *one), three)) == pytest.approx(expected)
    expected = count(shape, 1) / 1e9 + count(shape, 2) / 2e9  # no slower than from memory
    assert ffts(shape, ((*two, *one), three), along=1e9) == pytest.approx(expected)
    wide = (8, 1024, 512)  # planes are more than a tile
    uncut = ((1, 1024), (2, 512)), ((0, 8),)
    expected = count(wide, 1) / 1e9 + count(wide, 2) / 2e9
    assert ffts(wide, uncut) == pytest.approx(expected)


def test_waiting_is_for_the_next_task_and_not_for_what_python_does_itself():
    plan = dask_bigfft.plan(da.zeros((64, 64), chunks=(4, 64)), "fft", kernel="scipy")
    assert seconds(plan, block=1e-2, task=0.0, waiting=3.0) == seconds(plan, block=1e-2, task=0.0)
    assert seconds(plan, task=1e-2, waiting=3.0) > 2 * seconds(plan, task=1e-2)


def test_a_card_has_no_tiles_of_the_cpu():
    x = da.zeros((2**16, 64), chunks=(2**14, 64), dtype=complex)
    plan = replace(dask_bigfft.plan(x, "fft", device="cpu", kernel="scipy"), device="gpu")
    usual, dear = (
        plan.forecast(profile, threads=2, cards=1).seconds
        for profile in (Profile(), replace(Profile(), tile=10.0))
    )
    assert dear == usual

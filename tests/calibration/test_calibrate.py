"""Calibration at tiny sizes: what is measured, where it is kept, and what plans make of it."""

import itertools
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft import calibration, kept
from dask_bigfft.calibration import cpu, system
from dask_bigfft.calibration.cpu import (
    HANDLED,
    Effort,
    gather_speeds,
    handled,
    measured,
    sampled,
)
from dask_bigfft.calibration.fft_libraries import library_like, library_speeds
from dask_bigfft.calibration.probes import Probe, Stage
from dask_bigfft.calibration.system import (
    disk_speeds,
    outside,
    page_speed,
    scheduling_costs,
)
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.events import emit
from dask_bigfft.planner.profile import DEFAULT, LibrarySpeeds, Profile, constant
from dask_bigfft.planner.wording import speed_rows
from dask_bigfft.planning import profiles
from dask_bigfft.testing.devices import simulated_devices

TINY = Effort(2, 1 << 18, 1)
COSTS = {"start": 1e-3, "task": 1e-4, "exchange": 0.0, "pair": 0.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "_read", {})
    monkeypatch.setattr("dask_bigfft.calibration.scheduling_costs", lambda *args: COSTS)
    monkeypatch.setattr("dask_bigfft.calibration.usable", lambda: ["scipy"])
    between = {"company": 1.25, "waiting": 2.0}
    monkeypatch.setattr("dask_bigfft.calibration.between_blocks", lambda *args: between)
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield tmp_path


def machine():
    x = da.zeros((64, 64), chunks=16, dtype=complex)
    return dask_bigfft.plan(x, "fft2").machine


def test_a_probe_is_measured_stage_by_stage():
    probe = Probe("fftn", (4096,), "c16", 0, 4, (((0, 64),), ((0, 64),)), together=False)
    plan, stages = measured(probe, TINY)
    assert len(stages) == len(plan.exchanges) == 3
    for stage in stages:
        assert 0 < stage.gather <= stage.seconds
    assert stages[0].parts["twiddle"] > 0
    assert "fft" in stages[1].parts
    assert "fft" not in stages[2].parts


@pytest.mark.parametrize("kernel", ["scipy", "ducc0"])
@pytest.mark.parametrize(
    ("kind", "shape", "rounds"),
    [
        ("fftn", (48, 640), (((1, 640),), ((0, 48),))),
        ("fftn", (48, 640), (((0, 48),), ((1, 640),))),
        ("fftn", (96, 640), (((0, 24),), ((0, 4), (1, 640)))),
        ("fftn", (24576,), (((0, 128),), ((0, 192),))),
        ("fftn", (24, 30, 36), (((1, 30), (2, 36)), ((0, 24),))),
        ("rfftn", (24, 30, 36), (((1, 30), (2, 36)), ((0, 24),))),
        ("fftn", (24, 30, 36), (((0, 24), (2, 36)), ((1, 30),))),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_what_is_copied_is_what_the_model_says(kernel, kind, shape, rounds, together):
    pytest.importorskip(kernel)
    probe = Probe(kind, shape, "c16", 0, 4, rounds, kernel, together)
    for sample in sampled(probe, TINY):
        if sample.flow is None:
            continue
        assert bool(sample.stage.gather) == (sample.flow.read != "none")
        answered = kernel == "ducc0" and not sample.stage.stored  # by the library, in its place
        assert bool(sample.stage.stored) == bool(sample.flow.stored) or answered


def test_gathers_have_both_directions_and_widths():
    found = gather_speeds(TINY)
    assert len(found["straight"].points) > 1
    assert found["turned"].points
    assert found["copy"] > 0
    assert 0 <= found["shard"] < 1e-2
    assert sum(found[name] for name in HANDLED) > 1e-6  # a busy machine tells them apart badly
    assert found["lying"].points
    assert found["stored"].points
    assert found["narrow_turned"] > 0
    assert found["alone"] >= 1


def test_checks_are_the_least_of_what_they_add(monkeypatch):
    noise = itertools.cycle([0.3, 0.0, 0.1, 0.2])  # each of the three meets all of them

    def measured(probe, effort):
        seconds = {"none": 1.0, "energy": 1.25, "checksum": 0.9}[probe.verify] + next(noise)
        return None, [Stage(seconds / 2, {}, 0.0)] * 2

    monkeypatch.setattr(cpu, "measured", measured)
    found = cpu.checking_speeds(Effort(2, 1 << 20, 4))
    nbytes = 2 * 2 * (1 << 20)  # of two rounds, what comes in and what goes out
    assert found["energy"] == pytest.approx(nbytes / 0.25)
    assert found["checksum"] == pytest.approx(nbytes / cpu.FAINT)


@pytest.mark.parametrize("late", [False, True])
def test_checks_are_measured_while_there_is_time(monkeypatch, late):
    found = {"energy": 5e9, "checksum": 4e9}
    monkeypatch.setattr(calibration, "CHECKS", 0.0 if late else 1e9)
    monkeypatch.setattr(calibration, "checking_speeds", lambda effort: found)
    monkeypatch.setattr(calibration, "library_speeds", lambda name, dtype, effort: LibrarySpeeds(
        name, dtype, constant(1e9), constant(1e9)))
    monkeypatch.setattr(calibration, "scheduling_costs", lambda *args: COSTS)
    monkeypatch.setattr(calibration, "between_blocks", lambda *args: {})
    profile = calibration.measure(TINY, None, ["scipy"])
    guessed = {"energy": 8 * profile.copy, "checksum": 2 * profile.copy}
    assert {name: getattr(profile, name) for name in found} == (guessed if late else found)


def test_a_cluster_without_workers_is_refused():
    class Empty:
        asynchronous = False

        def scheduler_info(self, n_workers=-1):
            return {"workers": {}}

    with pytest.raises(ArgumentError, match=r"`client`=.*has workers"):
        calibration.calibrate(Empty())


def test_late_measurements_are_single(monkeypatch):
    passes = []
    real = cpu.measured_stages

    def watched(plan, threads, repeat):
        passes.append(repeat)
        return real(plan, threads, 1)

    monkeypatch.setattr(cpu, "measured_stages", watched)
    (probe, *_) = cpu._planes(1 << 14)
    in_time = Effort(2, 1 << 18, 5, until=time.perf_counter() + 60)
    for effort in (in_time, replace(in_time, until=time.perf_counter())):
        cpu.measured(probe, effort)
    assert passes == [5, 1]


def test_a_library_in_both_directions():
    found = library_speeds("scipy", "complex64", TINY)
    assert found.name == "scipy"
    assert found.dtype == "complex64"
    assert len(found.along.points) > 1
    assert len(found.across.points) > 1
    assert all(1e5 < rate < 1e13 for _, rate in found.along.points + found.across.points)
    assert not found.elsewhere


def test_scheduling_costs_are_of_the_right_size():
    found = scheduling_costs(1)
    assert set(found) == {"start", "task", "exchange", "pair", "packed"}
    assert 1e-5 < found["task"] < 0.1
    assert all(0 <= seconds < 1 for seconds in found.values())


def test_one_sample_tells_how_fast_a_library_is_in_another_dtype():
    known = library_speeds("scipy", "complex128", TINY)
    found = library_like(known, "complex64", TINY)
    assert (found.name, found.dtype) == ("scipy", "complex64")
    pairs = zip(found.along.points, known.along.points, strict=True)
    times = [after / before for (_, after), (_, before) in pairs]
    assert times == pytest.approx([times[0]] * len(times))
    assert times[0] != 1.0
    assert found.across.points[0][1] == pytest.approx(times[0] * known.across.points[0][1])
    assert (found.powers, found.whole, found.spare) == (known.powers, known.whole, known.spare)


def test_what_is_late_is_measured_on_little_and_nothing_is_left_out(monkeypatch, tmp_path):
    asked = []

    def speeds(name, dtype, effort):
        asked.append((name, dtype, effort.nbytes))
        return library_speeds(name, dtype, TINY)

    monkeypatch.setattr(calibration, "fastest_library", lambda dtype, among: "ducc0")
    monkeypatch.setattr(calibration, "ENOUGH", 0.0)
    monkeypatch.setattr(calibration, "USUAL_NBYTES", TINY.nbytes // 2)
    monkeypatch.setattr(calibration, "library_speeds", speeds)
    monkeypatch.setattr(calibration, "scheduling_costs", lambda *args: COSTS)
    monkeypatch.setattr(calibration, "between_blocks", lambda *args: {})
    profile = calibration.measure(TINY, str(tmp_path), ["scipy", "ducc0"])
    assert [(one.name, one.dtype) for one in profile.libraries] == [
        (name, dtype) for dtype in calibration.DTYPES for name in ("ducc0", "scipy")]
    assert asked == [  # the fastest one as it should be, and the rest by a sample of these
        ("ducc0", "complex128", TINY.nbytes), ("scipy", "complex128", TINY.nbytes // 2)]


@pytest.mark.parametrize(("whole", "run"), [(0.0, ["ducc0"]), (1e9, ["ducc0", "scipy"])])
def test_where_it_is_late_whole_transforms_are_of_one_library(monkeypatch, whole, run):
    asked = []

    def between(profile, nbytes, repeat, kernels, until):
        asked.append(kernels)
        return {}

    monkeypatch.setattr(calibration, "fastest_library", lambda dtype, among: "ducc0")
    monkeypatch.setattr(calibration, "ENOUGH", 0.0)
    monkeypatch.setattr(calibration, "WHOLE", whole)
    monkeypatch.setattr(calibration, "USUAL_NBYTES", TINY.nbytes)
    monkeypatch.setattr(calibration, "scheduling_costs", lambda *args: COSTS)
    monkeypatch.setattr(calibration, "between_blocks", between)
    calibration.measure(TINY, None, ["scipy", "ducc0"])
    assert asked == [run]


def test_many_threads_work_on_more_than_caches_hold():
    assert calibration.usual_nbytes(1) == calibration.usual_nbytes(2) == 32 << 20
    assert calibration.usual_nbytes(8) == 64 << 20
    assert calibration.usual_nbytes(16) == calibration.usual_nbytes(64) == 128 << 20
    assert calibration.usual_nbytes(128) == 256 << 20
    assert calibration.usual_nbytes(1000) == 1 << 30


def test_whole_transforms_of_many_threads_fit_into_the_machine(monkeypatch, tmp_path):
    asked = []

    def measured(effort, folder):
        asked.append(effort.nbytes)
        return Profile()

    monkeypatch.setattr(calibration, "measure", measured)
    for memory in (256 << 30, 4 << 30, 1 << 18):
        monkeypatch.setattr(calibration, "machine_nbytes", lambda memory=memory: memory)
        with dask.config.set(num_workers=256):
            calibration.calibrate(path=tmp_path / "mine.json")
    assert asked == [512 << 20, 128 << 20, calibration.LEAST_NBYTES]


class Reporting:
    """What looks like an array of one block that takes so long, and says another number."""

    def __init__(self, taken, said):
        self.taken, self.said = taken, said

    def persist(self):
        time.sleep(self.taken)
        emit("round", nbytes=1, seconds=self.said)
        emit("fft", nbytes=1, seconds=self.said)  # is a part of the round
        return []


def test_what_threads_report_is_not_the_graph_s():
    assert outside(Reporting(0.02, 0.0), 2) >= 0.02
    assert outside(Reporting(0.02, 1.0), 2) == 0.0
    assert outside(Reporting(0.02, 0.0195), 2) >= 0.0005


def test_python_s_part_in_blocks_is_found_again(monkeypatch):
    known = {"block": 2e-5, "gathered_block": 4e-4, "lying_block": 6e-5, "shard": 5e-6,
             "tile": 3e-5, "tables": 1e-3}
    seen = []

    def as_known(probe, effort):
        assert effort.threads == 1
        for sample in sampled(probe, replace(effort, repeat=1)):
            counts = handled(sample)[:-1]
            seen.append(counts)
            rest = sum(n * known[name] for n, name in zip(counts, HANDLED, strict=True))
            stage = replace(sample.stage, seconds=rest, parts={}, worked={})
            yield replace(sample, stage=stage)

    monkeypatch.setattr(cpu, "sampled", as_known)
    found = cpu._handling(Effort(2, 32 << 20, 1))  # blocks of several tiles
    assert found == pytest.approx(known, rel=1e-6)
    kinds = [sum(bool(counts[i]) for counts in seen) for i in range(len(HANDLED))]
    assert min(kinds) > 1  # each is told by more than one probe
    assert all(sum(map(bool, counts[:3])) == 1 for counts in seen)


def test_the_disk_is_left_as_it_was(tmp_path):
    found = disk_speeds(tmp_path / "new", 1 << 20)
    assert found["write"] > 1e5
    assert found["read"] > 1e5
    assert not list((tmp_path / "new").iterdir())


def test_plans_use_what_was_measured(folder):
    assert machine().profile == DEFAULT
    found = dask_bigfft.calibrate(nbytes=1 << 14, repeat=1)
    assert machine().profile == found
    assert found.threads >= 1
    assert {library.name for library in found.libraries} >= {"scipy"}
    assert "profile.json" in {path.name for path in folder.iterdir()}
    again = dask_bigfft.Plan.from_json(
        dask_bigfft.plan(da.zeros(64, chunks=8), "fft").to_json()
    )
    assert again.machine.profile == found


def test_devices_are_measured_where_there_are_some(folder, monkeypatch):
    monkeypatch.setattr("dask_bigfft.calibration.library_speeds", lambda *args: 1 / 0)
    monkeypatch.setattr("dask_bigfft.calibration.usable", list)
    with simulated_devices(1 << 22, count=2):
        found = dask_bigfft.calibrate(nbytes=1 << 14, repeat=1)
    assert [device.nbytes for device in found.devices] == [1 << 22] * 2
    assert found.devices[0].h2d == pytest.approx(5e10, rel=0.9)
    assert 0 < found.together <= 1


def write(path, **entries):
    profiles.save_profile(Profile(task=1.25), path)
    content = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(content))


def test_a_profile_named_by_the_settings_holds_anywhere(folder, tmp_path):
    write(tmp_path / "other.json", machine=["another", "machine", 1024])
    with dask.config.set({"bigfft.planner.profile": str(tmp_path / "other.json")}):
        assert machine().profile.task == 1.25
    assert machine().profile == DEFAULT


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"schema": 1, "profile"', "damaged"),
        ("[]", "damaged"),
        (None, "another machine"),
        ('{"schema": 5, "machine": 0}', "another machine"),
        ('{"schema": 4, "machine": 0}', ""),
        ('{"schema": 99}', ""),
    ],
)
def test_what_is_damaged_or_foreign_is_reported_and_ignored(folder, caplog, content, text):
    path = profiles.profile_path()
    if content is None:
        write(path, machine=["another", "machine", 1024])
    else:
        path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert machine().profile == DEFAULT
        assert machine().profile == DEFAULT
    assert len(caplog.records) == bool(text)  # once for each file
    assert text in caplog.text


def test_a_named_file_that_is_not_there_is_reported(folder, caplog, tmp_path):
    with dask.config.set({"bigfft.planner.profile": str(tmp_path / "none.json")}):
        assert machine().profile == DEFAULT
    assert "does not exist" in caplog.text


@pytest.mark.parametrize("content", ["{", '{"schema": 3, "machine": 0}'])
def test_a_named_file_that_cannot_be_used_is_reported_once(folder, caplog, tmp_path, content):
    path = tmp_path / "old.json"
    path.write_text(content)
    with dask.config.set({"bigfft.planner.profile": str(path)}):
        assert machine().profile == machine().profile == DEFAULT
    assert caplog.text.count("old.json cannot be used") == 1


def test_a_better_file_is_read_when_it_comes(folder):
    path = profiles.profile_path()
    path.write_text("{")
    assert machine().profile == DEFAULT
    write(path, machine=kept.machine())
    assert machine().profile.task == 1.25


def test_bad_arguments(folder, tmp_path):
    with pytest.raises(TypeError, match="client"):
        dask_bigfft.calibrate("tcp://127.0.0.1:1")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    folder, tmp_path, monkeypatch, capsys
):
    """Like the place of a result: a folder that is not there may be a slip of the pen."""
    monkeypatch.setattr(calibration, "measure", None)
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    for path in ("file/p.json", "none/p.json", tmp_path / "none" / "deep" / "p.json"):
        with pytest.raises(ArgumentError, match=r"`path`=.*in a folder that exists, which .* is n"):
            dask_bigfft.calibrate(path=path)
    with pytest.raises(ArgumentError, match=r"`path`=.*a file that can be written"):
        dask_bigfft.calibrate(path=tmp_path)
    with pytest.raises(ArgumentError, match=r"`path`='a\\x00b' .* without null bytes"):
        dask_bigfft.calibrate(path="a\0b")
    with pytest.raises(ArgumentTypeError, match=r"`path`=3 .* need the path of a file"):
        dask_bigfft.calibrate(path=3)
    assert main(["calibrate", "--output", "none/p.json"]) == 2
    assert "`--output`='none/p.json'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*") if path != folder) == ["file"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [({"nbytes": 0}, ArgumentError), ({"nbytes": -5}, ArgumentError),
     ({"repeat": 0}, ArgumentError), ({"nbytes": "1 MiB"}, ArgumentTypeError),
     ({"nbytes": 1e6}, ArgumentTypeError), ({"repeat": True}, ArgumentTypeError),
     ({"repeat": None}, ArgumentTypeError)],
)
def test_numbers_are_refused_by_name_before_anything_is_measured(monkeypatch, arguments, kind):
    monkeypatch.setattr(calibration, "measure", None)
    ((name, value),) = arguments.items()
    with pytest.raises(kind, match=f"`{name}`={value!r} is not allowed: need an integer of at"):
        dask_bigfft.calibrate(**arguments)


def test_command_line(folder, capsys, monkeypatch):
    asked = []

    def quick(client, path):
        asked.append((client, path))
        return DEFAULT

    monkeypatch.setattr("dask_bigfft.calibration.calibrate", quick)
    assert main(["calibrate", "--output", str(folder / "p.json")]) == 0
    assert asked == [(None, folder / "p.json")]
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  copies, a thread  ") for line in lines)
    assert any(line.startswith("  a graph, task, gather, shard  ") for line in lines)
    assert "  order, 10^6 pairs of blocks   25.0 ms" in lines
    assert not any("between workers" in line for line in lines)
    there = speed_rows(replace(DEFAULT, network=2e9))
    assert ("between workers", "2 GB/s, a shard 100 us") in there


def test_a_pool_that_others_have_set_does_not_measure(folder, monkeypatch):
    seen = []

    def measure(effort, folder):
        seen.append(dask.config.get("pool"))
        return Profile("one", 2)

    monkeypatch.setattr(calibration, "measure", measure)
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool):
        dask_bigfft.calibrate(path=folder / "speeds.json")
    assert seen == [None]  # so that what is measured with one thread is


def test_memory_that_a_machine_has_to_be_given_first_does_not_count(monkeypatch):
    seconds = iter((0.2, 0.0))
    monkeypatch.setattr(system, "touch", lambda *arguments: time.sleep(next(seconds)))
    assert page_speed(2, 1 << 20) > (1 << 20) / 0.1

"""Runs that are killed go on where they stopped, to the bit; others than the same are refused."""

import errno
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import (
    ASKED,
    BLOCK,
    NBYTES,
    N,
    again,
    close,
    command,
    complex_values,
    contents,
    done_so_far,
    files,
    stored,
    values_of,
)
from support import heard, local

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, PlanError
from dask_bigfft.exchange import folders
from dask_bigfft.runs import RunRequest, execute, resumable, run_json
from dask_bigfft.testing import dying_runs
from dask_bigfft.testing.clusters import started
from dask_bigfft.testing.devices import simulated_devices

zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")


def test_neighbours_that_become_larger_blocks_are_resumed_to_the_bit(source_folder, kill, counted):
    """Blocks of 512 bytes, eight of which are written together in pieces of 256 bytes."""
    settings = {"bigfft.scratch.min-write": 256}
    stored("tiny.zarr", complex_values(N), (32,))
    requested = {"kind": "fft", "block_size": 512, "resume": True}
    with dask.config.set(settings):
        whole = dask_bigfft.run("tiny.zarr", "whole.zarr", scratch="whole", **requested).plan
    assert whole.source.blocks == 16
    assert len(whole.chunks_in[0]) == 128
    wanted = np.fft.fft(zarr.open_array("tiny.zarr")[...])
    assert close("whole.zarr", wanted)
    kill(200, source="tiny.zarr", settings=settings, **requested)
    written = done_so_far()[0]
    assert 0 < written < 16
    counted.clear()
    dask_bigfft.run("tiny.zarr", "out.zarr", scratch="scratch", **requested)  # the plan is pinned
    assert counted["source_read bytes"] == (16 - written) * 8 * 512
    assert files("out.zarr") == files("whole.zarr")


def test_blocks_that_nobody_has_sized_fit_into_memory(source_folder, monkeypatch):
    """Of the size that is taken unasked no two would."""
    monkeypatch.setattr("dask_bigfft.storage.sources.SMALLEST", 512)
    limit = {"kind": "fft", "memory_limit": "24 kiB"}
    with dask.config.set({"bigfft.exchange.carrier": "disk", "bigfft.scratch.min-write": 0}):
        with pytest.raises(PlanError):
            dask_bigfft.run("in.zarr", "refused.zarr", block_size=2 * NBYTES, **limit)
        plan = dask_bigfft.run("in.zarr", "out.zarr", **limit).plan
    assert plan.expected.peak_host <= 24 << 10
    wanted = np.fft.fft(zarr.open_array("in.zarr")[...])
    assert close("out.zarr", wanted)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_killed_again_and_again_is_the_same_to_the_bit(
    source_folder,
    kill,
    undisturbed,
    counted,
    threads,
):
    """Every life ends some events later; the last one only does what is left."""
    before = [0] * 4
    for after in (20, 260, 260, 130):
        kill(after, threads=threads, resume=True)
        counts = done_so_far()
        assert all(a <= b for a, b in zip(before, counts, strict=True))
        assert not Path("out.zarr").exists()
        before = counts
    assert 16 < sum(before) < 64
    counted.clear()
    again()
    left = [16 - n for n in before]
    assert counted["source_read bytes"] == left[0] * NBYTES
    assert counted["round"] == left[1] + left[2]
    assert counted["unpack"] == counted["sink_write"] == left[3]
    assert counted["scratch_write bytes"] == sum(left[:3]) * NBYTES
    assert files("out.zarr") == undisturbed
    assert sorted(p.name for p in source_folder.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


@pytest.mark.parametrize("rounds", [[16, -1], [-1, 16]])
def test_a_run_without_files_at_its_ends(
    source_folder,
    kill,
    counted,
    rounds,
):
    """Rows of the source are read where they lie; a block of the last round is many chunks."""
    values = zarr.open_array("in.zarr")[...]
    shutil.rmtree("in.zarr")
    stored("in.zarr", values, (BLOCK,), compressors=None if rounds[0] == 16 else "auto")
    requested = {**ASKED, "rounds": rounds}
    row = {"bigfft.scratch.row-size": "256 B"}
    with dask.config.set(row):
        dask_bigfft.run("in.zarr", "whole.zarr", **requested, scratch="whole")
    for after in (60, 250):
        kill(after, **requested, resume=True, settings=row)
    assert any(done_so_far()[:3])
    counted.clear()
    with dask.config.set(row):
        report = dask_bigfft.run("in.zarr", "out.zarr", **requested, scratch="scratch", resume=True)
    assert len(report.plan.travelling) == 2
    assert counted["source_read bytes"] < values.nbytes
    assert files("out.zarr") == files("whole.zarr")
    assert sorted(p.name for p in source_folder.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


@pytest.mark.parametrize(
    "place",
    [
        "dask_bigfft.runs.resumable.source_identity",
        "dask_bigfft.storage.targets.created",
        "dask_bigfft.storage.targets:Target.finish",
        "dask_bigfft.runs.run_json.clear",
        "shutil.rmtree",
    ],
)
def test_killed_at_the_beginning_and_at_the_end(
    source_folder,
    kill,
    undisturbed,
    place,
):
    kill(place)
    again()
    assert files("out.zarr") == undisturbed
    assert sorted(p.name for p in source_folder.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


def test_from_the_command_line(
    source_folder,
    kill,
    undisturbed,
    counted,
    capsys,
):
    """A run that Python has begun is gone on with by the same words, with the same bytes."""
    kill(260)
    assert main(command("")) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(command("--resume", size="8KiB")) == 2
    assert "--block-size" in capsys.readouterr().err
    left = 16 - done_so_far()[0]
    counted.clear()
    assert main(command("--resume --scheduler sync", size=f"{NBYTES // 1024}KiB")) == 0
    assert counted["source_read bytes"] == left * NBYTES
    assert files("out.zarr") == undisturbed


def test_halves_of_chunks_do_not_stay(source_folder, kill, undisturbed):
    """Zarr writes a chunk beside its place; a process that is killed then leaves it there."""
    kill(1080)
    assert 0 < done_so_far()[3] < 16
    (partial,) = source_folder.glob("out.zarr.partial-*")
    (partial / "c/3.0123456789abcdef.partial").write_bytes(b"half")
    again()
    assert files("out.zarr") == undisturbed


# --- what is refused ------------------------------------------------------------------------


#: What differs from the run that was begun, and the argument that is named.
OTHERS = [
    ({"norm": "ortho"}, "norm"),
    ({"kind": "ifft"}, "kind"),
    ({"n": 100}, "n"),
    ({"order": "transposed"}, "order"),
    ({"chunks": 64}, "chunks"),
    ({"block_size": 2 * NBYTES}, "block_size"),
    ({"memory_limit": "1 GiB"}, "memory_limit"),
    ({"missing_chunks": "fill"}, "missing_chunks"),
    ({"missing": 0}, "missing"),
]


def test_what_differs_from_the_run_that_was_begun_is_refused_by_name(begun, monkeypatch):
    """Arguments, files and libraries; a refusal changes nothing, so one run serves for all."""
    before = contents("scratch")
    for options, name in OTHERS:
        with pytest.raises(ArgumentError, match=rf"`{name}`="):
            again(**options)
    with pytest.raises(ArgumentError, match="destination"):
        dask_bigfft.run("in.zarr", "other.zarr", **ASKED, scratch="scratch", resume=True)
    with pytest.raises(ArgumentError, match="`checksum`=True"):
        again(checksum=True)
    shutil.copytree("in.zarr", "copy.zarr")
    with pytest.raises(ArgumentError, match=r"`source`=.*in\.zarr, which the scratch folder is of"):
        dask_bigfft.run("copy.zarr", "out.zarr", **ASKED, scratch="scratch", resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(run_json, "version_of", lambda name: "0.0")
        with pytest.raises(ArgumentError, match=r"numba .*same result to the bit; this is 0\.0"):
            again()
    assert contents("scratch") == before


def test_a_result_that_is_gone_is_not_begun_anew_in_silence(source_folder, kill):
    """What is recorded as stored would be missing in it."""
    kill("dask_bigfft.storage.targets:Target.finish")
    assert done_so_far()[-1]
    (partial,) = Path().glob("out.zarr.partial-*")
    shutil.rmtree(partial)
    with pytest.raises(ArgumentError, match=r"`scratch`='.*scratch'"):
        again()


@pytest.mark.parametrize(("name", "value"), [("verify", "energy"), ("memory_limit", 2**40)])
def test_settings_are_what_keywords_that_are_left_out_say(begun, name, value):
    """A run that began with others is not gone on with, and one that names them is the same."""
    setting = {f"bigfft.{name.replace('_', '-')}": value}
    with dask.config.set(setting), pytest.raises(ArgumentError, match=rf"`{name}`={value!r} "):
        again()
    with dask.config.set(setting):
        dask_bigfft.run("in.zarr", "two.zarr", **ASKED, scratch="two")
        report = dask_bigfft.run("in.zarr", "two.zarr", **ASKED, scratch="two", resume=True)
        assert report.already
    options = {**ASKED, name: value}
    assert dask_bigfft.run("in.zarr", "two.zarr", **options, scratch="two", resume=True).already
    with pytest.raises(ArgumentError, match="made with other arguments"):
        dask_bigfft.run("in.zarr", "two.zarr", **ASKED, scratch="two", resume=True)


def test_a_changed_source_is_refused_and_the_chunk_named(begun):
    extra = Path("in.zarr/c/99")
    extra.write_bytes(b"x")
    with pytest.raises(ArgumentError, match=rf"{extra} is new"):
        again()
    extra.unlink()
    text = Path("in.zarr/zarr.json")
    before = text.read_text()
    times = text.stat()
    text.write_text(before + " ")
    with pytest.raises(ArgumentError, match=rf"{text} has changed"):
        again()
    text.write_text(before)
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
    chunk = Path("in.zarr/c/3")
    os.utime(chunk, ns=(0, 0))
    with pytest.raises(ArgumentError, match=rf"{chunk} has changed"):
        again()
    chunk.unlink()
    with pytest.raises(ArgumentError, match=rf"{chunk} is gone"):
        again()


def test_scratch_folders_of_others_are_refused(source_folder):
    Path("full").mkdir()
    Path("full/photo").write_text("x")
    Path("full/result").mkdir()
    Path("full/result/dear.txt").write_text("y")
    with pytest.raises(ArgumentError, match=r"this one holds (photo|result)"):
        again("full")
    Path("odd").mkdir()
    for text in (b"[1]", b"{}", b"\xff", b'{"format": 1}', b'{"format": 2}'):
        Path("odd/run.json").write_bytes(text)
        with pytest.raises(ArgumentError, match=r"`scratch`='.*odd'.*run\.json cannot be read"):
            again("odd")
    with pytest.raises(ArgumentError, match="norm"):
        again("fresh", norm="loud")
    assert not Path("fresh").exists()
    assert Path("full/result/dear.txt").read_text() == "y"
    assert sorted(p.name for p in Path("full").iterdir()) == ["photo", "result"]
    for option in ("resume", "checksum"):
        with pytest.raises(ArgumentTypeError, match="a scratch folder beside it"):
            dask_bigfft.run("in.zarr", "out.zarr", **ASKED, **{option: True})
    assert not Path("out.zarr").exists()


@pytest.mark.parametrize("name", ["mkdir", "open"])
def test_a_scratch_folder_that_another_run_removes_just_now_is_made_anew(
    source_folder, monkeypatch, name
):
    """Between making it, opening its lock and locking it; a lock that is gone locks nothing."""
    other = Path("scratch").resolve()
    handle = None
    if name == "open":
        other.mkdir()
        handle = folders.lock_folder(other)
    real = getattr(os, name)
    times = []

    def meanwhile(path, *args, **kwargs):
        value = real(path, *args, **kwargs)
        if "scratch" in str(path) and not times:
            times.append(path)
            run_json.leave(other)
            folders.unlock_folder(handle)
        return value

    monkeypatch.setattr(os, name, meanwhile)
    with resumable.locked(Path("scratch")) as folder:
        assert times
        assert folders.lock_folder(folder) is None
    assert not folder.exists()


def test_at_its_end_a_run_leaves_the_scratch_folder_of_the_next_one(source_folder, monkeypatch):
    """Which has begun as soon as the first one had removed its own."""
    real = run_json.leave
    next_one = []

    def leave(folder):
        real(folder)
        folder.mkdir()
        next_one.append(folders.lock_folder(folder))

    with monkeypatch.context() as patch:
        patch.setattr(run_json, "leave", leave)
        again()
    assert len(next_one) == 1
    assert folders.has_lock(Path("scratch"), *next_one)
    with pytest.raises(ArgumentError, match="no other run is using"):
        again()
    folders.unlock_folder(*next_one)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EACCES])
def test_a_scratch_folder_that_cannot_go_stays_empty(
    source_folder,
    undisturbed,
    monkeypatch,
    code,
):
    """As a disk that is mounted there, or one whose folder above is another user's."""
    Path("scratch").mkdir()
    real = Path.rmdir

    def rmdir(path):
        if path.name == "scratch":
            raise OSError(code, os.strerror(code), str(path))
        real(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    with pytest.raises(ArgumentError, match="`norm`"):
        again(norm="loud")
    assert not again().already
    assert files("out.zarr") == undisturbed
    assert os.listdir("scratch") == []
    assert again().already
    assert os.listdir("scratch") == []


# --- files of every format ------------------------------------------------------------------------

VALUES = np.random.default_rng(21).normal(size=(16, 64)) + 0j
ROWS = {"block_size": 2 * 64 * 16}


def npy_file(path):
    with path.open("wb") as handle:
        np.save(handle, VALUES)


def hdf5_file(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("values", data=VALUES, chunks=(2, 64))


def sharded_array(path):
    zarr.create_array(path, data=VALUES, chunks=(1, 32), shards=(2, 64))


#: What makes a source, and the file of it that is touched.
FORMATS = {
    "npy": (npy_file, "."),
    "hdf5": (hdf5_file, "."),
    "zarr, sharded": (sharded_array, "c/3/0"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_killed_and_gone_on_with(name, kill, tmp_path):
    """To the bit; not where the source's time or, asked for, its content is another one."""
    make, file = FORMATS[name]
    source = tmp_path / "in"
    scratch = tmp_path / "scratch"
    make(source)
    requested = {**ROWS, "inner_chunks": (2, 8) if "sharded" in name else None}
    with dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1}):
        dask_bigfft.run(source, tmp_path / "whole.zarr", **requested)
        begun = {"scratch": scratch, "checksum": True, "kind": "fftn"}
        kill(60, tmp_path / "out.zarr", source, **begun, **requested)
        before = contents(scratch)
        times = (source / file).stat()
        data = (source / file).read_bytes()
        flipped = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
        again = {**requested, "scratch": scratch, "resume": True}
        for changed, nanoseconds in ((data, 0), (flipped, times.st_mtime_ns)):
            (source / file).write_bytes(changed)
            os.utime(source / file, ns=(times.st_atime_ns, nanoseconds))
            with pytest.raises(ArgumentError, match="has changed"):
                dask_bigfft.run(source, tmp_path / "out.zarr", **again)
        (source / file).write_bytes(data)
        os.utime(source / file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert contents(scratch) == before
        dask_bigfft.run(source, tmp_path / "out.zarr", **again)
    assert close(tmp_path / "out.zarr", np.fft.fftn(VALUES), 1e-14)
    assert files(tmp_path / "out.zarr") == files(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zarr", "whole.zarr"]


# --- killed again and again -----------------------------------------------------------------


def one_axis(path):
    """Write an axis of 16 compressed chunks."""
    values = np.random.default_rng(22).normal(size=2**12) + 0j
    zarr.create_array(path, data=values, chunks=(2**8,))


def real_array(path):
    """Write a real array in compressed chunks."""
    values = np.random.default_rng(23).normal(size=(32, 48))
    zarr.create_array(path, data=values, chunks=(4, 48))


#: What makes a source, and the arguments of a run.
RUNS = [
    (one_axis, {"kind": "fft", "block_size": 2**12}),
    (one_axis, {"kind": "ifft", "block_size": 2**12, "order": "transposed"}),
    (real_array, {"kind": "rfftn", "block_size": 4 * 48 * 8}),
    (real_array, {"kind": "rfft", "axis": 0, "block_size": 4 * 48 * 8, "verify": "energy"}),
    (npy_file, {"kind": "fftn", **ROWS}),
    (hdf5_file, {"kind": "fftn", **ROWS}),
    (sharded_array, {"kind": "fftn", "inner_chunks": (2, 8), **ROWS}),
]


#: Compressors of the results of such runs.
COMPRESSORS = (
    "auto",
    None,
    {"name": "blosc", "configuration": {"cname": "lz4"}},
    [{"name": "zstd", "configuration": {"level": 5}}, {"name": "crc32c"}],
)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(50))
def test_a_run_killed_at_random_moments_is_the_same_to_the_bit(number, tmp_path, record_property):
    """Five times each by number of its events; every fifth run by the clock, with three threads.

    Each kind of run has each of the compressors.
    """
    rng = random.Random(number)
    by_clock = number % 5 == 4
    make, requested = RUNS[number % len(RUNS)]
    requested = requested | {"checksum": bool(number // len(RUNS) % 2), "resume": True}
    requested["compressors"] = COMPRESSORS[number % len(COMPRESSORS)]
    threads = 3 if by_clock else 1
    source, out, scratch = (tmp_path / name for name in ("in", "out.zarr", "scratch"))
    make(source)
    requested["scratch"] = scratch
    kills = 0
    scheduler = {"scheduler": "threads" if by_clock else "sync", "num_workers": threads}
    with dask.config.set({**scheduler, "bigfft.planner.whole-axis-floor": 1}):
        begun = time.monotonic()
        with heard() as seen:
            dask_bigfft.run(source, tmp_path / "whole.zarr", **requested)
        seconds = time.monotonic() - begun
        for _ in range(5):
            after = 10**9 if by_clock else rng.randint(1, len(seen) // 6)
            life = started(
                dying_runs.run_and_die,
                after,
                threads,
                source,
                out,
                **requested,
            )
            life.join(rng.uniform(0.2, 3) * seconds if by_clock else 120)
            life.kill()
            life.join()
            kills += life.exitcode == -signal.SIGKILL
            assert life.exitcode in (0, -signal.SIGKILL)
        dask_bigfft.run(source, out, **requested)
    record_property("kills", kills)  # see --junit-xml with -o junit_family=xunit1
    assert by_clock or kills == 5
    assert files(out) == files(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out.zarr", "whole.zarr"]


# --- rounds that are done on a card: the same libraries there, or not at all -------------------

CARD = {"card": "big one", "cupy": "14.0.1", "cufft": "12200"}


def begin(device):
    """Begin a run that does nothing yet; return the versions that it has pinned."""

    def store(result, sink):
        raise KeyboardInterrupt

    given = {"options": {"device": device}, "block_size": NBYTES, "scratch": Path("scratch")}
    requested = RunRequest(Path("in.zarr"), Path("out.zarr"), "fft", **given)
    with pytest.raises(KeyboardInterrupt):
        execute(requested, store)
    versions = json.loads(Path("scratch/run.json").read_text())["versions"]
    return {name: versions[name] for name in CARD if name in versions}


@pytest.mark.parametrize("name", CARD)
def test_another_library_or_card_is_refused_by_name(source_folder, name):
    with simulated_devices(1 << 20) as (device,):
        device.software = dict(CARD)
        assert begin("gpu") == CARD
        device.software = {**CARD, name: "another"}
        with pytest.raises(ArgumentError, match=f"{name} {CARD[name]}, which.*this is another"):
            again(device="gpu")
        device.software = {key: text for key, text in CARD.items() if key != name}
        with pytest.raises(ArgumentError, match=f"{name} {CARD[name]}, which.*this is none"):
            again(device="gpu")
        device.software = dict(CARD)
        again(device="gpu")
    assert close("out.zarr", np.fft.fft(values_of("in.zarr")))


def test_a_run_without_a_card_does_not_go_on_with_one(source_folder):
    """Where nobody says which, and blocks are worth the trip."""
    values = np.random.default_rng(3).normal(size=(2, 1 << 16)) + 0j
    stored("large.zarr", values, (1, 1 << 16))
    Path("in.zarr").rename("small.zarr")
    Path("large.zarr").rename("in.zarr")
    assert begin("auto") == {}
    with simulated_devices(1 << 22), pytest.raises(ArgumentError, match="no card, which"):
        again(device="auto")
    again(device="auto")


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_what_no_card_does_depends_on_none(source_folder, device):
    """Its blocks are too small, or nobody wants one."""
    with simulated_devices(1 << 20):
        assert begin(device) == {}
    again(device=device)


def test_a_cluster_is_asked(source_folder):
    with (
        simulated_devices(1 << 20) as (device,),
        local(),
        dask.config.set(scheduler="dask.distributed"),
    ):
        device.software = dict(CARD)
        assert begin("gpu") == CARD
        again(device="gpu")

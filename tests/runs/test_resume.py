"""Runs that are killed go on where they stopped, to the bit; others than the same are refused."""

import errno
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import (
    ASKED,
    BLOCK,
    NBYTES,
    RNG,
    N,
    again,
    close,
    command,
    complex_values,
    contents,
    done_so_far,
    files,
    stored,
)

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, PlanError, ScratchError
from dask_bigfft.exchange import folders
from dask_bigfft.runs import resumable, run_json
from dask_bigfft.testing import dying_runs

zarr = pytest.importorskip("zarr")


def test_neighbours_that_become_larger_blocks_are_resumed_to_the_bit(here, kill, counted):
    """Blocks of 512 bytes, eight of which are written together in pieces of 256 bytes."""
    settings = {"bigfft.scratch.min-write": 256}
    stored("tiny.zarr", complex_values(N), (32,))
    asked = {"kind": "fft", "block_size": 512, "resume": True}
    with dask.config.set(settings):
        whole = dask_bigfft.run("tiny.zarr", "whole.zarr", scratch="whole", **asked).plan
    assert whole.source.blocks == 16
    assert len(whole.chunks_in[0]) == 128
    wanted = np.fft.fft(zarr.open_array("tiny.zarr")[...])
    assert close("whole.zarr", wanted)
    kill(200, source="tiny.zarr", settings=settings, **asked)
    written = done_so_far()[0]
    assert 0 < written < 16
    counted.clear()
    dask_bigfft.run("tiny.zarr", "out.zarr", scratch="scratch", **asked)  # the plan is pinned
    assert counted["source_read bytes"] == (16 - written) * 8 * 512
    assert files("out.zarr") == files("whole.zarr")


def test_an_array_that_is_opened_anew_is_resumed_to_the_bit(here, kill, counted):
    """In 16 blocks of 8 MiB, for which there is no room beside what they would be merged from."""
    settings = {"bigfft.scratch.min-write": 1 << 18}
    stored("tall.zarr", RNG.normal(size=2**23).astype("c16"), (2**16,), compressors=None)
    asked = {"kind": "fft", "memory_limit": "36 MiB", "resume": True}
    with dask.config.set({**settings, "scheduler": "threads", "num_workers": 1}):
        whole = dask_bigfft.run("tall.zarr", "whole.zarr", scratch="whole", **asked).plan
    assert whole.anew
    assert len(whole.chunks_in[0]) == 16
    wanted = np.fft.fft(zarr.open_array("tall.zarr")[...])
    assert close("whole.zarr", wanted)
    kill(200, source="tall.zarr", settings=settings, block_size=None, **asked)
    written = done_so_far()[0]
    assert 0 < written < 16
    counted.clear()
    with dask.config.set(scheduler="threads", num_workers=1):
        dask_bigfft.run("tall.zarr", "out.zarr", scratch="scratch", **asked)
    assert counted["source_read bytes"] == (16 - written) << 23
    assert files("out.zarr") == files("whole.zarr")


def test_blocks_that_nobody_has_sized_fit_into_memory(here, monkeypatch):
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
    here, kill, undisturbed, counted, threads
):
    """Every life ends some events later; the last one only does what is left."""
    before = [0] * 4
    for after in (20, 260, 260, 130):
        kill(after, threads=threads, resume=True)
        found = done_so_far()
        assert all(a <= b for a, b in zip(before, found, strict=True))
        assert not Path("out.zarr").exists()
        before = found
    assert sum(before) > 16
    assert sum(before) < 64
    counted.clear()
    again()
    left = [16 - n for n in before]
    assert counted["source_read bytes"] == left[0] * NBYTES
    assert counted["round"] == left[1] + left[2]
    assert counted["unpack"] == counted["sink_write"] == left[3]
    assert counted["scratch_write bytes"] == sum(left[:3]) * NBYTES
    assert files("out.zarr") == undisturbed
    assert sorted(p.name for p in here.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


@pytest.mark.parametrize("rounds", [[16, -1], [-1, 16]])
def test_a_run_without_files_at_its_ends(here, kill, counted, rounds):
    """Rows of the source are read where they lie; a block of the last round is many chunks."""
    values = zarr.open_array("in.zarr")[...]
    shutil.rmtree("in.zarr")
    stored("in.zarr", values, (BLOCK,), compressors=None if rounds[0] == 16 else "auto")
    asked, row = {**ASKED, "rounds": rounds}, {"bigfft.scratch.row-size": "256 B"}
    with dask.config.set(row):
        dask_bigfft.run("in.zarr", "whole.zarr", **asked, scratch="whole")
    for after in (60, 250):
        kill(after, **asked, resume=True, settings=row)
    assert any(done_so_far()[:3])
    counted.clear()
    with dask.config.set(row):
        done = dask_bigfft.run("in.zarr", "out.zarr", **asked, scratch="scratch", resume=True)
    assert len(done.plan.travelling) == 2
    assert counted["source_read bytes"] < values.nbytes
    assert files("out.zarr") == files("whole.zarr")
    assert sorted(p.name for p in here.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


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
def test_killed_at_the_beginning_and_at_the_end(here, kill, undisturbed, place):
    kill(place)
    again()
    assert files("out.zarr") == undisturbed
    assert sorted(p.name for p in here.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


def test_from_the_command_line(here, processes, undisturbed, counted, capsys):
    """Killed twice, and gone on with by the same line, with the same bytes; also from Python."""
    line = command("--resume --scheduler sync", size=f"{NBYTES // 1024}KiB")
    for after in (60, 260):
        before = sum(done_so_far())
        code = processes(dying_runs.command_and_die, after, *line)
        assert code == -signal.SIGKILL
        assert sum(done_so_far()) > before
    assert main(command("")) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(command("--resume", size="8KiB")) == 2
    assert "--block-size" in capsys.readouterr().err
    kept = shutil.copytree("scratch", "kept")
    partial = next(iter(here.glob("out.zarr.partial-*")), None)
    counted.clear()
    left = 16 - done_so_far()[0], 64 - sum(done_so_far())
    assert left[1] < 64
    if partial is not None:
        shutil.copytree(partial, f"kept-{partial.name}")
    assert main(line) == 0
    assert counted["source_read bytes"] == left[0] * NBYTES
    assert files("out.zarr") == undisturbed
    shutil.rmtree("out.zarr")
    Path(kept).rename("scratch")
    if partial is not None:
        Path(f"kept-{partial.name}").rename(partial)
    again()
    assert files("out.zarr") == undisturbed


def test_halves_of_chunks_do_not_stay(here, kill, undisturbed):
    """Zarr writes a chunk beside its place; a process that is killed then leaves it there."""
    for after in (640, *[60] * 9):
        if done_so_far()[3]:
            break
        kill(after, resume=True)
    assert 0 < done_so_far()[3] < 16
    (partial,) = here.glob("out.zarr.partial-*")
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
]


def test_what_differs_from_the_run_that_was_begun_is_refused_by_name(begun, monkeypatch):
    """Arguments, files and libraries; a refusal changes nothing, so one run serves for all."""
    before = contents("scratch")
    for options, name in OTHERS:
        with pytest.raises(ArgumentError, match=rf"`{name}`="):
            dask_bigfft.run(
                "in.zarr", "out.zarr", **{**ASKED, **options}, scratch="scratch", resume=True
            )
    with pytest.raises(ArgumentError, match="destination"):
        dask_bigfft.run("in.zarr", "other.zarr", **ASKED, scratch="scratch", resume=True)
    with pytest.raises(ArgumentError, match="`checksum`=True"):
        again(checksum=True)
    shutil.copytree("in.zarr", "copy.zarr")
    with pytest.raises(ArgumentError, match=r"`source`=.*in\.zarr, which the scratch folder is of"):
        dask_bigfft.run("copy.zarr", "out.zarr", **ASKED, scratch="scratch", resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(run_json, "version", lambda name: "0.0")
        with pytest.raises(ArgumentError, match=r"numba .*same result to the bit; this is 0\.0"):
            again()
    assert contents("scratch") == before


def test_a_result_that_is_gone_is_not_begun_anew_in_silence(here, kill):
    """What is recorded as stored would be missing in it."""
    kill("dask_bigfft.storage.targets:Target.finish")
    assert done_so_far()[-1]
    (partial,) = Path().glob("out.zarr.partial-*")
    shutil.rmtree(partial)
    with pytest.raises(ArgumentError, match=r"`scratch`='.*scratch'"):
        again()


@pytest.mark.parametrize(
    ("name", "value"),
    [("order", "transposed"), ("verify", "energy"), ("memory_limit", 2**40), ("variant", "dif")],
)
def test_settings_are_what_keywords_that_are_left_out_say(begun, name, value):
    """A run that began with others is not gone on with, and one that names them is the same."""
    setting = {f"bigfft.{name.replace('_', '-')}": value}
    with dask.config.set(setting), pytest.raises(ArgumentError, match=rf"`{name}`={value!r} "):
        again()
    with dask.config.set(setting):
        dask_bigfft.run("in.zarr", "two.zarr", **ASKED, scratch="two")
        done = dask_bigfft.run("in.zarr", "two.zarr", **ASKED, scratch="two", resume=True)
        assert done.already
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
    before, times = text.read_text(), text.stat()
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


def test_scratch_folders_of_others_are_refused(here):
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
def test_a_scratch_folder_that_another_run_removes_just_now_is_made_anew(here, monkeypatch, name):
    """Between making it, opening its lock and locking it; a lock that is gone locks nothing."""
    other, held = Path("scratch").resolve(), None
    if name == "open":
        other.mkdir()
        held = folders.lock_folder(other)
    real, times = getattr(os, name), []

    def meanwhile(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        if "scratch" in str(path) and not times:
            times.append(path)
            run_json.leave(other)
            folders.unlock_folder(held)
        return found

    monkeypatch.setattr(os, name, meanwhile)
    with resumable.locked(Path("scratch")) as folder:
        assert times
        assert folders.lock_folder(folder) is None
    assert not folder.exists()


def test_at_its_end_a_run_leaves_the_scratch_folder_of_the_next_one(here, monkeypatch):
    """Which has begun as soon as the first one had removed its own."""
    real, next_one = run_json.leave, []

    def leave(folder):
        real(folder)
        folder.mkdir()
        next_one.append(folders.lock_folder(folder))

    monkeypatch.setattr(run_json, "leave", leave)
    again()
    monkeypatch.undo()
    os.chdir(here)
    assert len(next_one) == 1
    assert folders.has_lock(Path("scratch"), *next_one)
    with pytest.raises(ArgumentError, match="no other run is using"):
        again()
    folders.unlock_folder(*next_one)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EACCES])
def test_a_scratch_folder_that_cannot_go_stays_empty(here, undisturbed, monkeypatch, code):
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


# --- full disks -----------------------------------------------------------------------------


@pytest.fixture
def run_on_a_full_disk(here, processes):
    """Do a run where no file may be larger, and return what it says."""

    def run(most, **asked):
        places = "in.zarr", "out.zarr"
        processes(
            dying_runs.run_with_small_files, most, "said", *places, scratch="scratch", **asked
        )
        assert not Path("out.zarr").exists()
        return Path("said").read_text()

    return run


def test_a_full_disk_is_named_and_the_run_goes_on_later(run_on_a_full_disk, undisturbed):
    source = contents("in.zarr")
    most = 15 * NBYTES // 4  # a record, a chunk, but no file of 4 shards of a quarter each
    big = {"kind": "fft", "block_size": 4 * NBYTES}
    said = run_on_a_full_disk(most, **big)
    assert "ScratchError" in said
    assert "bytes are missing for a scratch file of" in said
    assert "scratch/exchange1/to-" in said
    assert contents("in.zarr") == source
    dask_bigfft.run("in.zarr", "out.zarr", **big, scratch="scratch", resume=True)
    assert close("out.zarr", zarr.open_array("whole.zarr")[...])


def test_a_disk_too_full_for_the_record_is_named(run_on_a_full_disk):
    said = run_on_a_full_disk(64, **ASKED)
    assert "ScratchError" in said
    assert re.search(r"bytes are missing for a scratch file of \d+: '.*scratch/run\.json", said)
    Path("scratch").mkdir(exist_ok=True)
    Path("scratch/run.json.0123").write_text("{")  # as a run leaves it that is killed there
    again()
    assert files("out.zarr")[0]
    assert not Path("scratch").exists()


@pytest.fixture
def small_disk(here):
    """A file system of 192 KiB."""
    Path("small").mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", "small"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield Path("small")
    finally:
        subprocess.run(["umount", "-l", "small"], check=True)


def test_a_small_disk(here, small_disk, undisturbed, monkeypatch):
    """Too small from the start is said before anything is written; later it is said where."""
    with pytest.raises(ScratchError, match=r"\d+ bytes are missing: scratch files take 131072"):
        again("small/scratch")
    with monkeypatch.context() as patch:
        patch.setattr(folders, "check_room", lambda *_: None)
        with pytest.raises(ScratchError, match=r"No space left.*\d+ bytes are missing.*to-\d+"):
            again("small/scratch")
    assert not Path("out.zarr").exists()
    subprocess.run(["mount", "-o", "remount,size=4m", "small"], check=True)
    again("small/scratch")
    assert files("out.zarr") == undisturbed

"""Scratch files that are damaged, or half written, are made once more; the result is the same."""

import itertools
import json
import os
import random
import re
import shutil
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from runs.resuming import (
    ASKED,
    BLOCK,
    NBYTES,
    RNG,
    again,
    close,
    command,
    done_so_far,
    files,
    stored,
)

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, BigFFTError, DamagedShardError
from dask_bigfft.exchange import scratch
from dask_bigfft.exchange.scratch import DIGEST, RESULT, block_name, digest_of, records
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import RunRequest, execute, resumable, run_json
from dask_bigfft.runs.resumable import store_now

zarr = pytest.importorskip("zarr")

#: Called when all blocks are stored.
FINISH = "dask_bigfft.storage.targets:Target.finish"

#: Events of a run of a prime length after which files of its filter are there.
FILTER_WRITTEN = 1000


@pytest.mark.parametrize("damage", ["a bit of each", "a bit", "cut", "gone"])
def test_damaged_scratch_files_are_made_once_more(
    source_folder,
    kill,
    undisturbed,
    damage,
):
    """From the source on, where what they were made of is gone; the result is the same."""
    kill(450)
    assert done_so_far()[0] == 16
    assert 0 < done_so_far()[1] < 16
    damaged = 0
    which = "exchange*" if damage == "a bit of each" else "exchange1"
    for path in sorted(Path("scratch").glob(f"{which}/to-*.shards")):
        data = bytearray(path.read_bytes())
        # one bit of every shard, or of one
        for place in range(3, len(data), len(data) // 16 if damage == "a bit of each" else 10**9):
            data[place] ^= 1
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(data[:100] if damage == "cut" else data)
        damaged += 1
        if damage != "a bit of each" and damaged == 2:
            break
    assert damaged
    text = "bytes early|No such file|not what was written"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again()
    assert re.search(text, str(said[0].message))
    assert files("out.zarr") == undisturbed


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_the_command_line_repairs_files_too(
    source_folder,
    kill,
    undisturbed,
    scheduler,
):
    """What runs its tasks is still there for those that make them once more."""
    kill(450)
    path = sorted(Path("scratch").glob("exchange1/to-*.shards"))[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="bytes early"):
        assert main(command(f"--resume --workers 2 --scheduler {scheduler}")) == 0
    assert files("out.zarr") == undisturbed


def half_written(number):
    """Put files of a finished block there that nobody has written all of; return the blocks."""
    blocks = sorted(records(Path("scratch"), f"exchange{number + 1}" if number < 3 else RESULT))
    assert 0 < len(blocks) < 16
    paths = [Path(f"scratch/exchange{number}/to-{block_name(block)}.shards") for block in blocks]
    for path in paths:
        assert not path.exists()
        path.write_bytes(bytes(NBYTES))
    return blocks, paths


@pytest.mark.parametrize(("after", "number"), [(450, 1), (800, 2), (1050, 3)])
def test_what_a_repair_has_left_of_files_is_not_taken_for_whole(
    source_folder,
    kill,
    undisturbed,
    after,
    number,
):
    """A block that writes its shards once more writes them all, also those for finished blocks."""
    kill(after)
    blocks, paths = half_written(number)
    plan = Plan.from_json(json.loads(Path("scratch/run.json").read_text())["plan"])
    error = DamagedShardError(5, "damaged", "here")
    error.exchange = f"exchange{number + 1}"
    error.number = number
    error.sources = tuple(blocks[:1])
    if number == 3:  # blocks of the result: what they are made of is damaged
        error.exchange = "exchange3"
        error.number = 2
        error.sources = ((0,),)
    run_json.forget_damaged(Path("scratch"), plan, error)
    assert not [path for path in paths if path.exists()]
    if number < 3:
        left = records(Path("scratch"), f"exchange{number}")
        assert not left  # each of them has a shard for the block that has to be made again
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        again()
    assert files("out.zarr") == undisturbed


@pytest.mark.parametrize(("files_", "times"), [(9, 1), (2, 3), (1, 4)])
def test_a_run_gives_up_where_the_same_file_is_damaged_again_and_again(
    source_folder,
    undisturbed,
    monkeypatch,
    files_,
    times,
):
    """Many files may be damaged, each independently of the others."""
    monkeypatch.setattr(run_json, "forget_damaged", lambda *_: None)
    errors = [DamagedShardError(5, "damaged", str(i)) for i in range(files_)] * times

    def store(result, sink):
        if errors:
            raise errors.pop()
        store_now(result, sink)

    requested = RunRequest(
        Path("in.zarr"), Path("out.zarr"), "fft", scratch=Path("s"), block_size=NBYTES
    )
    if times <= resumable.MOST_REPAIRS:
        with pytest.warns(RuntimeWarning, match="damaged"):
            execute(requested, store)
        assert files("out.zarr") == undisturbed
    else:
        with pytest.raises(DamagedShardError), pytest.warns(RuntimeWarning, match="damaged"):
            execute(requested, store)


def test_a_damaged_filter_is_made_once_more(source_folder, kill):
    """A prime length: the spectrum of its chirp goes through scratch files of its own."""
    shutil.rmtree("in.zarr")
    values = stored("in.zarr", RNG.normal(size=1009) + 0j, (64,))
    requested = {"kind": "fft", "block_size": 64 * 16}
    dask_bigfft.run("in.zarr", "whole.zarr", **requested, scratch="whole")
    kill(FILTER_WRITTEN, **requested)
    damaged = sorted(Path("scratch").glob("filter*exchange*/to-*.shards"))
    assert damaged
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[::16] = bytes(value ^ 1 for value in data[::16])
        path.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="not what was written"):
        dask_bigfft.run("in.zarr", "out.zarr", **requested, scratch="scratch", resume=True)
    assert files("out.zarr") == files("whole.zarr")
    assert close("out.zarr", np.fft.fft(values), 1e-12)
    assert not Path("scratch").exists()


def test_without_a_scratch_folder_all_is_done_once_more(source_folder, undisturbed, monkeypatch):
    numbers = itertools.count()
    real = scratch.checksum
    monkeypatch.setattr(scratch, "checksum", lambda values: real(values) + (next(numbers) == 5))
    with (
        dask.config.set({"bigfft.exchange.carrier": "disk"}),
        pytest.warns(RuntimeWarning, match="not what was written"),
    ):
        dask_bigfft.run("in.zarr", "out.zarr", **ASKED)
    assert files("out.zarr") == undisturbed
    assert sorted(p.name for p in source_folder.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


# --- files of the result that are recorded and lost ------------------------------------------


def stored_files():
    (partial,) = Path().glob("out.zarr.partial-*")
    return sorted(path for path in (partial / "c").rglob("*") if path.is_file())


def lose(paths):
    """What a loss of power may leave: a part of a file, an empty one, and none."""
    for path, left in zip(paths, itertools.cycle([100, 0, None]), strict=False):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:left])


@pytest.mark.parametrize("inner", [None, (BLOCK // 4,)])
@pytest.mark.parametrize("until", ["some are stored", "all are stored"])
def test_what_is_lost_of_the_result_is_made_once_more(
    source_folder,
    kill,
    counted,
    inner,
    until,
):
    """More of it than damaged scratch files are made once more; what is whole is left alone."""
    requested = {**ASKED, "inner_chunks": inner}
    dask_bigfft.run("in.zarr", "whole.zarr", **requested, scratch="whole")
    kill(1080 if until == "some are stored" else FINISH, **requested)
    recorded = records(Path("scratch"), RESULT)
    stored = len(recorded)
    assert 6 < stored < 16 if until == "some are stored" else stored == 16
    lost = [path for path in stored_files() if (int(path.name),) in recorded][:5]
    lose(lost)
    for number in range(16):  # of what nothing is recorded of, a part may be there, too
        if (number,) not in recorded:
            (lost[0].parent / str(number)).write_bytes(b"half")
    counted.clear()
    with pytest.warns(RuntimeWarning, match=f"5 files of the result .*: .*{lost[0]}"):
        again(inner_chunks=inner)
    assert counted["sink_write"] == 16 - stored + 5
    assert files("out.zarr") == files("whole.zarr")
    assert sorted(p.name for p in source_folder.iterdir()) == ["in.zarr", "out.zarr", "whole.zarr"]


@pytest.mark.parametrize(
    ("more", "sync", "noticed"),
    [
        ({}, False, True),
        ({"inner_chunks": (BLOCK // 4,)}, False, True),
        ({}, True, False),
        ({"inner_chunks": (BLOCK // 4,)}, True, False),
        ({"checksum": True}, True, True),
        ({"verify": "energy"}, True, True),
    ],
)
def test_files_of_the_right_size_with_other_contents_are_noticed(
    source_folder,
    kill,
    counted,
    more,
    sync,
    noticed,
):
    """Zeros, as a loss of power leaves them, and a flipped bit.

    With `sync` there are none, and nothing is read again unless that is asked for.
    """
    requested = {**ASKED, **more}
    dask_bigfft.run("in.zarr", "whole.zarr", **requested, scratch="whole")
    kill(FINISH, **requested, settings={"bigfft.scratch.sync": sync})
    lost = stored_files()[:3]
    for path in lost:
        data = path.read_bytes()
        path.write_bytes(bytes(len(data)) if path != lost[1] else bytes([data[0] ^ 4]) + data[1:])
    counted.clear()
    if not noticed:
        again(**more)
        assert not counted["sink_write"]
        return
    with pytest.warns(RuntimeWarning, match=f"3 files of the result .*: .*{lost[0]}"):
        again(**more)
    assert counted["sink_write"] == 3
    assert files("out.zarr")[0] == files("whole.zarr")[0]


def test_parts_of_blocks_that_are_lost_are_made_once_more(source_folder, kill, counted):
    """Whose block of the last round had gone when all of its parts were stored."""
    requested = {**ASKED, "rounds": [-1, 16]}
    with dask.config.set({"bigfft.scratch.row-size": "256 B"}):
        whole = dask_bigfft.run("in.zarr", "whole.zarr", **requested, scratch="whole").plan
        assert run_json.result_files(whole)[1]
        kill(FINISH, **requested, settings={"bigfft.scratch.row-size": "256 B"})
        stored = stored_files()
        lose([stored[0], stored[-1]])
        counted.clear()
        with pytest.warns(RuntimeWarning, match="2 files of the result"):
            dask_bigfft.run("in.zarr", "out.zarr", **requested, scratch="scratch", resume=True)
    assert counted["sink_write"] == 2
    assert files("out.zarr") == files("whole.zarr")


def test_killed_while_what_is_lost_is_taken_back(source_folder, kill, undisturbed):
    """All of it is found once more: records of what is lost go last."""
    kill(FINISH)
    lose(stored_files()[:5])
    for place in ("free", "forget"):
        kill(f"dask_bigfft.exchange.scratch:Scratch.{place}", resume=True)
    assert done_so_far()[3] == 16
    with pytest.warns(RuntimeWarning) as said:
        again()
    assert [str(w.message)[:7] for w in said] == ["5 files"]
    assert files("out.zarr") == undisturbed


# --- folders that somebody has changed: repaired, or refused by name ----------------------------


@pytest.fixture
def killed(source_folder, kill, undisturbed):
    """A run that was killed when a part of its result was stored; what it would have made."""
    kill(1080)
    assert 0 < done_so_far()[-1] < 16
    return undisturbed


def altered(path, change):
    record = json.loads(Path(path).read_bytes())
    Path(path).write_text(json.dumps(change(record)))


def test_another_plan_is_noticed(killed):
    x = da.zeros(2**12, chunks=2**8, dtype=complex)
    other = dask_bigfft.plan(x, "ifft", device="cpu", kernel="scipy").to_json()
    altered("scratch/run.json", lambda record: record | {"plan": other})
    with pytest.raises(ArgumentError, match="delete the folder to start over"):
        again()


@pytest.mark.parametrize("text", ["", "null", "[]", '{"format": 7, "run": "0', '{"format": 7}'])
def test_a_damaged_record_says_what_to_delete(killed, text):
    """The folder, and the part of the result beside the destination, which only it knows."""
    (partial,) = Path().glob("out.zarr.partial-r*")
    Path("scratch/run.json").write_text(text)
    advice = rf"`scratch`.*delete.*{re.escape(partial.name)}"
    with pytest.raises(ArgumentError, match=advice):
        again()
    shutil.rmtree("scratch")
    shutil.rmtree(partial)
    again()
    assert not list(Path().glob("out.zarr.partial-*"))


def test_shards_of_another_run_are_not_used(killed, processes):
    """Records carry the digest of their run, so what another one has written is made anew."""
    before = [path.read_bytes() for path in sorted(Path("scratch").glob("*/*.json"))]
    assert before
    for path in Path("scratch").glob("*/*.json"):
        record = json.loads(path.read_bytes())
        record["run"] = "0" * 16
        path.write_text(json.dumps(record | {DIGEST: digest_of(record)}))
    again()
    assert files("out.zarr") == killed


@pytest.mark.parametrize("change", [None, {"shape": [2**11]}, {"node_type": "group"}])
def test_a_part_of_the_result_that_is_another_array_is_refused(killed, change):
    (partial,) = Path().glob("out.zarr.partial-*")
    altered(partial / "zarr.json", lambda metadata: metadata | change if change else {})
    with pytest.raises(ArgumentError, match=f"{re.escape(partial.name)}.*delete"):
        again()
    assert not Path("out.zarr").exists()


@pytest.mark.filterwarnings("ignore:.*repeats the work:RuntimeWarning")
def test_any_change_of_what_a_run_keeps_is_repaired_or_refused(killed):
    """Names and types of entries, at random: never an internal error, never a wrong result."""
    rng = random.Random(5)
    records_on_disk = [Path("scratch/run.json"), *sorted(Path("scratch").glob("*/*.json"))]
    saved = {path: path.read_bytes() for path in records_on_disk}
    values = [None, 0, -1, "", "x", [], {}, [1, 2], {"a": 1}, 1e300, True]
    for _ in range(15):
        for path in rng.sample(records_on_disk, 3):
            record = json.loads(path.read_bytes())
            name = rng.choice(list(record))
            left = {k: v for k, v in record.items() if k != name}
            other = rng.choice(values)
            record = rng.choice([left, record | {name: other}, other])
            path.write_text(json.dumps(record) if rng.random() < 0.8 else json.dumps(record)[:-3])
        refused = ""
        try:
            again()
        except BigFFTError as error:
            refused = str(error)
        if not refused:
            assert files("out.zarr") == killed
            return
        assert "scratch" in refused  # the folder
        for path, data in saved.items():
            path.write_bytes(data)


@pytest.mark.parametrize("name", ["pipe", "pipe.npy", "pipe.zip", "pipe.h5"])
def test_a_pipe_is_no_source(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"`source`.*regular file"):
        dask_bigfft.run(tmp_path / name, tmp_path / "out.zarr")

"""Scratch files: what lies in them, what is recorded when, and what is said when it goes wrong."""

import errno
import gc
import json
import os
import pickle
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import heard, in_threads, python, small_files

from dask_bigfft import system
from dask_bigfft.errors import BigFFTError, ScratchError
from dask_bigfft.exchange import folders
from dask_bigfft.exchange import scratch as scratch_module
from dask_bigfft.exchange.scratch import (
    RESULT,
    Part,
    Scratch,
    ScratchPlace,
    ShardFile,
    open_scratch,
    records,
)
from dask_bigfft.files import places
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.memory import allocate

RNG = np.random.default_rng(5)


def random_shards(*sizes):
    return [RNG.normal(size=n) + 1j * RNG.normal(size=n) for n in sizes]


def file(target, nbytes, exchange="exchange1"):
    return ShardFile(exchange, 0, target, nbytes)


def written(
    scratch,
    shards,
    target=(2, 1),
    order=None,
):
    """Shards written in any order, and where they are."""
    total = sum(s.nbytes for s in shards)
    begins = np.cumsum([0, *(s.nbytes for s in shards)])
    parts = {}
    for i in order or range(len(shards)):
        begin = int(begins[i])
        crc = scratch.write(file(target, total), begin, shards[i])
        parts[i] = Part((i,), begin, shards[i].nbytes, crc)
    return [parts[i] for i in sorted(parts)]


def read_all(
    scratch,
    exchange,
    target,
    parts,
    out,
):
    """Read a file into an array of its size."""
    received = []
    scratch.read(
        file(target, len(out), exchange),
        parts,
        lambda begin, end: out[begin:end],
        lambda some, values: received.extend(some),
    )
    assert sorted(part.begin for part in received) == [part.begin for part in parts]


@pytest.fixture(params=[False, True], ids=["as it comes", "sync"])
def scratch(tmp_path, request):
    return Scratch(tmp_path / "s", sync=request.param, kept=True)


def test_a_file_is_its_shards_one_after_the_other(scratch, monkeypatch):
    monkeypatch.setattr(scratch_module, "READ_BYTES", 1000)
    shards = random_shards(7, 100, 1, 33)
    parts = written(scratch, shards, order=[2, 0, 3, 1])
    path = scratch.path("exchange1", (2, 1))
    whole = np.concatenate(shards)
    assert path.read_bytes() == whole.tobytes()
    contents = np.empty(whole.nbytes, np.uint8)
    read_all(
        scratch,
        "exchange1",
        (2, 1),
        parts,
        contents,
    )
    assert contents.tobytes() == whole.tobytes()


def test_a_file_gets_its_size_once_while_nobody_else_writes(scratch, monkeypatch):
    """Where a file system cannot reserve room, the C library writes zeros: over what comes then."""
    began = threading.Barrier(2)
    calls = []

    def reserve(handle, begin, total):
        """Look what is there, and a while later write zeros where nothing was."""
        calls.append(handle)
        before = os.pread(handle, total, begin).ljust(total, b"\0")
        time.sleep(0.2)
        os.pwrite(handle, before, begin)

    sizes = []

    def fstat(handle):
        """Of a file that is empty for both who ask first."""
        status = os.fstat(handle)
        if len(sizes) < 2:
            sizes.append(status.st_size)
            began.wait(10)
        return status

    own = SimpleNamespace(**vars(os))
    own.fstat = fstat
    monkeypatch.setattr(scratch_module, "os", own)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    shards = random_shards(100, 33)
    total = sum(s.nbytes for s in shards)
    begins = [0, shards[0].nbytes]
    whole = file((2, 1), total)
    sums = in_threads(2, lambda i: scratch.write(whole, begins[i], shards[i]))
    assert sums == [checksum(s.view(np.uint8)) for s in shards]
    assert sizes == [0, 0]
    assert len(calls) == 1
    assert scratch.path("exchange1", (2, 1)).read_bytes() == np.concatenate(shards).tobytes()


@pytest.mark.parametrize("place", [0, 63, 64, 150])
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_is_found_and_its_block_named(scratch, place, bit):
    parts = written(scratch, random_shards(4, 6))
    path = scratch.path("exchange1", (2, 1))
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(ScratchError, match=rf"shard of block \({int(place >= 64)},\)") as caught:
        read_all(
            scratch,
            "exchange1",
            (2, 1),
            parts,
            np.empty(160, np.uint8),
        )
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    assert isinstance(caught.value, BigFFTError)


def test_a_file_that_is_too_short_or_missing_is_named(scratch):
    parts = written(scratch, random_shards(4, 6))
    os.truncate(scratch.path("exchange1", (2, 1)), 100)
    with pytest.raises(ScratchError, match="ends 60 bytes early"):
        read_all(
            scratch,
            "exchange1",
            (2, 1),
            parts,
            np.empty(160, np.uint8),
        )
    with pytest.raises(ScratchError, match=r"to-7\.shards") as caught:
        read_all(
            scratch,
            "exchange1",
            (7,),
            parts,
            np.empty(160, np.uint8),
        )
    assert caught.value.errno == errno.ENOENT


# --- records --------------------------------------------------------------------------------


def test_a_record_gives_the_checksums_back(scratch):
    crcs = np.array([0, 2**64 - 1, 7], np.uint64)
    targets = [(0, 0), (0, 1), (12, 3)]
    assert scratch.recorded_shards("exchange2", (4, 5), targets) is None
    scratch.record_shards(
        "exchange2",
        (4, 5),
        targets,
        crcs,
    )
    np.testing.assert_array_equal(scratch.recorded_shards("exchange2", (4, 5), targets), crcs)
    assert scratch.recorded_shards("exchange2", (4, 6), targets) is None
    assert scratch.recorded_shards("exchange2", (4, 5), [*targets, (12, 4)]) is None
    text = (scratch.folder / "exchange2" / "done-4.5.json").read_text()
    assert json.loads(text)["shards"]["12.3"] == 7
    assert set(records(scratch.folder, "exchange2")) == {(4, 5)}
    assert not records(scratch.folder, "exchange1")
    scratch.record(RESULT, (3, 0), {})
    assert scratch.recorded(RESULT, (3, 0))
    assert not scratch.recorded(RESULT, (0, 3))
    assert set(records(scratch.folder, RESULT)) == {(3, 0)}


@pytest.mark.parametrize(
    "text",
    [
        '{"source": [0], "sha',
        "",
        "[]",
        "{}",
        '{"source": [0]}',
        '{"source": 0, "shards": {}}',
        '{"source": [0], "shards": {"1": 9}}',
        '{"block": [0], "nbytes": 7, "checksum": 7, "synced": true}',
    ],
)
def test_what_is_no_record_is_none(scratch, text):
    """As a loss of power, or of a disk, may leave it: the block is done again."""
    scratch.record_shards(
        "exchange1",
        (0,),
        [(1,)],
        np.array([9], np.uint32),
    )
    path = scratch.folder / "exchange1" / "done-0.json"
    assert set(records(scratch.folder, "exchange1")) == {(0,)}
    path.write_text(text)
    assert scratch.recorded_shards("exchange1", (0,), [(1,)]) is None
    assert not records(scratch.folder, "exchange1")
    scratch.record(RESULT, (0,), {})
    (scratch.folder / "result" / "done-0.json").write_text(text)
    assert not scratch.recorded(RESULT, (0,))
    assert not records(scratch.folder, RESULT)


def test_large_shards_begin_at_whole_units_and_are_read_once(scratch):
    """Also with odd sizes; what lies between them is zero, and no byte of it is counted."""
    shards = random_shards(30_001, 65_536, 20_000)
    nbytes = np.array([s.nbytes for s in shards])
    begins = places(nbytes)
    assert (begins % 4096 == 0).all()
    parts = []
    for i, shard in enumerate(shards):
        padded = np.full(begins[i + 1] - begins[i], 255, np.uint8)
        padded[: shard.nbytes] = shard.view(np.uint8)
        crc = scratch.write(
            file((0,), int(begins[-1]), "e"),
            int(begins[i]),
            padded,
            shard.nbytes,
        )
        assert crc == checksum(shard)
        parts.append(Part((i,), int(begins[i]), shard.nbytes, crc))
    with heard() as seen:
        out = allocate((int(begins[-1]),), np.uint8)
        read_all(
            scratch,
            "e",
            (0,),
            parts,
            out,
        )
    assert [(name, n["nbytes"]) for name, n in seen] == [("scratch_read", nbytes.sum())]
    for part, shard in zip(parts, shards, strict=True):
        assert (out[part.begin : part.begin + part.nbytes].view(complex) == shard).all()
    data = scratch.path("e", (0,)).read_bytes()
    assert not any(data[nbytes[0] : begins[1]])


def test_what_a_second_look_finds_right_is_right(scratch, monkeypatch):
    """A bit that flips on the way from the disk does no harm."""
    shards = random_shards(4, 6)
    parts = written(scratch, shards)
    real = scratch_module.File.read
    flips = [4]

    def read(file, out, begin):
        nbytes = real(file, out, begin)
        out[70] ^= flips.pop() if flips else 0
        return nbytes

    monkeypatch.setattr(scratch_module.File, "read", read)
    with heard() as seen:
        out = np.empty(160, np.uint8)
        read_all(
            scratch,
            "exchange1",
            (2, 1),
            parts,
            out,
        )
    assert out.tobytes() == np.concatenate(shards).tobytes()
    assert [name for name, _ in seen] == ["mismatch", "scratch_read"]


# --- folders --------------------------------------------------------------------------------


def test_a_folder_goes_with_its_object(tmp_path):
    place = ScratchPlace(str(tmp_path / "deep" / "er"), "n")
    first = open_scratch(place, shared=False)
    second = open_scratch(place, shared=False)
    assert first.folder != second.folder
    first.write(file((0,), 8), 0, np.zeros(1))
    folder = first.folder
    assert folder.is_dir()
    del first
    gc.collect()
    assert not folder.exists()
    assert second.folder.is_dir()
    second.close()
    assert list((tmp_path / "deep" / "er").iterdir()) == []


def test_a_folder_lives_as_long_as_anybody_holds_it(tmp_path):
    """Whoever has been told of it holds it; one that is gone has let go."""
    place = ScratchPlace(str(tmp_path), "n")
    opened = open_scratch(place, shared=True)
    same = open_scratch(place, shared=True)
    assert opened.folder == same.folder
    same.close()
    told = pickle.loads(pickle.dumps(opened))
    other = pickle.loads(pickle.dumps(opened))
    other.own()
    opened.close()
    assert folders.remove_abandoned(tmp_path) == []
    other.close()
    assert told.folder.is_dir()
    del told
    assert folders.remove_abandoned(tmp_path) == [opened.folder]
    late = pickle.loads(pickle.dumps(opened))  # told of a folder that is gone: makes none
    late.own()
    late.close()
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_processes_left_is_removed(tmp_path):
    code = f"""
import os
import pickle
from dask_bigfft.exchange.scratch import ScratchPlace, open_scratch
scratch = open_scratch(ScratchPlace({str(tmp_path)!r}, "dead"), shared=False)
print(scratch.folder, flush=True)
os._exit(0)
"""
    dead = Path(python("-c", code).stdout.strip())
    assert dead.is_dir()
    (tmp_path / "bigfft-other").mkdir()  # no lock: not ours to judge
    living = open_scratch(ScratchPlace(str(tmp_path), "living"), shared=False)
    assert not dead.exists()
    again = open_scratch(ScratchPlace(str(tmp_path), "again"), shared=False)
    assert living.folder.is_dir()
    assert (tmp_path / "bigfft-other").is_dir()
    again.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="it counts open files by /proc")
def test_where_files_cannot_be_locked_nothing_is_left(tmp_path, monkeypatch):
    def refusing(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(system.fcntl, "flock", refusing)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ScratchError, match="No locks available"):
        open_scratch(ScratchPlace(str(tmp_path), "n"), shared=False)
    assert list(tmp_path.iterdir()) == []
    for take in (folders.lock_folder, lambda folder: folders.hold_folder(folder, make=False)):
        with pytest.raises(OSError, match="No locks available"):
            take(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_too_little_room_is_said_before_anything_is_written(tmp_path):
    place = ScratchPlace(str(tmp_path), "n", needed=1 << 60)
    with pytest.raises(ScratchError, match=r"PiB are missing: scratch files take \d+") as raised:
        open_scratch(place, shared=False)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_and_what_is_missing(scratch):
    shard = np.zeros(1000)
    scratch.write(file((0,), 8000), 0, shard)
    text = r"\w+ are missing for a scratch file of 78.12 kiB"
    with small_files(1 << 16), pytest.raises(ScratchError, match=text) as raised:
        scratch.write(file((1,), 80000), 0, shard)
    assert raised.value.errno == errno.EFBIG
    assert raised.value.filename.endswith("to-1.shards")


def test_a_folder_that_may_not_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ScratchError) as caught:
        open_scratch(ScratchPlace(str(tmp_path / "file" / "in"), "n"), shared=False)
    assert str(tmp_path / "file") in str(caught.value)
    sealed = tmp_path / "sealed"
    sealed.mkdir(mode=0o500)
    root = os.geteuid() == 0
    if root:  # whom no mode keeps out
        os.chmod(tmp_path, 0o711)
        os.seteuid(65534)
    try:
        with pytest.raises(ScratchError, match=r"set bigfft\.scratch\.directory"):
            open_scratch(ScratchPlace(str(sealed), "n"), shared=False)
    finally:
        if root:
            os.seteuid(0)

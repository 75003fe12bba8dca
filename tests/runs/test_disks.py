"""Disks that are full, closed, or lose what was not synced: what is said, and what is left."""

import errno
import json
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from runs.resuming import close, contents, stored
from support import python, small_files

import dask_bigfft
from dask_bigfft.errors import ScratchError
from dask_bigfft.runs import run_json

zarr = pytest.importorskip("zarr")

VALUES = np.random.default_rng(3).normal(size=(8, 4096)) + 0j
ASKED = {"kind": "fft", "block_size": 1 << 16}


@pytest.fixture(autouse=True)
def source(folder: Path) -> None:
    stored("in.zarr", VALUES, (1, 4096), compressors=None)


def right(kind: str = "fft") -> bool:
    result = zarr.open_array("out.zarr", mode="r")
    assert result.attrs["dask_bigfft"]["complete"] is True
    return bool(close(result[...], getattr(np.fft, kind)(VALUES)))


#: What an error says of the chunk of a result that has no room.
OF_CHUNK = r"a chunk of the result of 64.00 kiB.*\.partial-[\w.-]+/c/"


@pytest.mark.parametrize(
    ("kind", "scratch", "inner", "most", "text"),
    [
        *[("fft", None, inner, 40_000, OF_CHUNK) for inner in (None, (1, 1024))],
        *[("fft", "scratch", inner, 40_000, OF_CHUNK) for inner in (None, (1, 1024))],
        ("fftn", "scratch", None, 60_000, r"a scratch file of .*: '.*scratch/exchange\d/to-"),
        ("fftn", "scratch", None, 64, r"a scratch file of [\d.]+ \w+: '.*scratch/run\.json"),
    ],
)
def test_no_room_for_the_result_scratch_files_or_the_record_of_the_run(
    kind: str,
    scratch: str | None,
    inner: tuple[int, ...] | None,
    most: int,
    text: str,
) -> None:
    """The file and what is missing are named, the source is as it was, nothing looks complete.

    The run goes on when there is room.
    """
    requested = ASKED | {"kind": kind, "inner_chunks": inner}
    source = contents("in.zarr")
    error = ScratchError if kind == "fftn" else OSError
    with small_files(most), pytest.raises(error, match=rf"[\d.]+ \w+ are missing for {text}"):
        dask_bigfft.run("in.zarr", "out.zarr", **requested, scratch=scratch)
    assert not Path("out.zarr").exists()
    assert contents("in.zarr") == source
    if scratch is None:
        assert os.listdir() == ["in.zarr"]
    else:
        Path(scratch).mkdir(exist_ok=True)
        Path(scratch, "run.json.0123").write_text("{")  # as a run leaves it that is killed there
    dask_bigfft.run("in.zarr", "out.zarr", **requested, scratch=scratch, resume=bool(scratch))
    assert right(kind)
    assert sorted(os.listdir()) == ["in.zarr", "out.zarr"]


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_too_little_room_for_the_result_is_said_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, scratch: str | None
) -> None:
    requested = {**ASKED, "scratch": scratch, "compressors": None}

    def almost_full(path: Path) -> tuple[int, int, int]:
        return 2**40, 0, VALUES.nbytes - 7 if Path(path).resolve() == Path.cwd() else 2**40

    monkeypatch.setattr(shutil, "disk_usage", almost_full)
    text = r"7 B are missing: the result takes 512\.00 kiB.*'out\.zarr'"
    with pytest.raises(OSError, match=text) as info:
        dask_bigfft.run("in.zarr", "out.zarr", **requested)
    assert info.value.errno == errno.ENOSPC
    assert os.listdir() == ["in.zarr"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (0, 0, 0))
    dask_bigfft.run("in.zarr", "out.zarr", **requested)  # some file systems do not tell
    assert right()


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_what_may_not_be_read_or_written_is_named(scratch: str | None) -> None:
    chunk = Path("in.zarr/c/3/0")
    sealed = Path("sealed")
    sealed.mkdir(mode=0o555)
    chunk.chmod(0)
    runs = [
        ("out.zarr", {**ASKED, "scratch": scratch}),
        ("sealed/out.zarr", {**ASKED, "scratch": scratch and "other"}),
    ]
    program = Path(__file__).with_name("forbidden.py")
    said = python(program, json.dumps(runs)).stdout.splitlines()
    assert len(said) == 2
    assert str(chunk) in said[0]
    assert "`destination`='sealed/out.zarr' cannot be made: Permission denied" in said[1]
    assert not Path("out.zarr").exists()
    assert list(sealed.iterdir()) == []
    chunk.chmod(0o644)
    if scratch:  # its time of change is not that of its values, so the run goes on
        dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch=scratch, resume=True)
        assert right()


@pytest.mark.parametrize("inner", [None, (8,)])
def test_with_sync_nothing_is_recorded_before_it_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, inner: tuple[int, ...] | None
) -> None:
    """A power loss at any record leaves what it speaks of: shards files, and chunks stored."""
    x = np.random.default_rng(4).normal(size=256) + 0j
    stored("line.zarr", x, (16,))
    on_disk: dict[str, tuple[int, bytes]] = {}
    checked: list[str] = []
    real_sync = os.fsync
    real_replace = Path.replace

    def sync(handle: int) -> None:
        real_sync(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        if os.path.isfile(path):
            on_disk[path] = Path(path).read_bytes()

    def replace(path: Path, target: Path) -> Path:
        """What lies in shards files and chunks has been synced as it is."""
        if "life-" in str(path):
            name = f"{Path(target).parent.name}/{Path(target).name}"
            speaks_of = (
                Path().glob(f"out.zarr.partial-*/c/{name[12:-5].replace('.', '/')}")
                if name.startswith("result/")
                else Path(target).parent.glob("to-*.shards")
            )
            of_all = Path().glob("out.zarr.partial-*/zarr.json")
            for record in (*speaks_of, *of_all):
                assert on_disk[str(record.resolve())] == record.read_bytes(), (name, record)
                checked.append(name[:6])
            assert on_disk[str(path.resolve())] == path.read_bytes()
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    with dask.config.set({"bigfft.scratch.sync": True, "scheduler": "sync"}):
        requested = {"block_size": 256, "scratch": "scratch", "inner_chunks": inner}
        dask_bigfft.run("line.zarr", "out.zarr", "fft", **requested)
    assert {"result", "exchan"} <= set(checked)
    assert close("out.zarr", np.fft.fft(x))


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_what_is_marked_complete_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, scratch: str | None
) -> None:
    """Chunks before the mark, the mark before the name, and that before scratch files go."""
    before = dict[str, bytes]()
    after = dict[str, bytes]()
    real_sync = os.fsync
    real_rename = Path.rename
    renamed = list[str]()
    real_clear = run_json.clear
    cleared = list[str]()

    def mark() -> bool:
        (metadata,) = Path().glob("out.zarr.partial-*/zarr.json")
        complete = json.loads(metadata.read_text())["attributes"]["dask_bigfft"]["complete"]
        return bool(complete)

    def sync(handle: int) -> None:
        real_sync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path == Path.cwd() and Path("out.zarr").exists():
            renamed.append("synced")
        if path.is_file() and "partial" in str(path):
            (after if mark() else before)[str(path)] = path.read_bytes()

    def rename(path: Path, target: Path) -> Path:
        if Path(target).name == "out.zarr":
            for file in filter(Path.is_file, path.resolve().rglob("*")):
                synced = after if file.name == "zarr.json" else before
                assert synced[str(file)] == file.read_bytes(), file
                renamed.append(file.name)
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", sync)

    def clear(folder: Path) -> None:
        cleared.extend(renamed)
        real_clear(folder)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(run_json, "clear", clear)
    dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch=scratch)
    assert len(renamed) == 1 + 8 + 1
    assert renamed[-1] == "synced"
    assert cleared == (renamed if scratch else [])
    assert right()

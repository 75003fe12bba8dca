"""What is at the destination of a run: an old array goes when the new one is there."""

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from runs.resuming import ASKED, again, files, stored

import dask_bigfft
from dask_bigfft import events
from dask_bigfft.errors import ArgumentError
from dask_bigfft.storage import targets
from dask_bigfft.testing import dying_runs

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize(
    ("destination", "after", "names"),
    [
        ("in.zarr", 2, [".partial-", ".replaced-"]),
        ("in.zarr", 3, ["", ".replaced-"]),
        ("old.zarr", 2, [".partial-", ".replaced-"]),
        ("old.zarr", 5, ["", ".replaced-"]),
    ],
)
def test_killed_while_an_old_array_is_replaced(
    here, processes, undisturbed, destination, after, names
):
    """Which may be the source: it comes back, or is not asked for any more, and nothing is left."""
    if destination != "in.zarr":
        stored(destination, np.arange(9.0), (3,))
    asked = {**ASKED, "scratch": "scratch", "overwrite": True}
    code = processes(dying_runs.run_and_die_replacing, after, "in.zarr", destination, **asked)
    assert code == -signal.SIGKILL
    found = [path.name.removeprefix(destination) for path in here.glob(f"{destination}*")]
    old = targets.leftovers(Path(destination), targets.REPLACED)
    assert [path.name.partition("-")[0] for path in old] == [f"{destination}.replaced"]
    assert targets.leftovers(Path(destination)) == []  # it is gone on with
    assert sorted(re.sub("-.*", "-", name) for name in found) == names
    dask_bigfft.run("in.zarr", destination, **asked, resume=True)
    assert files(destination) == undisturbed
    assert {p.name for p in here.iterdir()} == {"in.zarr", "whole.zarr", destination}


def a_file(path):
    path.write_text("dear")


def a_folder(path):
    path.mkdir()
    (path / "file").write_text("dear")


def a_link(path):
    os.symlink("in.zarr", path)


def an_array(path):
    stored(path, np.arange(9.0), (3,))


def look(path):
    """What is at a path."""
    if path.is_symlink():
        return os.readlink(path)
    if path.is_file():
        return path.read_text()
    return {str(p.relative_to(path)): p.is_dir() or p.read_bytes() for p in path.rglob("*")}


@contextlib.contextmanager
def coming(make, path):
    """Something comes to a path when the first block of a result is stored."""
    left = [make]

    def sink(name, numbers):
        if name == "sink_write" and left:
            left.pop()(Path(path))

    events.add_sink(sink)
    yield
    events.remove_sink(sink)
    assert not left


def remove(path):
    if path.is_file() or path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", [a_file, a_folder, a_link, an_array])
def test_what_comes_to_the_place_of_a_result_is_not_replaced(
    here, undisturbed, counted, make, overwrite
):
    """An array may be, with overwrite=True. The run is finished when the place is free."""
    text = "came while the run went on"
    if overwrite and make is an_array:
        with coming(make, "out.zarr"):
            again(overwrite=True)
        assert files("out.zarr") == undisturbed
        return
    for scratch in (None, "scratch"):
        refused = pytest.raises(ArgumentError, match=f"`destination`=.*{text}")
        with coming(make, "out.zarr"), refused:
            dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch=scratch, overwrite=overwrite)
        make(Path("wanted"))
        assert look(Path("out.zarr")) == look(Path("wanted"))
        left = {"in.zarr", "whole.zarr", "wanted", "out.zarr"}
        assert {p.name for p in here.iterdir() if ".partial-" not in p.name} == (
            left if scratch is None else left | {scratch}
        )
        with pytest.raises(ArgumentError, match=r"where nothing is yet|something else"):
            again(overwrite=overwrite)
        remove(Path("wanted"))
        if scratch is None:
            remove(Path("out.zarr"))
    remove(Path("out.zarr"))
    counted.clear()
    again(overwrite=overwrite)
    assert not any(counted[name] for name in ("source_read bytes", "round", "sink_write"))
    assert files("out.zarr") == undisturbed
    assert {p.name for p in here.iterdir()} == {"in.zarr", "whole.zarr", "out.zarr"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_comes_at_the_last_moment_is_not_replaced(here, undisturbed, monkeypatch, overwrite):
    """Between a look and the move, and where the old array has just left its place."""
    if overwrite:
        an_array(Path("out.zarr"))
    real = Path.rename

    def rename(path, target):
        if ".partial-" in path.name:
            a_folder(Path("out.zarr"))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    was = r"; .*out\.zarr\.replaced-\w+ was there before" if overwrite else ""
    said = f"`destination`=.*came while the run went on{was};.*partial-"
    with pytest.raises(ArgumentError, match=said):
        again(overwrite=overwrite)
    monkeypatch.undo()
    os.chdir(here)
    assert Path("out.zarr/file").read_text() == "dear"
    if overwrite:
        (old,) = here.glob("out.zarr.replaced-*")
        assert zarr.open_array(old, mode="r")[8] == 8
        with pytest.raises(ArgumentError, match=rf"`destination`=.* is now .*{old.name}"):
            again(overwrite=True)
    shutil.rmtree("out.zarr")
    again(overwrite=overwrite)
    assert files("out.zarr") == undisturbed
    assert {p.name for p in here.iterdir()} == {"in.zarr", "whole.zarr", "out.zarr"}


def test_an_old_array_goes_only_where_the_new_one_is_there(here, processes):
    """What came to its place since may be anything."""
    an_array(Path("old.zarr"))
    asked = {**ASKED, "scratch": "scratch", "overwrite": True}
    processes(dying_runs.run_and_die_replacing, 2, "in.zarr", "old.zarr", **asked)
    (partial,) = here.glob("old.zarr.partial-*")
    (old,) = here.glob("old.zarr.replaced-*")
    shutil.rmtree(partial)
    a_folder(Path("old.zarr"))
    with pytest.raises(ArgumentError, match=rf"`destination`=.* is now .*{old.name}"):
        dask_bigfft.run("in.zarr", "old.zarr", **asked, resume=True)
    assert zarr.open_array(old, mode="r")[8] == 8

"""Runs that were killed when all was done are not done twice; what only looks like that is."""

import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from runs.resuming import ASKED, BLOCK, again, close, command, files, stored, when_first_stored
from runs.resuming import values_of as values

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError
from dask_bigfft.storage import targets
from dask_bigfft.testing import dying_runs

zarr = pytest.importorskip("zarr")

#: Calls after which nothing says that a run was there: its scratch folder is as good as empty.
ENDS = ["dask_bigfft.runs.run_json.leave", "dask_bigfft.runs.resumable.unlock_folder"]

#: What happens where anything is done.
WORK = ["source_read bytes", "round", "sink_write", "scratch_write"]

IN_PLACE = {**ASKED, "scratch": "scratch", "overwrite": True}


def everything(folder):
    paths = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.mark.parametrize("place", ENDS)
@pytest.mark.parametrize("destination", ["out.zarr", "in.zarr"])
def test_killed_after_the_end(
    source_folder,
    kill,
    undisturbed,
    counted,
    capsys,
    destination,
    place,
):
    """In its source's place it would be transformed once more."""
    requested = {**ASKED, "scratch": "scratch", "overwrite": destination == "in.zarr"}
    kill(place, destination, **requested)
    assert not Path("scratch/run.json").exists()
    assert Path("scratch").exists() == (place == ENDS[0])
    before = everything(".")
    counted.clear()
    report = dask_bigfft.run("in.zarr", destination, **requested, resume=True)
    assert report.already
    assert report.plan.spec.name == "fft"
    assert "already done" in repr(report)
    assert main(command("--resume", destination)) == 0
    assert "already done" in capsys.readouterr().out
    assert not any(counted[name] for name in WORK)
    assert everything(".") == before
    assert not Path("scratch").exists()
    assert files(destination) == undisturbed


def test_what_is_not_this_run_is_refused_and_says_why(source_folder):
    again()
    before = everything("out.zarr")
    with pytest.raises(ArgumentError, match=r"where nothing exists yet, or overwrite=True$"):
        dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch="scratch")
    with pytest.raises(ArgumentError, match=r"overwrite=True; .* made with other arguments"):
        again(norm="ortho")
    shutil.copytree("in.zarr", "copy.zarr")
    with pytest.raises(ArgumentError, match=r"other arguments, or from another source"):
        dask_bigfft.run("copy.zarr", "out.zarr", **ASKED, scratch="scratch", resume=True)
    shutil.copytree("out.zarr", "moved.zarr")
    with pytest.raises(ArgumentError, match="`destination`="):
        dask_bigfft.run("in.zarr", "moved.zarr", **ASKED, scratch="scratch", resume=True)
    assert everything("out.zarr") == before
    assert not Path("scratch").exists()


def test_contents_that_changed_in_secret_are_not_already_done(source_folder):
    again(checksum=True)
    assert again().already
    chunk = Path("in.zarr/c/3")
    times = chunk.stat()
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(chunk, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ArgumentError, match=r"source as it was before it changed"):
        again()


def test_without_checksums_nothing_is_already_done_with_them(source_folder, capsys):
    """Nobody knows what the source held."""
    again()
    with pytest.raises(ArgumentError, match="`destination`="):
        again(checksum=True)
    assert main(command("--resume --checksum")) == 2
    assert "was made without --checksum" in capsys.readouterr().err
    assert not again(checksum=True, overwrite=True).already
    assert again(checksum=True).already
    in_place()
    before = everything("in.zarr")
    with pytest.raises(ArgumentError, match="`checksum`=True"):
        in_place(checksum=True)
    assert everything("in.zarr") == before


@pytest.mark.parametrize(
    ("name", "change"), [("in.zarr", "value"), ("out.zarr", "value"), ("out.zarr", "gone")]
)
def test_a_changed_source_or_result_is_not_already_done(source_folder, name, change):
    again()
    if change == "value":
        zarr.open_array(name, mode="r+")[3 * BLOCK] = 0
    else:
        Path(name, "c/3").unlink()
    with pytest.raises(ArgumentError, match="`destination`="):
        again()
    assert not again(overwrite=True).already
    assert close(values("out.zarr"), np.fft.fft(values("in.zarr")))
    assert again().already


@pytest.mark.parametrize("change", ["value", "gone", "attribute"])
@pytest.mark.parametrize("destination", ["out.zarr", "in.zarr"])
def test_killed_before_cleaning_up_a_changed_result_is_not_already_done(
    source_folder,
    kill,
    destination,
    change,
):
    """Also where there is a scratch folder left, which goes only when all is well."""
    place = "dask_bigfft.runs.run_json.clear"
    requested = {**ASKED, "scratch": "scratch", "overwrite": destination == "in.zarr"}
    kill(place, destination, **requested)
    if change == "gone":
        (Path(destination) / "c/3").unlink()
    elif change == "value":
        zarr.open_array(destination, mode="r+")[3 * BLOCK] = 0
    else:
        attributes = zarr.open_array(destination, mode="r+").attrs
        attributes["dask_bigfft"] = {**attributes["dask_bigfft"], "identity": None}
    before = everything(".")
    text = r"`destination`=.*changed since it was made"
    if destination == "in.zarr":
        text = r"`resume`=True .*in\.zarr as this run has left it"
    with pytest.raises(ArgumentError, match=text):
        dask_bigfft.run("in.zarr", destination, **requested, resume=True)
    assert everything(".") == before
    if destination == "out.zarr":
        with pytest.raises(ArgumentError, match="`scratch`="):
            again(overwrite=True)
    shutil.rmtree("scratch")
    x = values("in.zarr")
    requested |= {"overwrite": True, "missing_chunks": "fill"}
    dask_bigfft.run("in.zarr", destination, **requested)
    assert close(values(destination), np.fft.fft(x))


def test_attributes_of_others_are_kept_and_nonsense_is_no_identity(source_folder):
    again()
    zarr.open_array("out.zarr", mode="r+").attrs["units"] = "K"
    assert again().already
    path = Path("out.zarr/zarr.json")
    text = json.loads(path.read_text())
    whole = text["attributes"]["dask_bigfft"]["identity"]
    for wrong in ({}, [], {**whole, "plan": "x"}, {**whole, "plan": 3}, {**whole, "files": "0"}):
        text["attributes"]["dask_bigfft"]["identity"] = wrong
        path.write_text(json.dumps(text))
        with pytest.raises(ArgumentError, match="`destination`"):
            again()


# --- where the result replaces its source ---------------------------------------------------


def in_place(kind="fft", **options):
    requested = {**IN_PLACE, "kind": kind, "resume": True, **options}
    return dask_bigfft.run("in.zarr", "in.zarr", **requested)


def test_in_its_place_other_runs_begin(source_folder):
    x = values("in.zarr")
    assert not in_place().already
    assert in_place().already
    assert not in_place("ifft").already
    assert close(values("in.zarr"), x)
    assert not in_place().already
    assert not in_place(resume=False).already  # once more, as is asked for
    assert close(values("in.zarr"), np.fft.fft(np.fft.fft(x)))
    stored("in.zarr", x, (BLOCK,), overwrite=True)
    assert not in_place().already
    assert close(values("in.zarr"), np.fft.fft(x))


def test_a_result_that_becomes_a_source_is_none_that_was_replaced(source_folder):
    """The same transform of what it has made is another run."""
    x = values("in.zarr")
    again()
    report = dask_bigfft.run("out.zarr", "out.zarr", **IN_PLACE, resume=True)
    assert not report.already
    assert close(values("out.zarr"), np.fft.fft(np.fft.fft(x)))


@pytest.mark.parametrize("place", ["dask_bigfft.runs.run_json.clear", *ENDS])
def test_in_the_place_of_an_array_of_a_group(source_folder, kill, place):
    x = values("in.zarr")
    zarr.open_group("group.zarr", mode="w")
    stored("group.zarr/a", x, (BLOCK,))
    requested = {**IN_PLACE, "component": "a"}
    kill(place, "group.zarr/a", source="group.zarr", **requested)
    assert dask_bigfft.run("group.zarr", "group.zarr/a", **requested, resume=True).already
    assert close(values("group.zarr/a"), np.fft.fft(x))
    assert not Path("scratch").exists()


# --- what is at the destination, and what comes there ------------------------------------------


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
    source_folder,
    processes,
    undisturbed,
    destination,
    after,
    names,
):
    """Which may be the source: it comes back, or is not asked for any more, and nothing is left."""
    if destination != "in.zarr":
        stored(destination, np.arange(9.0), (3,))
    requested = {**ASKED, "scratch": "scratch", "overwrite": True}
    code = processes(dying_runs.run_and_die_replacing, after, "in.zarr", destination, **requested)
    assert code == -signal.SIGKILL
    endings = [
        path.name.removeprefix(destination) for path in source_folder.glob(f"{destination}*")
    ]
    old = targets.leftovers(Path(destination), targets.REPLACED)
    assert [path.name.partition("-")[0] for path in old] == [f"{destination}.replaced"]
    assert targets.leftovers(Path(destination)) == []  # it is gone on with
    assert sorted(re.sub("-.*", "-", name) for name in endings) == names
    dask_bigfft.run("in.zarr", destination, **requested, resume=True)
    assert files(destination) == undisturbed
    assert {p.name for p in source_folder.iterdir()} == {"in.zarr", "whole.zarr", destination}


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


def remove(path):
    if path.is_file() or path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def test_an_array_that_comes_to_the_place_of_a_result_is_replaced_if_allowed(
    source_folder, undisturbed
):
    with when_first_stored(lambda: an_array(Path("out.zarr"))):
        again(overwrite=True)
    assert files("out.zarr") == undisturbed


#: What comes to the place of a result, and whether an array may be replaced.
COMERS = [
    *itertools.product([a_file, a_folder, a_link], [False, True]),
    (an_array, False),
]


@pytest.mark.parametrize(("make", "overwrite"), COMERS)
def test_what_comes_to_the_place_of_a_result_is_not_replaced(
    source_folder,
    undisturbed,
    counted,
    make,
    overwrite,
):
    """The run is finished when the place is free."""
    text = "taken while the run went on"
    for scratch in (None, "scratch"):
        refused = pytest.raises(ArgumentError, match=f"`destination`=.*{text}")
        with when_first_stored(lambda: make(Path("out.zarr"))), refused:
            dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch=scratch, overwrite=overwrite)
        make(Path("wanted"))
        assert look(Path("out.zarr")) == look(Path("wanted"))
        left = {"in.zarr", "whole.zarr", "wanted", "out.zarr"}
        assert {p.name for p in source_folder.iterdir() if ".partial-" not in p.name} == (
            left if scratch is None else left | {scratch}
        )
        with pytest.raises(ArgumentError, match=r"where nothing exists yet|something else"):
            again(overwrite=overwrite)
        remove(Path("wanted"))
        if scratch is None:
            remove(Path("out.zarr"))
    remove(Path("out.zarr"))
    counted.clear()
    again(overwrite=overwrite)
    assert not any(counted[name] for name in ("source_read bytes", "round", "sink_write"))
    assert files("out.zarr") == undisturbed
    assert {p.name for p in source_folder.iterdir()} == {"in.zarr", "whole.zarr", "out.zarr"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_comes_at_the_last_moment_is_not_replaced(
    source_folder,
    undisturbed,
    monkeypatch,
    overwrite,
):
    """Between a look and the move, and where the old array has just left its place."""
    if overwrite:
        an_array(Path("out.zarr"))
    real = Path.rename

    def rename(path, target):
        if ".partial-" in path.name:
            a_folder(Path("out.zarr"))
        return real(path, target)

    was = r"; .*out\.zarr\.replaced-\w+ was there before" if overwrite else ""
    said = f"`destination`=.*taken while the run went on{was};.*partial-"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(ArgumentError, match=said):
            again(overwrite=overwrite)
    assert Path("out.zarr/file").read_text() == "dear"
    if overwrite:
        (old,) = source_folder.glob("out.zarr.replaced-*")
        assert zarr.open_array(old, mode="r")[8] == 8
        with pytest.raises(ArgumentError, match=rf"`destination`=.*{old.name}"):
            again(overwrite=True)
    shutil.rmtree("out.zarr")
    again(overwrite=overwrite)
    assert files("out.zarr") == undisturbed
    assert {p.name for p in source_folder.iterdir()} == {"in.zarr", "whole.zarr", "out.zarr"}


def test_an_old_array_goes_only_where_the_new_one_is_there(source_folder, processes):
    """What came to its place since may be anything."""
    an_array(Path("old.zarr"))
    requested = {**ASKED, "scratch": "scratch", "overwrite": True}
    processes(dying_runs.run_and_die_replacing, 2, "in.zarr", "old.zarr", **requested)
    (partial,) = source_folder.glob("old.zarr.partial-*")
    (old,) = source_folder.glob("old.zarr.replaced-*")
    shutil.rmtree(partial)
    a_folder(Path("old.zarr"))
    with pytest.raises(ArgumentError, match=rf"`destination`=.*{old.name}"):
        dask_bigfft.run("in.zarr", "old.zarr", **requested, resume=True)
    assert zarr.open_array(old, mode="r")[8] == 8

"""Runs that were killed when all was done are not done twice; what only looks like that is."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from runs.resuming import ASKED, BLOCK, again, close, command, files, stored
from runs.resuming import values_of as values

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError

zarr = pytest.importorskip("zarr")

#: Calls after which nothing says that a run was there: its scratch folder is as good as empty.
ENDS = ["dask_bigfft.runs.run_json.leave", "dask_bigfft.runs.resumable.unlock_folder"]

#: What happens where anything is done.
WORK = ["source_read bytes", "round", "sink_write", "scratch_write"]

IN_PLACE = {**ASKED, "scratch": "scratch", "overwrite": True}


def everything(folder):
    return {
        str(p): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in Path(folder).rglob("*")
        if p.is_file()
    }


@pytest.mark.parametrize("place", ENDS)
@pytest.mark.parametrize("destination", ["out.zarr", "in.zarr"])
def test_killed_after_the_end(here, kill, undisturbed, counted, capsys, destination, place):
    """In its source's place it would be transformed once more."""
    asked = {**ASKED, "scratch": "scratch", "overwrite": destination == "in.zarr"}
    kill(place, destination, **asked)
    assert not Path("scratch/run.json").exists()
    assert Path("scratch").exists() == (place == ENDS[0])
    before = everything(".")
    before.pop("scratch/lock", None)
    counted.clear()
    done = dask_bigfft.run("in.zarr", destination, **asked, resume=True)
    assert done.already
    assert done.plan.spec.name == "fft"
    assert "already done" in repr(done)
    assert main(command("--resume", destination)) == 0
    assert "already done" in capsys.readouterr().out
    assert not any(counted[name] for name in WORK)
    assert everything(".") == before
    assert not Path("scratch").exists()
    assert files(destination) == undisturbed


def test_what_is_not_this_run_is_refused_and_says_why(here):
    again()
    before = everything("out.zarr")
    with pytest.raises(ArgumentError, match=r"where nothing is yet, or overwrite=True$"):
        dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch="scratch")
    with pytest.raises(ArgumentError, match=r"overwrite=True; .* made with other arguments"):
        again(norm="ortho")
    shutil.copytree("in.zarr", "copy.zarr")
    with pytest.raises(ArgumentError, match=r"other arguments, or of another source"):
        dask_bigfft.run("copy.zarr", "out.zarr", **ASKED, scratch="scratch", resume=True)
    shutil.copytree("out.zarr", "moved.zarr")
    with pytest.raises(ArgumentError, match="`destination`="):
        dask_bigfft.run("in.zarr", "moved.zarr", **ASKED, scratch="scratch", resume=True)
    assert everything("out.zarr") == before
    assert not Path("scratch").exists()


def test_a_changed_source_is_not_already_done(here):
    again()
    array = zarr.open_array("in.zarr", mode="r+")
    array[:BLOCK] = 1
    with pytest.raises(ArgumentError, match="`destination`="):
        again()
    assert not again(overwrite=True).already
    assert close(values("out.zarr"), np.fft.fft(values("in.zarr")))
    assert again().already


def test_contents_that_changed_in_secret_are_not_already_done(here):
    again(checksum=True)
    assert again().already
    chunk = Path("in.zarr/c/3")
    times = chunk.stat()
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(chunk, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ArgumentError, match=r"source as it was before it changed"):
        again()


def test_without_checksums_nothing_is_already_done_with_them(here, capsys):
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


@pytest.mark.parametrize("change", ["value", "gone"])
def test_a_changed_result_is_not_already_done(here, change):
    again()
    chunk = Path("out.zarr/c/3")
    if change == "value":
        zarr.open_array("out.zarr", mode="r+")[3 * BLOCK] = 0
    else:
        chunk.unlink()
    with pytest.raises(ArgumentError, match="`destination`="):
        again()
    assert not again(overwrite=True).already
    assert close(values("out.zarr"), np.fft.fft(values("in.zarr")))


@pytest.mark.parametrize("change", ["value", "gone", "attribute"])
@pytest.mark.parametrize("destination", ["out.zarr", "in.zarr"])
def test_killed_before_cleaning_up_a_changed_result_is_not_already_done(
    here, kill, destination, change
):
    """Also where there is a scratch folder left, which goes only when all is well."""
    place = "dask_bigfft.runs.run_json.clear"
    asked = {**ASKED, "scratch": "scratch", "overwrite": destination == "in.zarr"}
    kill(place, destination, **asked)
    if change == "gone":
        (Path(destination) / "c/3").unlink()
    elif change == "value":
        zarr.open_array(destination, mode="r+")[3 * BLOCK] = 0
    else:
        attributes = zarr.open_array(destination, mode="r+").attrs
        attributes["dask_bigfft"] = {**attributes["dask_bigfft"], "identity": None}
    before = everything(".")
    before.pop("scratch/lock")
    text = r"`destination`=.*has been changed since it was made"
    if destination == "in.zarr":
        text = r"`resume`=True .*in\.zarr as this run has left it"
    with pytest.raises(ArgumentError, match=text):
        dask_bigfft.run("in.zarr", destination, **asked, resume=True)
    now = everything(".")
    now.pop("scratch/lock")
    assert now == before
    if destination == "out.zarr":
        with pytest.raises(ArgumentError, match="`scratch`="):
            again(overwrite=True)
    shutil.rmtree("scratch")
    x = values("in.zarr")
    asked |= {"overwrite": True, "missing_chunks": "fill"}
    dask_bigfft.run("in.zarr", destination, **asked)
    assert close(values(destination), np.fft.fft(x))


def test_attributes_of_others_are_kept_and_nonsense_is_no_identity(here):
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
    asked = {**IN_PLACE, "kind": kind, "resume": True, **options}
    return dask_bigfft.run("in.zarr", "in.zarr", **asked)


def test_in_its_place_other_runs_begin(here):
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


def test_a_result_that_becomes_a_source_is_none_that_was_replaced(here):
    """The same transform of what it has made is another run."""
    x = values("in.zarr")
    again()
    done = dask_bigfft.run("out.zarr", "out.zarr", **IN_PLACE, resume=True)
    assert not done.already
    assert close(values("out.zarr"), np.fft.fft(np.fft.fft(x)))


@pytest.mark.parametrize("place", ["dask_bigfft.runs.run_json.clear", *ENDS])
def test_in_the_place_of_an_array_of_a_group(here, kill, place):
    x = values("in.zarr")
    zarr.open_group("group.zarr", mode="w")
    stored("group.zarr/a", x, (BLOCK,))
    asked = {**IN_PLACE, "component": "a"}
    kill(place, "group.zarr/a", source="group.zarr", **asked)
    assert dask_bigfft.run("group.zarr", "group.zarr/a", **asked, resume=True).already
    assert close(values("group.zarr/a"), np.fft.fft(x))
    assert not Path("scratch").exists()

"""Runs are refused before anything is made where they would write into what they read or delete."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import Request, resumable, run_json

zarr = pytest.importorskip("zarr")


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A Zarr group with one array, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    root = zarr.open_group("g.zarr", mode="w")
    array = root.create_array("a", shape=(8,), chunks=(4,), dtype=float)
    array[...] = np.arange(8.0)
    return Path("g.zarr")


PLACES = [
    ("g.zarr/a/out", None, "destination", "outside of the source"),
    ("out.zarr", "g.zarr/a", "scratch", "outside of the source"),
    ("out.zarr", "g.zarr/a/s", "scratch", "outside of the source"),
    ("out.zarr", "out.zarr", "scratch", "outside of the destination"),
    ("out.zarr", "out.zarr/s", "scratch", "outside of the destination"),
    ("out.zarr", "s3://bucket/s", "scratch", "a local path"),
    ("work/result.zarr", "work", "destination", "outside of the scratch folder"),
]


@pytest.mark.parametrize(("destination", "scratch", "name", "text"), PLACES)
def test_places_inside_of_each_other_are_refused(group, destination, scratch, name, text):
    """Nothing is made then; what lies in a scratch folder would be deleted at the end."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(ArgumentError, match=rf"`{name}`=.*{text}"):
        dask_bigfft.run(group, destination, "fft", component="a", scratch=scratch)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("name", ["source", "destination", "scratch", "component"])
@pytest.mark.parametrize("given", ["a\0b", "a\ud800b", f"a{300 * '-'}b", "circle"])
def test_paths_that_no_file_can_have_are_refused_by_name(group, name, given):
    """The system's calls say "embedded null byte", and not of what; a link may lead to itself."""
    os.symlink("circle", "circle")
    os.symlink("circle", group / "circle")
    places = {"source": group, "destination": "out.zarr", "scratch": "s", "component": "a"}
    with pytest.raises((ArgumentError, OSError), match=rf"`{name}`="):
        dask_bigfft.run(**places | {name: given}, kind="fft")
    assert sorted(os.listdir()) == ["circle", "g.zarr"]


@pytest.mark.parametrize(
    ("destination", "scratch", "name"),
    [
        ("real/a/out", None, "destination"),
        ("out.zarr", "real/a", "scratch"),
        ("out.zarr", "real/a/s", "scratch"),
    ],
)
def test_the_folder_that_a_component_is_a_link_to_is_the_source(group, destination, scratch, name):
    Path("real").mkdir()
    (group / "a").rename("real/a")
    os.symlink(os.path.abspath("real/a"), group / "a")
    before = sorted(Path().rglob("*"))
    with pytest.raises(ArgumentError, match=rf"`{name}`="):
        dask_bigfft.run(group, destination, "fft", component="a", scratch=scratch)
    assert sorted(Path().rglob("*")) == before
    in_place = {"component": "a", "scratch": "s", "resume": True, "overwrite": True}
    assert not dask_bigfft.run(group, "real/a", "fft", **in_place).already
    assert dask_bigfft.run(group, "real/a", "fft", **in_place).already


def test_beside_the_source_in_its_group_there_is_room(group):
    dask_bigfft.run(group, "g.zarr/b", "fft", component="/a/", scratch="g.zarr/s")
    np.testing.assert_allclose(zarr.open_array("g.zarr/b", mode="r")[...], np.fft.fft(np.arange(8)))
    assert sorted(os.listdir(group)) == ["a", "b", "zarr.json"]


def test_only_what_a_run_has_made_is_deleted_at_its_end(tmp_path):
    ours = ["exchange1", "filter0_exchange12", "result", "life-0af", "ended-12"]
    others = ["results", "my exchange1", "exchange1.zarr", "life-of-brian"]
    for name in ours + others:
        (tmp_path / name).mkdir()
    (tmp_path / "run.json").write_text("{}")
    run_json.clear(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


@pytest.mark.parametrize("component", ["a", "/a", "a/"])
def test_files_of_a_component_are_pinned_however_it_is_written(group, component):
    found = resumable.source_identity(Request(group, Path("b"), component=component), False)
    assert set(found["files"]) == {"c/0", "c/1", "zarr.json"}
    (group / "a/c/1").unlink()
    now = resumable.source_identity(Request(group, Path("b"), component=component), False)
    with pytest.raises(ArgumentError, match=r"g\.zarr/a/c/1 is gone"):
        resumable.refuse_changed_source(found, now)


def test_a_dtype_that_zarr_cannot_hold_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(8, "g"))
    for scratch in (None, "s"):
        with pytest.raises(ArgumentError, match="`source`="):
            dask_bigfft.run("x.npy", "out.zarr", "fft", kernel="scipy", scratch=scratch)
        assert os.listdir() == ["x.npy"]


def test_integers_of_numpy_are_pinned_as_integers():
    """So that a run may be gone on with by either."""

    def asked(integer):
        return Request(
            Path("a"),
            Path("b"),
            n=integer(7),
            axis=integer(0),
            inner_chunks=(integer(2), integer(3)),
            options={"chunks": [integer(4)]},
        )

    assert json.dumps(asked(np.int64).pinned) == json.dumps(asked(int).pinned)


def test_a_folder_in_the_place_of_a_chunk_is_no_chunk(group):
    """Zarr reads it as the fill value."""
    (group / "a/c/1").unlink()
    (group / "a/c/1").mkdir()
    with pytest.raises(ArgumentError, match=r"1 of 2 are missing, the first of them c/1"):
        dask_bigfft.run(group, "out.zarr", "fft", component="a")

"""Runs read and write arrays of Icechunk repositories, in one commit or none."""

import importlib.util
import signal
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from support import environment, failing, python

from dask_bigfft import fft, plan, run
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

icechunk = pytest.importorskip("icechunk")

pytestmark = pytest.mark.usefixtures("small")

X = random_array((24, 30), "f8", 1)


def place(session, name):
    return zarr.storage.StorePath(session.store, name)


@pytest.fixture
def repository(tmp_path):
    """A repository with one array, of named dimensions."""
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icechunk.Repository.create(storage)
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="x",
        shape=X.shape,
        chunks=(7, 30),
        dtype=X.dtype,
        dimension_names=["t", "y"],
        attributes={"units": "m"},
    )
    array[:] = X
    session.commit("x")
    return repository


def commits(repository):
    return [snapshot.message for snapshot in repository.ancestry(branch="main")]


def test_from_one_array_to_another(repository):
    before = len(commits(repository))
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    done = run(place(reading, "x"), place(writing, "spectrum"), "rfft2", axes=("t", "y"))
    assert len(commits(repository)) == before + 1
    latest = repository.readonly_session("main")
    stored = zarr.open_array(place(latest, "spectrum"), mode="r")
    expected = np.fft.rfft2(X)
    assert relative_l2(stored[:], expected) < 1e-14
    assert stored.metadata.dimension_names == ("freq_t", "freq_y")
    assert stored.attrs["units"] == "m"
    assert relative_l2(done.open().compute(), expected) < 1e-14
    assert "spectrum" in repr(done)


def test_between_files_and_repositories(repository, tmp_path):
    np.save(tmp_path / "x.npy", X)
    writing = repository.writable_session("main")
    run(tmp_path / "x.npy", place(writing, "group/from_file"), "fft", axis=0)
    reading = repository.readonly_session("main")
    run(place(reading, "group/from_file"), tmp_path / "back.zarr", "ifft", axis=0)
    assert relative_l2(zarr.open_array(tmp_path / "back.zarr")[:], X) < 1e-14


def test_lazy_arrays_shards_and_filters(repository):
    writing = repository.writable_session("main")
    array = xr.DataArray(da.from_array(X, chunks=(8, 10)), dims=("t", "y"))
    run(array, place(writing, "sharded"), "fft2", chunks=(12, 10), inner_chunks=(6, 5))
    latest = repository.readonly_session("main")
    stored = zarr.open_array(place(latest, "sharded"), mode="r")
    assert stored.shards == (12, 10)
    assert relative_l2(stored[:], np.fft.fft2(X)) < 1e-14
    writing = repository.writable_session("main")
    run(array, place(writing, "smooth"), "fourier_filter", transfer=lambda f, g: np.exp(-f * f))
    latest = repository.readonly_session("main")
    smooth = zarr.open_array(place(latest, "smooth"), mode="r")[:]
    frequencies = np.fft.fftfreq(24)[:, None]
    expected = np.fft.ifft(np.fft.fft(X, axis=0) * np.exp(-(frequencies**2)), axis=0)
    assert relative_l2(smooth, expected.real) < 1e-14


def test_a_transfer_function_that_is_a_lazy_array(repository):
    transfer = np.exp(-np.arange(13.0))
    array = da.from_array(X, chunks=(8, 10))
    writing = repository.writable_session("main")
    run(
        array,
        place(writing, "smooth"),
        "fourier_filter",
        transfer=da.from_array(transfer[:, None], chunks=4),
        axes=(0,),
    )
    latest = repository.readonly_session("main")
    smooth = zarr.open_array(place(latest, "smooth"), mode="r")[:]
    expected = np.fft.irfft(np.fft.rfft(X, axis=0) * transfer[:, None], 24, axis=0)
    assert relative_l2(smooth, expected) < 1e-14


def test_a_failing_run_commits_nothing(repository):
    before = commits(repository)
    writing = repository.writable_session("main")
    with pytest.raises(RuntimeError, match="broken"):
        run(failing(da.ones((8, 8), chunks=4)), place(writing, "broken"), "fft2")
    assert commits(repository) == before
    assert not writing.has_uncommitted_changes
    latest = repository.readonly_session("main")
    assert "broken" not in dict(zarr.open_group(latest.store, mode="r").members())


def test_a_killed_run_commits_nothing(repository, tmp_path):
    before = commits(repository)
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import time, zarr, icechunk, dask.array as da
from dask_bigfft import fft, plan, run
storage = icechunk.local_filesystem_storage({str(tmp_path / "repository")!r})
session = icechunk.Repository.open(storage).writable_session("main")

def wait(block, block_id):
    if block_id[0] == 3:
        print("half", flush=True)
        time.sleep(60)
    return block

x = da.ones((8, 8), chunks=(2, 8)).map_blocks(wait, dtype=float)
run(x, zarr.storage.StorePath(session.store, "killed"), "fft")
"""
    )
    process = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(DASK_SCHEDULER="sync"),
    )
    while process.stdout.readline() != "half\n":  # Icechunk may say something first
        assert process.poll() is None
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert commits(repository) == before


def test_on_a_cluster(repository, client):
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    run(place(reading, "x"), place(writing, "spectrum"), "fft2")
    latest = repository.readonly_session("main")
    stored = zarr.open_array(place(latest, "spectrum"), mode="r")
    assert relative_l2(stored[:], np.fft.fft2(X)) < 1e-14


def test_in_other_processes(repository):
    with dask.config.set(scheduler="processes", num_workers=2):
        writing = repository.writable_session("main")
        reading = repository.readonly_session("main")
        run(place(reading, "x"), place(writing, "spectrum"), "fft2")
        writing = repository.writable_session("main")
        with pytest.raises(ArgumentError, match=r"source.*'x'.*read-only session"):
            run(place(writing, "x"), place(writing, "other"), "fft2")
    latest = repository.readonly_session("main")
    stored = zarr.open_array(place(latest, "spectrum"), mode="r")
    assert relative_l2(stored[:], np.fft.fft2(X)) < 1e-14


def test_replacing(repository):
    for overwrite in (False, True):
        reading = repository.readonly_session("main")
        writing = repository.writable_session("main")
        arguments = (place(reading, "x"), place(writing, "spectrum"), "fft")
        run(*arguments, overwrite=overwrite)
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    with pytest.raises(ArgumentError, match="destination"):
        run(place(reading, "x"), place(writing, "spectrum"), "fft")


def test_replacing_the_source(repository):
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    run(place(reading, "x"), place(writing, "x"), "fft2", overwrite=True)
    latest = repository.readonly_session("main")
    assert relative_l2(zarr.open_array(place(latest, "x"), mode="r")[:], np.fft.fft2(X)) < 1e-14


def from_place(session, name):
    return place(session, name)


def from_array(session, name):
    return da.from_array(zarr.open_array(place(session, name), mode="r")) + 1


def inlined(session, name):
    return da.from_array(zarr.open_array(place(session, name)), inline_array=True)


def optimized(session, name):
    (array,) = dask.optimize(da.from_zarr(place(session, name)) + 1)
    return array


def spectrum(session, name):
    return fft.fft(da.from_zarr(place(session, name)))


def from_xarray(session, name):
    group, _, variable = name.rpartition("/")
    dataset = xr.open_zarr(session.store, group=group or None, consolidated=False)
    return dataset[variable]


SOURCES = [from_place, from_array, inlined, optimized, spectrum, from_xarray]


@pytest.mark.parametrize("source_of", SOURCES)
@pytest.mark.parametrize("destination", ["x", "x/inside"])
def test_a_source_in_the_session_that_writes_is_not_replaced(repository, source_of, destination):
    """The new array would be in its place before it is read."""
    before = commits(repository)
    writing = repository.writable_session("main")
    source = source_of(writing, "x")
    with pytest.raises(ArgumentError, match=rf"`destination`='{destination}'.*'x'"):
        run(source, place(writing, destination), "fft", overwrite=True)
    assert commits(repository) == before
    assert not writing.has_uncommitted_changes
    np.testing.assert_array_equal(zarr.open_array(place(writing, "x"), mode="r")[:], X)


EXPRESSIONS = """
import dask_array, icechunk, numpy as np, zarr
from dask_bigfft import run
from dask_bigfft.errors import ArgumentError

repository = icechunk.Repository.create(icechunk.in_memory_storage())
session = repository.writable_session("main")
zarr.create_array(session.store, name="x", data=np.ones((24, 30)), chunks=(7, 30))
session.commit("x")
place = zarr.storage.StorePath(repository.writable_session("main").store, "x")
x = dask_array.from_array(zarr.open_array(place, mode="r")) + 1
ones = dask_array.ones((24, 30))
for source, kind, keywords in (
    (x, "fft", {}),
    (ones, "fourier_filter", {"transfer": x, "real": False}),
):
    try:
        run(source, place, kind, overwrite=True, **keywords)
    except ArgumentError as error:
        assert "`destination`='x'" in str(error), error
    else:
        raise AssertionError(f"{kind} is not refused")
"""


def test_expressions_say_what_they_read():
    """In a process of its own: the import of dask-array sets options of dask."""
    if importlib.util.find_spec("dask_array") is None:
        pytest.skip("dask-array is not installed")
    python("-c", EXPRESSIONS)


def test_a_transfer_function_in_the_session_that_writes_is_not_replaced(repository):
    writing = repository.writable_session("main")
    transfer = da.from_zarr(place(writing, "x"))
    with pytest.raises(ArgumentError, match=r"`destination`='x'.*source"):
        run(
            da.ones(X.shape),
            place(writing, "x"),
            "fourier_filter",
            transfer=transfer,
            real=False,
            overwrite=True,
        )


def test_groups_are_not_replaced(repository):
    writing = repository.writable_session("main")
    zarr.create_array(writing.store, name="g/a", data=X)
    writing.commit("g")
    for destination, text in (("g", "this is a group"), ("", "root group")):
        writing = repository.writable_session("main")
        for overwrite in (False, True):
            with pytest.raises(ArgumentError, match=f"`destination`='{destination}'.*{text}"):
                run(place(writing, "g/a"), place(writing, destination), "fft", overwrite=overwrite)
    with pytest.raises(ArgumentError, match=r"`destination`='x/y'.*outside of arrays"):
        run(da.ones(8), place(writing, "x/y"), "fft")


def test_sources_that_are_no_arrays(repository, tmp_path):
    reading = repository.readonly_session("main")
    for name, text in (("missing", "path of an array"), ("", "this is the root group")):
        with pytest.raises(ArgumentError, match=f"`source`='{name}'.*{text}"):
            run(place(reading, name), tmp_path / "new.zarr", "fft")
    for function in (fft.fft, plan):
        with pytest.raises(ArgumentTypeError, match=r"`a`=.*StorePath.*dask_bigfft\.run"):
            function(place(reading, "x"))


def test_a_result_is_kept_when_another_commit_was_earlier(repository):
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    other = repository.writable_session("main")
    zarr.create_array(other.store, name="other", data=X)
    other.commit("other")
    with pytest.raises(icechunk.ConflictError) as caught:
        run(place(reading, "x"), place(writing, "spectrum"), "fft2")
    (note,) = caught.value.__notes__
    assert "`destination`='spectrum'" in note
    assert "not committed" in note
    writing.rebase(icechunk.ConflictDetector())
    writing.commit("spectrum")
    latest = repository.readonly_session("main")
    stored = zarr.open_array(place(latest, "spectrum"), mode="r")
    assert relative_l2(stored[:], np.fft.fft2(X)) < 1e-14


def test_refusals(repository, tmp_path):
    reading = repository.readonly_session("main")
    writing = repository.writable_session("main")
    with pytest.raises(ArgumentError, match="writable"):
        run(da.ones(8), place(reading, "new"), "fft")
    with pytest.raises(ArgumentTypeError, match="resume"):
        run(da.ones(8), place(writing, "new"), "fft", resume=True)
    zarr.create_array(writing.store, name="own", shape=(1,), dtype="f8")
    with pytest.raises(ArgumentError, match="uncommitted"):
        run(da.ones(8), place(writing, "new"), "fft")
    assert writing.has_uncommitted_changes  # those of the user stay
    stored = zarr.open_array(place(reading, "x"), mode="r")
    with pytest.raises(ArgumentTypeError, match=r"source.*'Array'.*store_path"):
        run(stored, place(repository.writable_session("main"), "new"), "fft")
    cubed = pytest.importorskip("cubed")
    array = cubed.from_array(X, chunks=8, spec=cubed.Spec(allowed_mem="200MB"))
    with pytest.raises(ArgumentTypeError, match=r"destination.*'new'.*cubed"):
        run(array, place(repository.writable_session("main"), "new"), "fft")

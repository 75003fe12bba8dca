"""Sources that change, or are not all there, and places where nothing may be written."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from runs.resuming import close, refused_unless_filled, when_first_stored

import dask_bigfft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import RunRequest, resumable, run_json
from dask_bigfft.storage import targets
from dask_bigfft.storage.formats import PlainChunks
from dask_bigfft.storage.hdf5 import open_hdf5
from dask_bigfft.storage.sources import open_reader, source_files

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

RNG = np.random.default_rng(5)


pytestmark = pytest.mark.usefixtures("folder")


# --- sources that change --------------------------------------------------------------------


def zarr_source(values):
    zarr.create_array("in", data=values, chunks=(4, 8))
    return "in", "in/c/0/0"


def linked_source(values):
    """A Zarr array whose chunks lie elsewhere, beside a link that goes round in a circle."""
    zarr_source(values)
    shutil.move("in/c", "elsewhere")
    os.symlink(os.path.abspath("elsewhere"), "in/c")
    os.symlink(os.path.abspath("in"), "elsewhere/0/circle")
    return "in", "in/c/0/0"


def npy_source(values):
    np.save("in.npy", values)
    return "in.npy", "in.npy"


def virtual_source(values, name="parts/{}.h5", dataset="deep/x"):
    """A virtual dataset, of whose file nothing changes where its sources do."""
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    Path("parts").mkdir()
    for i, row in enumerate(values):
        with h5py.File(name.format(i), "w") as file:
            file[dataset] = row
        twice = [text.replace("%", "%%") for text in (name.format(i), dataset)]
        layout[i] = h5py.VirtualSource(*twice, row.shape)
    with h5py.File("in.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    return "in.h5", "parts/1.h5"


def external_source(values):
    with h5py.File("in.h5", "w") as file:
        plain = [("one.raw", 0, values.nbytes // 2), ("two.raw", 16, h5py.h5f.UNLIMITED)]
        file.create_dataset("x", values.shape, values.dtype, external=plain)[...] = values
    return "in.h5", "two.raw"


def numbered_source(values):
    """A virtual dataset of as many files as there are."""
    for i, row in enumerate(values):
        with h5py.File(f"n{i}.h5", "w") as file:
            file["x"] = row[None]
    numbered_dataset(values, b"n%b.h5", b"x")
    return "in.h5", f"n{len(values) - 1}.h5"


def numbered_dataset(values, path, name):
    """A virtual dataset of rows, of which any number may be there."""
    with h5py.File("in.h5", "w") as file:
        space = h5py.h5s.create_simple((0, values.shape[1]), (h5py.h5s.UNLIMITED, values.shape[1]))
        whole = h5py.h5s.create_simple((1, values.shape[1]))
        space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, values.shape[1]))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_virtual(space, path, name, whole)
        kind = h5py.h5t.py_create(values.dtype)
        h5py.h5d.create(file.id, b"x", kind, space, plist)


HDF5 = [virtual_source, external_source, numbered_source]
SOURCES = {f.__name__[:-7]: f for f in (zarr_source, linked_source, npy_source, *HDF5)}


@pytest.mark.parametrize("scratch", [None, "s"])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_changes_meanwhile_makes_no_result(monkeypatch, kind, scratch):
    values = RNG.normal(size=(8, 16))
    path, changed = SOURCES[kind](values)
    dask_bigfft.run(path, "out.zarr", scratch=scratch, block_size=1024)
    assert close("out.zarr", np.fft.fftn(values))
    shutil.rmtree("out.zarr")
    before = set(os.listdir())
    monkeypatch.setattr(targets.Target, "finish", lambda *_: pytest.fail("finished"))
    text = rf"`source`=.*{changed} has changed"
    change = when_first_stored(lambda: os.utime(changed, ns=(0, 0)))
    with change, pytest.raises(ArgumentError, match=text):
        dask_bigfft.run(path, "out.zarr", scratch=scratch, block_size=1024)
    assert not Path("out.zarr").exists()
    if scratch is None:
        assert set(os.listdir()) == before


def test_every_way_to_a_folder_of_chunks_is_looked_at():
    """Two links to one folder are two parts of the array; circles are gone round once."""
    linked_source(RNG.normal(size=(8, 16)))
    shutil.rmtree("elsewhere/1")
    os.symlink("0", "elsewhere/1")
    files = source_files(Path("in"))
    assert set(files) == {"zarr.json", "c/0/0", "c/0/1", "c/1/0", "c/1/1"}
    os.unlink("elsewhere/1")
    assert set(source_files(Path("in"))) == {"zarr.json", "c/0/0", "c/0/1"}
    shutil.rmtree("in")
    assert source_files(Path("in")) == {}


def test_links_lead_to_other_files():
    """By way of any number of them; each one's file is looked at, and found where it was moved."""
    Path("deep").mkdir()
    values = RNG.normal(size=(4, 4))
    with h5py.File("deep/last.h5", "w") as file:
        file["group/x"] = values
    with h5py.File("deep/middle.h5", "w") as file:
        file["soft"] = h5py.SoftLink("/hard/x")
        file["hard"] = h5py.ExternalLink("last.h5", "/group")
    with h5py.File("in.h5", "w") as file:
        file["first"] = h5py.ExternalLink("deep/middle.h5", "soft")
        file["nowhere"] = h5py.ExternalLink("gone.h5", "x")
    places = open_hdf5(Path("in.h5"), "first").places()
    assert [path.name for path in places.files] == ["in.h5", "middle.h5", "last.h5"]
    assert not places.missing
    dask_bigfft.run("in.h5", "out.zarr", component="first", scratch="s", checksum=True)
    assert close("out.zarr", np.fft.fftn(values))
    again = {"component": "first", "scratch": "s", "checksum": True, "resume": True}
    assert dask_bigfft.run("in.h5", "out.zarr", **again).already
    os.utime("deep/last.h5", ns=(0, 0))
    with pytest.raises(ArgumentError, match="source as it was before it changed"):
        dask_bigfft.run("in.h5", "out.zarr", **again)
    for name in (None, "nowhere", "deep"):
        with pytest.raises(ArgumentError, match="`component`="):
            dask_bigfft.run("in.h5", "other.zarr", component=name)


def test_a_virtual_dataset_of_its_own_file_and_of_virtual_ones():
    values = RNG.normal(size=(8, 16))
    virtual_source(values)
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(str(Path("in.h5").resolve()), "v", values.shape)
    with h5py.File("outer.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
        again = h5py.VirtualLayout(values.shape, values.dtype)
        again[...] = h5py.VirtualSource(file["v"])
        file.create_virtual_dataset("w", again)
    places = open_hdf5(Path("outer.h5"), "w").places()
    names = [path.name for path in places.files]
    assert sorted(names) == [*(f"{i}.h5" for i in range(8)), "in.h5", "outer.h5"]
    dask_bigfft.run("outer.h5", "out.zarr", component="w")
    assert close("out.zarr", np.fft.fftn(values))


# --- sources that are not all there ---------------------------------------------------------


@pytest.mark.parametrize("damage", ["no file", "no dataset"])
def test_what_a_virtual_dataset_lacks_is_refused_unless_it_is_meant_so(damage):
    """HDF5 reads it as the fill value."""
    values = RNG.normal(size=(8, 16))
    virtual_source(values)
    Path("parts/3.h5").unlink()
    if damage == "no dataset":
        with h5py.File("parts/3.h5", "w") as file:
            file["deep/y"] = values[3]
    values[3] = 0
    refused_unless_filled("in.h5", r"`source`='in\.h5'.*deep/x in parts/3\.h5;", values)


def test_a_part_of_a_virtual_dataset_that_is_no_hdf5_file_is_an_error():
    virtual_source(RNG.normal(size=(8, 16)))
    Path("parts/3.h5").write_text("nothing")
    with pytest.raises(OSError, match=r"cannot be read \(OSError: .*in\.h5"):
        dask_bigfft.run("in.h5", "out.zarr")
    assert not Path("out.zarr").exists()


def test_a_plain_file_that_ends_too_early_lacks_a_part():
    """HDF5 reads zeros there."""
    values = RNG.normal(size=(8, 16))
    external_source(values)
    whole = Path("two.raw").read_bytes()
    assert len(whole) == 16 + values.nbytes // 2
    Path("two.raw").write_bytes(whole[:-128])
    values[-1] = 0
    refused_unless_filled("in.h5", r"128 bytes at the end of .*two\.raw;", values)


@pytest.mark.parametrize("component", [None, "null"])
def test_a_null_dataset_is_refused(component):
    """It has a dtype and no shape."""
    with h5py.File("in.h5", "w") as file:
        file["null"] = h5py.Empty("f8")
    with pytest.raises(ArgumentError, match=r"`source`='in\.h5'"):
        dask_bigfft.run("in.h5", "out.zarr", component=component)
    assert os.listdir() == ["in.h5"]


#: Descriptions of float64 and float32 in an HDF5 file: class, size, and places of the bits.
FLOAT64 = bytes.fromhex("11203f000800000000004000340b0034ff030000")
FLOAT32 = bytes.fromhex("11201f000400000000002000170800177f000000")


@pytest.mark.parametrize("kind", ["contiguous", "external", "virtual", "chunked"])
def test_a_dataset_of_another_size_than_declared_is_refused(kind):
    """Of chunks, and of shorter datasets, HDF5 itself says so."""
    values = RNG.normal(size=(8, 16))
    damaged = "in.h5"
    if kind == "virtual":
        _, damaged = virtual_source(values)
    elif kind == "external":
        external_source(values)
    else:
        with h5py.File("in.h5", "w") as file:
            file.create_dataset("x", data=values, chunks=(2, 16) if kind == "chunked" else None)
    content = Path(damaged).read_bytes()
    assert content.count(FLOAT64) == 1
    Path(damaged).write_bytes(content.replace(FLOAT64, FLOAT32))
    for missing_chunks in ("refuse", "fill"):
        with pytest.raises(ArgumentError, match=rf"`source`=.*{Path(damaged).name}"):
            dask_bigfft.run("in.h5", "out.zarr", missing_chunks=missing_chunks)
    assert not Path("out.zarr").exists()


def test_names_of_files_may_have_percent_signs():
    """HDF5 has them written twice; a single one before a b stands for a number."""
    values = RNG.normal(size=(2, 16))
    virtual_source(values, "{}%b.h5", "50%")
    places = open_hdf5(Path("in.h5"), "v").places()
    assert [path.name for path in places.files] == ["in.h5", "0%b.h5", "1%b.h5"]
    assert not places.missing
    dask_bigfft.run("in.h5", "out.zarr")
    assert close("out.zarr", np.fft.fftn(values))
    Path("1%b.h5").unlink()
    with pytest.raises(ArgumentError, match=r"first of them 50% in 1%b\.h5; "):
        dask_bigfft.run("in.h5", "other.zarr")


def test_numbered_datasets_of_a_file_that_cannot_be_read_come_to_an_end():
    values = RNG.normal(size=(3, 16))
    with h5py.File("rows.h5", "w") as file:
        for i, row in enumerate(values):
            file[f"row {i}"] = row[None]
    numbered_dataset(values, b"rows.h5", b"row %b")
    stored = open_hdf5(Path("in.h5"), "x")
    assert stored.shape == values.shape
    Path("rows.h5").write_text("nothing")
    places = stored.places()
    assert [path.name for path in places.files] == ["in.h5", "rows.h5"]
    with pytest.raises(ArgumentError, match=r"`source`='in\.h5'"):
        dask_bigfft.run("in.h5", "out.zarr")


@pytest.mark.parametrize("name", ["in.h5", "in.npy", "in.zip", "in"])
def test_a_damaged_file_is_named_whatever_its_package_raises(name):
    """Bytes of what tells how values lie are wrong: what is read is the array, or is refused."""
    path = inner = Path(name)
    if name == "in.h5":
        with h5py.File(path, "w") as file:
            file["group/x"] = np.ones((4, 8))
    elif name == "in.npy":
        np.save(path, np.ones((4, 8)))
    else:
        store = name if name == "in" else zarr.storage.ZipStore(name, mode="w")
        zarr.create_array(store, data=np.ones((4, 8)), chunks=(4, 8), compressors=None)
        if name == "in":
            inner = path / "zarr.json"
        else:
            store.close()
    whole = inner.read_bytes()
    rng = np.random.default_rng(0)
    refused = list[str]()
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(min(len(whole), 2048))] = rng.integers(32, 127)
        inner.write_bytes(damaged)
        try:
            open_reader(path).array()
        except ArgumentError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all(name in text for text in refused)


def sharded(values, chunks, *codecs, **where):
    layout = {"chunks": chunks, "dtype": values.dtype, "codecs": list(codecs), "zarr_format": 3}
    zarr.create(values.shape, **layout, **where)[...] = values


@pytest.mark.parametrize("where", ["folder", "zip"])
@pytest.mark.parametrize("index", ["end", "start", "big"])
def test_an_inner_chunk_that_a_shard_lacks_is_a_missing_one(where, index):
    """As zarr leaves out what holds nothing but the fill value; beyond the end none need be."""
    values = RNG.normal(size=(30, 28))
    values[9:12, 12:16] = 0
    endian = "big" if index == "big" else "little"
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(3, 4),
        index_location="start" if index == "start" else "end",
        index_codecs=[zarr.codecs.BytesCodec(endian=endian), zarr.codecs.Crc32cCodec()],
    )
    store = "in" if where == "folder" else zarr.storage.ZipStore("in.zip", mode="w")
    group = zarr.open_group(store, mode="w")
    sharded(values, (9, 8), codec, store=group.store, path="a")
    if where == "zip":
        store.close()
    path = "in" if where == "folder" else "in.zip"
    text = r"1 of 70 are missing, the first of them chunk \(0, 1\) in the shard c/1/1; "
    refused_unless_filled(path, f"{text}.*missing_chunks='fill'", values, component="a")


@pytest.mark.parametrize("place", ["end", "start"])
def test_shards_in_shards_are_looked_into(place):
    """What is missing is counted in the smallest chunks."""
    values = RNG.normal(size=(30, 28))
    values[9:12, 12:16] = 0  # a smallest chunk
    values[18:27, 24:] = 0  # one of the inner shards, of three chunks that are within the array
    codec = [zarr.codecs.BytesCodec()]
    for shape in ((3, 4), (9, 8)):
        codec = [zarr.codecs.ShardingCodec(chunk_shape=shape, codecs=codec, index_location=place)]
    sharded(values, (18, 16), *codec, store="in")
    text = r"of 70 are missing, .* chunk \(0, 1\) of chunk \(1, 1\) in the shard c/0/0"
    refused_unless_filled("in", f"4 {text}; .*missing_chunks='fill'", values)
    Path("in/c/0/1").unlink()  # of 6 x 3 chunks
    with pytest.raises(ArgumentError, match=f"22 {text}"):
        dask_bigfft.run("in", "out.zarr", overwrite=True)


def test_a_shard_in_a_shard_that_ends_early_is_an_error_of_zarr():
    """The index says that there is more than there is: nobody can tell what is missing."""
    values = RNG.normal(size=(8, 8))
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2, 2))
    codec = zarr.codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[inner], index_location="start")
    sharded(values, (8, 8), codec, store="in")
    with open("in/c/0/0", "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 40)
    with pytest.raises(OSError, match="chunk c/0/0 cannot be read"):
        dask_bigfft.run("in", "out.zarr")


# --- places that are refused before anything is made -------------------------------------------


@pytest.fixture
def group(folder):
    """A Zarr group with one array."""
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
def test_places_inside_of_each_other_are_refused(
    group,
    destination,
    scratch,
    name,
    text,
):
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
    [("real/a/out", None, "destination"), ("out.zarr", "real/a/s", "scratch")],
)
def test_the_folder_that_a_component_is_a_link_to_is_the_source(
    group,
    destination,
    scratch,
    name,
):
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
    identity = resumable.source_identity(RunRequest(group, Path("b"), component=component), False)
    assert set(identity["files"]) == {"c/0", "c/1", "zarr.json"}
    (group / "a/c/1").unlink()
    now = resumable.source_identity(RunRequest(group, Path("b"), component=component), False)
    with pytest.raises(ArgumentError, match=r"g\.zarr/a/c/1 is gone"):
        resumable.refuse_changed_source(identity, now)


def test_a_dtype_that_zarr_cannot_hold_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(8, "g"))
    for scratch in (None, "s"):
        with pytest.raises(ArgumentError, match="`source`="):
            dask_bigfft.run("x.npy", "out.zarr", "fft", kernel="scipy", scratch=scratch)
        assert os.listdir() == ["x.npy"]


def test_integers_of_numpy_are_pinned_as_integers():
    """So that a run may be gone on with by either."""

    def requested(integer):
        given = {"n": integer(7), "axis": integer(0), "inner_chunks": (integer(2), integer(3))}
        return RunRequest(Path("a"), Path("b"), **given, options={"chunks": [integer(4)]})

    assert json.dumps(requested(np.int64).pinned) == json.dumps(requested(int).pinned)


def test_a_folder_in_the_place_of_a_chunk_is_no_chunk(group):
    """Zarr reads it as the fill value."""
    (group / "a/c/1").unlink()
    (group / "a/c/1").mkdir()
    with pytest.raises(ArgumentError, match=r"1 of 2 are missing, the first of them c/1"):
        dask_bigfft.run(group, "out.zarr", "fft", component="a")


def test_tasks_take_turns_to_read_plain_files(folder, monkeypatch):
    values = np.arange(64.0).reshape(8, 8)
    zarr.create_array("in", data=values, chunks=(2, 8), compressors=None)
    reader = open_reader(Path("in"))
    fill = PlainChunks.fill
    two_tasks = threading.Barrier(2)
    together = []

    def observed(chunks, region, out):
        try:
            two_tasks.wait(0.2)
            together.append(True)
        except threading.BrokenBarrierError:
            together.append(False)
        fill(chunks, region, out)

    monkeypatch.setattr(PlainChunks, "fill", observed)
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(reader.__getitem__, [np.s_[0:4, 0:8], np.s_[4:8, 0:8]])
        np.testing.assert_array_equal(np.concatenate(list(halves)), values)
    assert together == [False, False]

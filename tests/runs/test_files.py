"""Files in and out: how often data are read and written, chunk by chunk, in every format."""

import errno
import os
import pickle
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from runs.resuming import RNG, complex_values, refused_unless_filled, stored
from support import local

import dask_bigfft
from dask_bigfft.dask_private import original_of
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.exchange.scratch import Scratch, ShardFile
from dask_bigfft.runs.resumable import Sink
from dask_bigfft.storage import formats, sources, targets
from dask_bigfft.testing.oracles import relative_l2

zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")


pytestmark = pytest.mark.usefixtures("folder")


def result(name="out.zarr"):
    array = zarr.open_array(name, mode="r")
    assert array.attrs[targets.ATTRIBUTE]["complete"] is True
    return array


def moved():
    """Bytes that this process has asked the system to read and to write, by whatever call."""
    text = Path("/proc/self/io").read_text(encoding="ascii")
    numbers = dict(line.split(": ") for line in text.splitlines())
    return np.array([int(numbers["rchar"]), int(numbers["wchar"])])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count")
@pytest.mark.parametrize("scheme", ["1D natural: 4 + 4", "rows: 3 + 3", "3D slabs: 2 + 2"])
def test_the_system_counts_no_more_than_we_do(scheme):
    """A byte that is read or written twice is no secret: what is left over is for records."""
    times = int(scheme[-1])
    shape, chunks = ((64, 96, 128), (4, 96, 128)) if times == 2 else ((2**20,), (2**16,))
    requested = {"kind": "fftn" if times == 2 else "fft", "block_size": 2**20, "compressors": None}
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": "16 MiB"}
    if times == 3:
        requested |= {"rounds": [16, -1]}
        options |= {"bigfft.scratch.row-size": "64 kiB"}
    values = stored("in.zarr", complex_values(*shape), chunks, compressors=None)
    with dask.config.set(options):
        for name in ("warm.zarr", "out.zarr"):
            before = moved()
            dask_bigfft.run("in.zarr", name, scratch="scratch", **requested)
    counted = (moved() - before) / values.nbytes
    assert (counted >= times).all(), counted
    assert (counted <= times + 0.1).all(), counted
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14


# --- formats --------------------------------------------------------------------------------


def zarr_file(values, unit, version=3, **options):
    stored("in", values, unit, zarr_format=version, **options)


def npy_file(values, unit):
    with open("in", "wb") as handle:
        np.save(handle, values)


def hdf5_file(values, unit, chunked=True):
    with h5py.File("in", "w") as file:
        file.create_dataset("deep/er", data=values, chunks=unit if chunked else None)


FORMATS = {
    "zarr 2": lambda v, u: zarr_file(v, u, version=2),
    "zarr 3": zarr_file,
    "zarr 3, plain": lambda v, u: zarr_file(v, u, compressors=None),
    "zarr 3, sharded": lambda v, u: zarr_file(v, tuple(n // 2 for n in u), shards=u),
    "zarr 3, big endian": lambda v, u: zarr_file(
        v, u, compressors=None, serializer=zarr.codecs.BytesCodec(endian="big")
    ),
    "zarr 3, compressed": lambda v, u: zarr_file(v, u, compressors=[zarr.codecs.ZstdCodec()]),
    "npy": npy_file,
    "hdf5": hdf5_file,
    "hdf5, contiguous": lambda v, u: hdf5_file(v, u, chunked=False),
}


SAVED = {
    # format, rounds, result's chunks
    "rows of the source": ("zarr 3, plain", [16, -1], {}),
    "rows of one file": ("npy", [16, -1], {}),
    "rows of a contiguous dataset": ("hdf5, contiguous", [16, -1], {}),
    "whole chunks of the source": ("zarr 3, compressed", [16, -1], {"unit": 16}),
    "chunks that are rows of the result": ("zarr 3, compressed", [-1, 16], {"chunk": 16}),
}


@pytest.mark.parametrize("scheme", SAVED)
@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_rows_save_a_pass(counted, scheme, scratch):
    """1D natural: 3 + 3 instead of 4 + 4 where source, or sink, takes rows wide enough."""
    name, rounds, cut = SAVED[scheme]
    values = complex_values(2**12)
    FORMATS[name](values, (cut.get("unit", 2**8),))
    counted.clear()
    requested = {"kind": "fft", "rounds": rounds, "block_size": 2**12}
    row = "256 B"
    with dask.config.set({"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": row}):
        report = dask_bigfft.run("in", "out.zarr", scratch=scratch, **requested)
    assert counted["source_read bytes"] + counted["scratch_read bytes"] == 3 * values.nbytes
    assert counted["scratch_write bytes"] + counted["sink_write bytes"] == 3 * values.nbytes
    assert counted["source_read bytes"] == counted["sink_write bytes"] == values.nbytes
    assert len(report.plan.travelling) == 2
    assert "3 times the data are read" in report.plan.explain(details=True)
    assert counted["worst"] <= report.plan.expected.scratch <= 2 * values.nbytes
    spectrum = result()
    assert spectrum.chunks == (cut.get("chunk", 2**8),)
    assert relative_l2(spectrum[...], np.fft.fft(values)) < 1e-14
    assert sorted(os.listdir()) == ["in", "out.zarr"]


@pytest.mark.parametrize("given", ["a path", "an array"])
def test_graphs_read_rows_of_zarr_arrays_too(counted, given):
    """Nothing has to go from file to file for that, and what has been done to an array counts."""
    values = stored("in", complex_values(2**12), (2**8,), compressors=None)
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": "256 B"}
    with dask.config.set(options):
        source = zarr.open_array("in", mode="r")
        x = da.from_zarr("in") if given == "a path" else da.from_array(source, chunks=2**8)
        y = dask_bigfft.fft.fft(x, rounds=[16, -1])
        assert dask_bigfft.plan(x, "fft", rounds=[16, -1]).from_rows
        counted.clear()
        assert relative_l2(y.compute(), np.fft.fft(values)) < 1e-14
        assert counted["source_read bytes"] == counted["scratch_read bytes"] / 2 == values.nbytes
        assert counted["scratch_write bytes"] == 2 * values.nbytes
        counted.clear()
        twice = dask_bigfft.fft.fft(2 * da.from_zarr(source), rounds=[16, -1])
        assert relative_l2(twice.compute(), 2 * np.fft.fft(values)) < 1e-14
        assert counted["source_read bytes"] == 0
        assert counted["scratch_write bytes"] == 3 * values.nbytes
        # A part of it, and what lies in memory, is no array that is stored whole.
        part = dask_bigfft.fft.fft(da.from_zarr("in")[2**8 :], n=2**12, rounds=[16, -1])
        assert relative_l2(part.compute(), np.fft.fft(values[2**8 :], 2**12)) < 1e-14
        persisted = dask_bigfft.fft.fft(da.from_zarr("in").persist(), rounds=[16, -1])
        assert relative_l2(persisted.compute(), np.fft.fft(values)) < 1e-14


@pytest.mark.parametrize("verify", ["none", "checksum"])
@pytest.mark.parametrize("name", ["zarr 3, plain", "npy", "hdf5, contiguous"])
def test_slabs_are_read_by_their_round(counted, name, verify):
    """Blocks of the first round, as they lie in the file."""
    values = complex_values(64, 64, 64)
    FORMATS[name](values, (1, 64, 64))
    sizes_set = {"bigfft.scratch.min-write": "12 kiB", "bigfft.scratch.row-size": "64 kiB"}
    requested = {"block_size": 2**17, "memory_limit": "64 MiB", "verify": verify}
    with dask.config.set({"bigfft.exchange.carrier": "disk", "num_workers": 2, **sizes_set}):
        report = dask_bigfft.run("in", "out.zarr", **requested)
    plan = report.plan
    assert plan.exchanges[0].local
    assert plan.from_rows
    assert not plan.merges
    assert "is read where the array is stored" in " ".join(plan.explain(details=True).split())
    assert plan.piece_nbytes >= 12 << 10
    assert counted["source_read bytes"] == counted["scratch_read bytes"] == values.nbytes
    assert counted["scratch_write bytes"] == counted["sink_write bytes"] == values.nbytes
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14


@pytest.mark.parametrize("kind", ["fftn", "rfftn"])
@pytest.mark.parametrize("dtype", ["f4", "i2", "c16", ">c16"])
def test_rows_of_any_dtype_and_shape(counted, kind, dtype):
    """Padded and cropped, in cubes of which slabs are read."""
    if kind == "rfftn" and "c" in dtype:
        pytest.skip("complex")
    normal = complex_values if "c" in dtype else lambda *shape: RNG.normal(size=shape)
    values = (100 * normal(12, 20, 14)).astype(dtype)
    stored("in", values, (6, 5, 14), compressors=None)
    where = {"s": (12, 24, 10), "axes": (0, 1, 2)}
    rounds = [{0: -1}, {1: -1, 2: -1}] if kind == "fftn" else [{2: -1, 1: -1}, {0: -1}]
    options = {"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": "64 B"}
    size = 6 * 5 * 14 * values.itemsize
    with dask.config.set(options):
        report = dask_bigfft.run(
            "in",
            "out.zarr",
            kind,
            rounds=rounds,
            block_size=size,
            **where,
        )
    assert report.plan.from_rows
    wide = values.astype(values.dtype.newbyteorder("="))
    wanted = getattr(np.fft, kind)(wide, **where)
    assert relative_l2(result()[...], wanted) < (1e-5 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    values = complex_values(30, 28)
    unit = (4, 6)
    FORMATS[name](values, unit)
    dask_bigfft.run("in", "out.zarr", block_size=4096, scratch="scratch")
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14


def zipped(
    name,
    values,
    component=None,
    missing=(),
):
    with zarr.storage.ZipStore(name, mode="w") as store:
        holder = zarr if component is None else zarr.create_group(store)
        where = {"store": store} if component is None else {"name": component}
        array = holder.create_array(**where, shape=values.shape, chunks=(4, 28), dtype=values.dtype)
        for low in range(0, len(values), 4):
            if low not in missing:
                array[low : low + 4] = values[low : low + 4]


@pytest.mark.parametrize("component", ["", "/", None])
def test_a_component_without_a_name_is_the_array_itself(component):
    values = stored("in", complex_values(30, 28), (4, 28))
    dask_bigfft.run("in", "out.zarr", component=component, scratch="scratch")
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14


def test_a_cache_of_a_remote_store_is_no_folder_of_this_machine():
    """Even where a folder of the same name is here: its one protocol is called "filecache"."""
    remote = "memory://in"
    options = {"filecache": {"cache_storage": "cache"}}
    values = complex_values(2**10)
    zarr.create_array(remote, data=values, chunks=(2**7,))
    x = da.from_zarr(f"filecache::{remote}", storage_options=options)
    assert sources.stored_reader(original_of(x), x) is None
    # One chunk at a time: fsspec's cache forgets files that two threads fetch at once.
    np.testing.assert_array_equal(x.compute(scheduler="synchronous"), values)


@pytest.mark.parametrize("component", [None, "deep/er"])
@pytest.mark.parametrize("scratch", [None, "s::t"])
def test_names_that_look_like_addresses_are_paths(component, scratch):
    """As text, zarr takes them for chains of file systems. Plain chunks go straight as ever."""
    values = complex_values(30, 28)
    folder = Path("memory::i::n")
    options = {"data": values, "chunks": (4, 28), "compressors": None}
    store = zarr.storage.LocalStore(folder)
    if component:
        zarr.open_group(store).create_array(component, **options)
    else:
        zarr.create_array(store, **options)
    with pytest.raises(ArgumentError, match="`component`='x'"):
        dask_bigfft.run(folder, "o::t", component="x")
    assert sources.open_reader(folder, component).plain is not None
    requested = {"component": component, "scratch": scratch, "compressors": None}
    for overwrite in (False, True):
        report = dask_bigfft.run(folder, "o::t", **requested, overwrite=overwrite)
    assert sources.open_reader(report.path).plain is not None
    assert relative_l2(sources.open_reader(report.path).array(), np.fft.fftn(values)) < 1e-14
    assert not scratch or dask_bigfft.run(folder, "o::t", **requested, resume=True).already


@pytest.mark.parametrize("component", [None, "deep/er"])
def test_zip_files(component):
    values = complex_values(30, 28)
    zipped("in.zip", values, component)
    dask_bigfft.run("in.zip", "out.zarr", component=component, block_size=4096, scratch="scratch")
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14
    if component is not None:
        with pytest.raises(ArgumentError, match="`component`='other'"):
            dask_bigfft.run("in.zip", "b.zarr", component="other")


def test_zip_files_that_are_none_or_lack_chunks():
    zipped("in.zip", complex_values(30, 28), missing=(8,))
    with pytest.raises(ArgumentError, match=r"1 of 8 are missing, the first of them c/2/0"):
        dask_bigfft.run("in.zip", "out.zarr")
    Path("in.zip").write_bytes(b"PK nothing")
    with pytest.raises(ArgumentError, match=r"in\.zip.*not a zip file"):
        dask_bigfft.run("in.zip", "out.zarr")


def test_hdf5_datasets_are_found_by_name():
    values = complex_values(8, 8)
    with h5py.File("in.h5", "w") as file:
        file["a"] = values
        file["b/c"] = values.real
    with pytest.raises(ArgumentError, match="a, b/c"):
        dask_bigfft.run("in.h5", "out.zarr")
    with pytest.raises(ArgumentError, match="`component`='d'"):
        dask_bigfft.run("in.h5", "out.zarr", component="d")
    dask_bigfft.run("in.h5", "out.zarr", "rfft", component="/b/c", scratch="s")
    assert relative_l2(result()[...], np.fft.rfft(values.real)) < 1e-14
    Path("cut.h5").write_bytes(Path("in.h5").read_bytes()[:600])
    with pytest.raises(ArgumentError, match="can be read"):
        dask_bigfft.run("cut.h5", "out2.zarr")


@pytest.mark.parametrize("inner", [None, (1, 1)])  # which divides any blocks
@pytest.mark.parametrize("chunks", ["auto", "preserve", (10, 14)])
def test_blocks_of_the_result_are_its_chunks_or_shards(counted, chunks, inner):
    values = stored("in.zarr", complex_values(30, 28), (5, 7))
    dask_bigfft.run(
        "in.zarr",
        "out.zarr",
        chunks=chunks,
        block_size=600,
        scratch="s",
        inner_chunks=inner,
    )
    array = result()
    assert counted["sink_write bytes"] == values.nbytes  # each once
    assert (array.chunks if inner else None) == inner
    assert relative_l2(array[...], np.fft.fftn(values)) < 1e-14


def test_half_precision_stays_half():
    values = RNG.normal(size=(16, 9)).astype("f2")
    stored("in.zarr", values, (4, 9))
    dask_bigfft.run(
        "in.zarr",
        "out.zarr",
        "irfft",
        axis=0,
        scratch="s",
        block_size=80,
    )
    assert result().dtype == np.float16
    wanted = np.fft.irfft(values.astype("f4"), axis=0)
    assert relative_l2(result()[...].astype("f4"), wanted) < 1e-3


@pytest.mark.parametrize("shape", [(30, 28), (9, 10, 11), (50,)])
def test_plain_chunks_are_read_and_written_as_zarr_does(shape):
    values = complex_values(*shape).astype("c8")
    chunks = tuple(4 + i for i in range(len(shape)))
    stored("in", values, chunks, compressors=None)
    array = zarr.open_array("in", mode="r+")
    plain = formats.plain_chunks(array, Path("in"))
    for _ in range(100):
        ends = [sorted(RNG.integers(0, n + 1, 2).tolist()) for n in shape]
        region = tuple(slice(*pair) for pair in ends)
        plain.fill(region, out := np.empty_like(values[region]))
        np.testing.assert_array_equal(out, values[region])
    np.testing.assert_array_equal(sources.open_reader(Path("in"))[1:], values[1:])  # by zarr
    first = tuple(slice(0, n) for n in chunks)
    assert plain.write(first, values[first].copy() * 2)
    assert not plain.write(tuple(slice(0, n - 1) for n in chunks), values[first])
    assert not plain.write(first, values[first].astype("c16"))
    values[first] *= 2
    np.testing.assert_array_equal(array[...], values)


def test_plain_chunks_without_a_file_hold_the_fill_value(monkeypatch):
    """And nothing of their neighbours is read twice, as it would be by way of zarr."""
    values = complex_values(30).astype("c8")
    array = zarr.create_array("in", data=values, chunks=(4,), compressors=None, fill_value=7j)
    for chunk in (0, 3, 7):
        Path(f"in/c/{chunk}").unlink()
    expected = array[...]
    assert np.count_nonzero(expected == 7j) == 10
    reader = sources.open_reader(Path("in"))
    monkeypatch.setattr(reader, "_errors", None)
    for low in range(30):
        region = (slice(low, 30),)
        np.testing.assert_array_equal(reader[region], expected[region])
        out = np.empty(30 - low, "c8")
        reader.fill(region, out)
        np.testing.assert_array_equal(out, expected[region])


@pytest.mark.parametrize("chunk", ["c/2/1", "c/5/3"])
@pytest.mark.parametrize("nbytes", [0, 100, 559, 561, 1120])
def test_a_plain_chunk_of_another_size_is_named(chunk, nbytes):
    """Also at the end of both axes, where a file is as long as the others."""
    stored("in", complex_values(29, 27), (5, 7), compressors=None)
    os.truncate(f"in/{chunk}", nbytes)
    with pytest.raises(OSError, match=rf"{chunk}.*\b{nbytes}\b.*\b560\b"):
        dask_bigfft.run("in", "out.zarr", block_size=600)
    assert os.listdir() == ["in"]


#: Texts of a wrong and a right type in the files of each format.
TYPES = {"zarr 3": '"data_type": "{}"', "zarr 2": '"dtype": "{}"', "npy": "'{}'"}


def declare(name, dtype, other):
    """Let the metadata of a file declare another dtype than its values have."""
    kind = name.partition(",")[0]
    path = Path({"zarr 3": "in/zarr.json", "zarr 2": "in/.zarray"}.get(kind, "in"))
    names = [np.dtype(d).name if kind == "zarr 3" else np.dtype(d).str for d in (dtype, other)]
    before, after = (TYPES[kind].format(name).encode() for name in names)
    content = path.read_bytes()
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, after))


@pytest.mark.parametrize("name", [name for name in FORMATS if "hdf5" not in name])
@pytest.mark.parametrize(("dtype", "other"), [("f8", "f4"), ("f4", "f8"), ("c16", "c8")])
def test_values_of_another_size_than_declared_are_refused(name, dtype, other):
    """In blocks of several chunks, and in rows of a few."""
    FORMATS[name](RNG.normal(size=(29, 28)).astype(dtype), (6, 14))
    declare(name, dtype, other)
    for options in ({"kind": "fftn"}, {"kind": "fft", "axis": 0, "rounds": [29]}):
        with pytest.raises((OSError, ArgumentError), match=r"c/\d/\d|\d\.\d|`source`='in'"):
            dask_bigfft.run("in", "out.zarr", block_size=1344, **options)
        assert os.listdir() == ["in"]


def test_rows_of_chunks_of_another_size_than_declared_are_refused():
    """Which a lazy array of dask's reads like a run."""
    FORMATS["zarr 3, plain"](RNG.normal(size=2**12).astype("c16"), (2**8,))
    declare("zarr 3", "c16", "c8")
    with dask.config.set({"bigfft.exchange.carrier": "disk", "bigfft.scratch.row-size": "128 B"}):
        x = da.from_zarr("in")
        assert dask_bigfft.plan(x, "fft", rounds=[16, -1]).from_rows
        with pytest.raises(OSError, match=r"c/\d+.*\b4096\b.*\b2048\b"):
            dask_bigfft.fft.fft(x, rounds=[16, -1]).compute()


# --- what goes wrong ------------------------------------------------------------------------

#: The argument that is named, and what differs from a run that is allowed.
REFUSED = [
    (r"`source`='nope\.npy'", {"source": "nope.npy"}),
    ("`source`=.ndarray.", {"source": np.ones((4, 4))}),
    ("`destination`='NoneType'", {"destination": None}),
    (r"`destination`='no/out\.zarr'", {"destination": "no/out.zarr"}),
    *(("`destination`=", {"destination": name}) for name in ("out.npy", "out.H5", "out.zip")),
    ("`block_size`='q'", {"block_size": "q"}),
    ("`missing_chunks`='zero'", {"missing_chunks": "zero"}),
    ("`inner_chunks`=", {"chunks": (4, 4), "inner_chunks": (3, 4)}),
    ("`inner_chunks`=", {"chunks": (4, 4), "inner_chunks": (3, 4), "scratch": "s"}),
    *(("`s`=", {"kind": "fft2", "s": s}) for s in ((8,), (4, 4, 4), 3)),
    *(("`inner_chunks`=", {"inner_chunks": cut}) for cut in ("abc", (2.0,), 4)),
    *((f"`{name}`=", {name: 3}) for name in ("scratch", "component")),
    *((f"`{name}`=", {name: "x"}) for name in ("overwrite", "resume", "checksum")),
]


@pytest.mark.parametrize(("text", "changes"), REFUSED)
def test_what_is_not_allowed_is_refused_by_name(text, changes):
    stored("in.zarr", complex_values(8, 8), (4, 4))
    with pytest.raises((ArgumentError, ArgumentTypeError), match=text):
        dask_bigfft.run(**{"source": "in.zarr", "destination": "out.zarr", **changes})
    assert os.listdir() == ["in.zarr"]


@pytest.mark.parametrize("scratch", [None, "s"])
@pytest.mark.parametrize("name", ["zarr 2", "zarr 3", "zarr 3, sharded"])
def test_a_missing_chunk_is_refused_unless_it_is_meant_so(name, scratch):
    values = complex_values(30, 28)
    unit = (4, 6)
    FORMATS[name](values, unit)
    lost = Path("in/2.1" if name == "zarr 2" else "in/c/2/1")
    lost.unlink()
    values[8:12, 6:12] = 0
    count = "4 of 150" if "sharded" in name else "1 of 40"
    text = f"{count} are missing.*{lost.relative_to('in')};"
    refused_unless_filled("in", text, values, scratch=scratch)


def test_a_chunk_that_cannot_be_read_leaves_no_result():
    zarr_file(complex_values(30, 28), (5, 7), compressors=[zarr.codecs.ZstdCodec()])
    before = Path("in/c/2/1").read_bytes()
    Path("in/c/2/1").write_bytes(b"garbage")
    with pytest.raises(OSError, match=r"chunk c/2/1 cannot be read \(.*(?i:zstd|decompress|frame)"):
        dask_bigfft.run("in", "out.zarr", block_size=600, scratch="s")
    assert sorted(p for p in os.listdir() if "partial" not in p) == ["in", "s"]
    (left,) = Path().glob("out.zarr.partial-*")
    assert targets.read_attributes(left)["complete"] is False
    Path("in/c/2/1").write_bytes(before)
    with pytest.raises(ArgumentError, match=r"c/2/1 has changed"):  # it has: who knows how
        dask_bigfft.run("in", "out.zarr", block_size=600, scratch="s", resume=True)


@pytest.mark.parametrize("text", ['{"node_type": "array"}', '{"node_type": "array", "shape": 3}'])
def test_a_damaged_array_may_be_replaced(text):
    """Whether or not it is looked at for what it says of its run."""
    stored("in.zarr", complex_values(8, 8), (4, 8))
    for more in ({}, {"scratch": "s", "resume": True}):
        Path("out.zarr").mkdir()
        Path("out.zarr/zarr.json").write_text(text)
        dask_bigfft.run("in.zarr", "out.zarr", overwrite=True, **more)
        shutil.rmtree("out.zarr")


def test_what_was_there_comes_back_where_the_new_one_cannot_take_its_place(monkeypatch):
    stored("a.zarr", complex_values(8, 8), (4, 8))
    stored("out.zarr", np.arange(4.0), (4,))
    rename = Path.rename

    def failing(path, target):
        if ".partial-" in path.name:
            raise OSError(errno.EACCES, "not today", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="not today"):
        dask_bigfft.run("a.zarr", "out.zarr", overwrite=True)
    assert zarr.open_array("out.zarr")[...].tolist() == [0, 1, 2, 3]
    assert sorted(path.name for path in Path().iterdir()) == ["a.zarr", "out.zarr"]


def test_blocks_that_would_be_too_many_are_refused(monkeypatch):
    """One byte, as for 16 M blocks of an array of 64 MiB, took all memory."""
    monkeypatch.setattr(sources, "MOST", 100)
    npy_file(complex_values(101), None)
    with pytest.raises(ArgumentError, match="`block_size`=1"):
        dask_bigfft.run("in", "out.zarr", block_size=1)
    npy_file(complex_values(100), None)
    dask_bigfft.run("in", "out.zarr", block_size=1)


def test_on_a_cluster_of_processes():
    values = stored("in.zarr", complex_values(64, 48), (8, 48))
    with local(processes=True), dask.config.set(scheduler=None):
        source, out, scratch = (Path(name).resolve() for name in ("in.zarr", "out.zarr", "s"))
        dask_bigfft.run(source, out, block_size=6144, scratch=scratch)
    assert relative_l2(result()[...], np.fft.fftn(values)) < 1e-14
    assert sorted(os.listdir()) == ["in.zarr", "out.zarr"]


def test_a_file_goes_when_workers_that_share_no_memory_have_stored_all_its_parts(folder):
    scratch = Scratch(folder / "scratch", sync=False, kept=True)
    values = complex_values(8)
    scratch.write(ShardFile("exchange1", 0, (0,), values.nbytes), 0, values)
    array = zarr.create_array("parts.zarr", shape=(8,), chunks=(4,), dtype=values.dtype)
    parts = {(0,): (0,), (1,): (0,)}
    target = targets.Target(Path("parts.zarr"), Path("parts.zarr"), array, array)
    first, second = (
        pickle.loads(pickle.dumps(Sink(target, scratch, "exchange1", parts))) for _ in range(2)
    )
    first[slice(0, 4),] = values[:4]
    assert scratch.path("exchange1", (0,)).exists()
    second[slice(4, 8),] = values[4:]
    assert not scratch.path("exchange1", (0,)).exists()
    assert array[...].tobytes() == values.tobytes()

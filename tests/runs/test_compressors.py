"""Results are compressed as zarr does, or as the caller says, also where a run is resumed."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from runs.resuming import again, close, command, done_so_far, files, stored, values_of

import dask_bigfft
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError
from dask_bigfft.runs import RunRequest, planned_input

zarr = pytest.importorskip("zarr")

FAST = {"name": "zstd", "configuration": {"level": 1}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}

pytestmark = pytest.mark.usefixtures("folder")


def compressors_of(name):
    """Return the compressors of a stored array in the form that zarr.json has."""
    codecs = json.loads(Path(name, "zarr.json").read_text())["codecs"]
    if codecs[0]["name"] == "sharding_indexed":
        codecs = codecs[0]["configuration"]["codecs"]
    assert codecs[0]["name"] == "bytes"
    return codecs[1:]


def by_zarr(compressors, dtype="c16"):
    """Return the compressors that an array of zarr's own has."""
    zarr.create_array("other.zarr", shape=(4,), dtype=dtype, compressors=compressors)
    codecs = compressors_of("other.zarr")
    shutil.rmtree("other.zarr")
    return codecs


COMPRESSORS = {
    "default": "auto",
    "none": None,
    "empty": (),
    "codec": zarr.codecs.ZstdCodec(level=5),
    "dictionary": GZIP,
    "several": [GZIP, CRC],
    "for the size of an element": zarr.codecs.BloscCodec(cname="lz4"),
}


@pytest.mark.parametrize("scratch", [None, "scratch"])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressors_mean_what_they_mean_to_zarr(name, shards, scratch):
    """In chunks that are blocks and in shards, also where both are cut at the ends of axes."""
    compressors = COMPRESSORS[name]
    values = np.random.default_rng(1).normal(size=(30, 28))
    stored("in.zarr", values, (8, 28))
    inner = (4, 14) if shards else None
    options = {"scratch": scratch, "inner_chunks": inner, "chunks": (8, 28)}
    dask_bigfft.run("in.zarr", "out.zarr", "fftn", compressors=compressors, **options)
    assert close("out.zarr", np.fft.fftn(values))
    assert compressors_of("out.zarr") == by_zarr(compressors)
    if compressors == "auto":
        dask_bigfft.run("in.zarr", "same.zarr", "fftn", **options)
        assert compressors_of("same.zarr") == by_zarr("auto") != []


@pytest.mark.parametrize(("kind", "dtype"), [("rfftn", "f4"), ("irfftn", "f2")])
def test_results_of_lazy_and_of_half_precision_arrays(kind, dtype):
    values = np.random.default_rng(2).normal(size=(16, 12)).astype(dtype)
    dask_bigfft.run(da.from_array(values, chunks=(4, 12)), "out.zarr", kind, compressors=GZIP)
    assert compressors_of("out.zarr") == [GZIP]
    assert close("out.zarr", getattr(np.fft, kind)(values), 1e-2)


def test_spectra_that_shrink_are_small():
    values = np.zeros((64, 64))
    values[0, 0] = 1
    np.save("in.npy", values)

    def size(**options):
        dask_bigfft.run("in.npy", "out.zarr", overwrite=True, **options)
        return sum(path.stat().st_size for path in Path("out.zarr/c").rglob("*") if path.is_file())

    assert size() < 16 * values.size / 10
    assert size(compressors=None) == 16 * values.size


def test_coordinates_are_compressed_like_their_array():
    xr = pytest.importorskip("xarray")
    field = xr.DataArray(np.ones((4, 6)), {"x": np.arange(6.0)}, ("y", "x"))
    dask_bigfft.run(field.chunk(y=2), "out.zarr", "fft", axis="x", compressors=[GZIP])
    assert compressors_of("out.zarr/spectrum") == compressors_of("out.zarr/freq_x") == [GZIP]


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("auto", "auto"),
        ("none", None),
        ("zstd:3", [zarr.codecs.ZstdCodec(level=3)]),
        ("blosc:7", [zarr.codecs.BloscCodec(clevel=7)]),
        ("gzip:1,crc32c", [GZIP, CRC]),
    ],
)
def test_on_the_command_line(text, codecs, capsys):
    np.save("in.npy", np.ones((8, 8)))
    assert main(["run", "in.npy", "out.zarr", "--quiet", "--compressors", text]) == 0
    assert compressors_of("out.zarr") == by_zarr(codecs)


@pytest.mark.parametrize("text", ["zstd:x", "zstd:99", "nothing", ""])
def test_other_names_on_the_command_line_are_refused(text, capsys):
    np.save("in.npy", np.ones((8, 8)))
    try:
        code = main(["run", "in.npy", "out.zarr", "--quiet", "--compressors", text])
    except SystemExit as error:
        code = error.code
    assert code not in (0, None)
    assert "compressors" in capsys.readouterr().err
    assert os.listdir() == ["in.npy"]


@pytest.mark.parametrize(
    "compressors",
    ["zstd", "none", 3, {"name": "nothing"}, [zarr.codecs.BytesCodec()], [None], np.ma.masked],
)
@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_what_zarr_does_not_take_is_refused_by_name(compressors, scratch):
    np.save("in.npy", np.ones((8, 8)))
    with pytest.raises(ArgumentError, match="`compressors`="):
        dask_bigfft.run("in.npy", "out.zarr", compressors=compressors, scratch=scratch)
    assert os.listdir() == ["in.npy"]


def test_codecs_that_can_be_read_only_once():
    np.save("in.npy", np.ones((8, 8)))
    dask_bigfft.run("in.npy", "out.zarr", compressors=(codec for codec in [GZIP]))
    assert compressors_of("out.zarr") == [GZIP]


# --- resumed --------------------------------------------------------------------------------


@pytest.mark.parametrize("compressors", [None, FAST, [FAST, CRC]])
def test_a_killed_run_goes_on_with_the_same_compressors_alone(source_folder, kill, compressors):
    dask_bigfft.run(
        "in.zarr",
        "whole.zarr",
        "fft",
        block_size=2**12,
        compressors=compressors,
        scratch="whole",
    )
    for after in (500, 545):
        kill(after, compressors=compressors, resume=True)
    assert done_so_far()[-1]
    for others in ("auto", [CRC, FAST]):
        with pytest.raises(ArgumentError, match="`compressors`="):
            again(compressors=others)
    again(compressors=compressors)
    assert files("out.zarr") == files("whole.zarr")
    assert close("out.zarr", np.fft.fft(values_of("in.zarr")))
    assert again(compressors=compressors).already
    with pytest.raises(ArgumentError, match="made with other arguments"):
        again()


def test_two_names_of_the_same_compressor_are_equal(source_folder, kill):
    """What zarr does by default may also be said."""
    kill(300)
    again(compressors=by_zarr("auto"))
    assert again().already


def test_a_killed_run_from_the_command_line_goes_on(source_folder, kill, capsys):
    kill(300, compressors=[{"name": "zstd", "configuration": {"level": 3}}])
    assert main(command("--resume --compressors zstd:4")) != 0
    assert "--compressors" in capsys.readouterr().err
    assert main(command("--resume --compressors zstd:3")) == 0
    assert close("out.zarr", np.fft.fft(values_of("in.zarr")))


def test_a_partial_result_with_other_compressors_is_refused(source_folder, kill):
    kill("dask_bigfft.storage.targets:Target.finish")
    (partial,) = Path().glob("out.zarr.partial-*")
    text = json.loads((partial / "zarr.json").read_text())
    text["codecs"][1:] = [GZIP]
    (partial / "zarr.json").write_text(json.dumps(text))
    with pytest.raises(ArgumentError, match="`scratch`="):
        again()


# --- space and memory -----------------------------------------------------------------------


def test_too_little_room_for_what_may_shrink_is_a_warning(monkeypatch):
    np.save("in.npy", np.zeros((64, 64)))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (2**40, 0, 1000))
    with pytest.raises(OSError, match="the result takes"):
        dask_bigfft.run("in.npy", "out.zarr", compressors=None)
    with pytest.warns(RuntimeWarning, match="the result takes"):
        dask_bigfft.run("in.npy", "out.zarr")
    assert not values_of("out.zarr").any()


def forecast(
    shape,
    compressors,
    lazy,
    carrier,
):
    """Return the forecast peak of a run in chunks of 64 MiB, with two threads."""
    chunks = (4096, 1024)
    options = {"chunks": chunks}
    if lazy:
        x = da.ones(shape, chunks=chunks, dtype="c16")
        request = RunRequest(Path(), Path("out.zarr"), compressors=compressors, array=x)
    else:
        zarr.create_array(
            "in.zarr",
            shape=shape,
            chunks=chunks,
            dtype="c16",
            compressors=None,
            overwrite=True,
        )
        request = RunRequest(Path("in.zarr"), Path("out.zarr"), compressors=compressors)
    settings = {"num_workers": 2, "scheduler": "threads", "bigfft.exchange.carrier": carrier}
    with dask.config.set(settings):
        plan = planned_input(replace(request, options=options))[1]
    assert plan.storage == ("disk" if carrier == "disk" else "memory")
    return plan.expected.peak_host


@pytest.mark.parametrize("carrier", ["auto", "disk"])
@pytest.mark.parametrize("lazy", [False, True])
def test_forecasts_count_what_compressors_take(carrier, lazy):
    """Copies of chunks that are cut at the ends of axes, and the tables of high levels."""
    slow = zarr.codecs.ZstdCodec(level=22)
    even = (2**16, 1024)
    uneven = (2**16 - 96, 1024)
    peaks = [forecast(even, compressors, lazy, carrier) for compressors in (None, "auto", slow)]
    assert peaks[0] <= peaks[1] < peaks[2]
    assert peaks[2] >= 2 * 2**29  # 512 MiB at least in each thread
    plain, compressed = (forecast(uneven, name, lazy, carrier) for name in (None, "auto"))
    assert compressed >= plain
    assert compressed > plain or carrier == "auto"  # in memory all blocks take more

"""Samples of stored spectra from file to file, and their continuation with more slices."""

import math
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr
import zarr
from hypothesis import given, reject
from hypothesis import strategies as st
from records import CASES

from dask_bigfft import run, signal
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, MemoryLimitError
from dask_bigfft.runs import RunRequest, ShortTimeArguments, execute
from dask_bigfft.runs.sinks import store_now
from dask_bigfft.storage.targets import read_attributes
from dask_bigfft.testing.strategies import random_array

pytestmark = [
    pytest.mark.usefixtures("sync"),
    pytest.mark.filterwarnings("ignore:.*[Cc]onsolidated"),
]

WIN = scipy.signal.get_window("hann", 16)
ASKED = {"win": WIN, "hop": 5}


def stored(path, values, chunks, compressors=None):
    """Store values in chunks, over what is there."""
    array = zarr.create_array(
        str(path),
        shape=values.shape,
        chunks=chunks,
        dtype=values.dtype,
        overwrite=True,
        compressors=compressors,
        config={"write_empty_chunks": True},
    )
    array[...] = values
    return path


def result_of(path):
    return zarr.open_array(str(path), mode="r")[...]


def require_close(path, expected, dtype="c16"):
    result = result_of(path)
    assert result.shape == expected.shape
    is_single = result.dtype.char in "fF"
    assert is_single == (dtype == "c8")
    error = 1e-4 if dtype == "c8" else 1e-11
    atol = error * np.abs(expected).max(initial=1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=atol)


@CASES
@given(data=st.data(), dtype=st.sampled_from(["c16", "c8"]))
def test_samples_are_those_of_scipy(
    data,
    dtype,
    tmp_path,
    unsynced,
):
    size = data.draw(st.integers(2, 16))
    hop = data.draw(st.integers(1, size - 1))
    keywords = {
        "fft_mode": data.draw(st.sampled_from(["onesided", "twosided", "centered"])),
        "mfft": size + data.draw(st.integers(0, 5)),
        "scale_to": data.draw(st.sampled_from([None, "psd", "magnitude"])),
        "phase_shift": data.draw(st.sampled_from([None, 0, 1])),
        "fs": 2.0,
        "dual_win": data.draw(st.sampled_from([None, random_array((size,), "f8", 8)])),
    }
    win = random_array((size,), "f8", 5) + 10
    transform = scipy.signal.ShortTimeFFT(win, hop, **keywords)
    slices = transform.p_num(size) + data.draw(st.integers(0, 40))
    rows = data.draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    shape = (*rows, transform.f_pts, slices)
    order = data.draw(st.permutations(range(len(shape))))
    axes = {"f_axis": order.index(len(rows)), "t_axis": order.index(len(rows) + 1)}
    spectra = random_array(shape, dtype, 3).transpose(order)
    end = (slices + transform.p_min - 1) * hop + size - size // 2
    least = size - size // 2
    k0 = data.draw(st.integers(0, end - least))
    k1 = data.draw(st.one_of(st.none(), st.integers(k0 + least, end)))
    try:
        expected = transform.istft(spectra, k0, k1, **axes)
    except ValueError:  # SciPy adds slices behind the last sample, which does not work
        reject()
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    source = stored(
        folder / "in.zarr",
        spectra,
        [data.draw(st.integers(-(-length // 4), length)) for length in spectra.shape],
        data.draw(st.sampled_from(["auto", None])),  # rows of plain chunks are read alone
    )
    chunks = None
    if data.draw(st.booleans()):
        chunks = tuple(data.draw(st.integers(-(-n // 9), n)) for n in expected.shape)
    run(
        source,
        folder / "out.zarr",
        "istft",
        win=win,
        hop=hop,
        k0=k0,
        k1=k1,
        chunks=chunks,
        **axes,
        **keywords,
    )
    require_close(folder / "out.zarr", expected, dtype)


def test_a_source_of_irregular_chunks(tmp_path):
    transform = scipy.signal.ShortTimeFFT(WIN, 5, 1.0)
    spectra = random_array((2, transform.f_pts, 90), "c16", 3)
    lazy = da.from_array(spectra, chunks=((1, 1), (4, 5), (40, 1, 1, 30, 18)))
    done = run(lazy, tmp_path / "out.zarr", "istft", chunks=(1, 33), **ASKED)
    require_close(tmp_path / "out.zarr", transform.istft(spectra))
    assert zarr.open_array(str(tmp_path / "out.zarr")).chunks == (1, 33)
    assert done.columns == (0, transform.istft(spectra).shape[-1])


@pytest.mark.parametrize("compressors", ["auto", None])
def test_a_plan_says_how_blocks_are_read(tmp_path, compressors):
    spectra = random_array((9, 500), "c8", 0)
    source = stored(tmp_path / "in.zarr", spectra, (9, 70), compressors)
    report = run(source, tmp_path / "out.zarr", "istft", **ASKED)
    text = " ".join(report.plan.explain().split())
    is_read_whole = "read with all slices that reach into its samples" in text
    assert is_read_whole == (compressors is None)


@pytest.mark.parametrize("compressors", ["auto", None])
def test_blocks_shrink_to_the_memory_limit(tmp_path, compressors):
    win = scipy.signal.get_window("hann", 512)
    asked = {"win": win, "hop": 256}
    x = random_array((2**17,), "f4", 0)
    source = stored(tmp_path / "x.zarr", x, (2**14,))
    with dask.config.set(scheduler="threads", num_workers=2):
        run(
            source,
            tmp_path / "in.zarr",
            "stft",
            chunks=(-1, 64),
            compressors=compressors,
            **asked,
        )
        report = run(
            tmp_path / "in.zarr",
            tmp_path / "out.zarr",
            "istft",
            memory_limit="6 MiB",
            k1=len(x),
            **asked,
        )
        assert report.plan.expected.peak_host <= 6 * 2**20
        np.testing.assert_allclose(result_of(tmp_path / "out.zarr"), x, rtol=0, atol=1e-5)
        with pytest.raises(MemoryLimitError, match="memory_limit"):
            run(
                tmp_path / "in.zarr",
                tmp_path / "out2.zarr",
                "istft",
                memory_limit="50 kiB",
                **asked,
            )


def record(count):
    time = np.datetime64("2026-03-01T12:00", "ns") + np.arange(count) * np.timedelta64(10, "ms")
    values = random_array((2, 1000), "f4", 2)[:, :count]
    return xr.DataArray(values, {"time": time}, ("x", "time"), "p", attrs={"units": "Pa"})


def test_coordinates_come_back_and_grow(tmp_path):
    for count in (300, 301, 1000):
        array = record(count)
        array.to_dataset().to_zarr(tmp_path / "in.zarr", mode="w")
        asked = {"append": True, **ASKED}
        run(
            tmp_path / "in.zarr",
            tmp_path / "spectra.zarr",
            "stft",
            component="p",
            axis="time",
            **asked,
        )
        run(tmp_path / "spectra.zarr", tmp_path / "out.zarr", "istft", component="p", **asked)
        back = xr.open_zarr(tmp_path / "out.zarr")["p"].load()
        xr.testing.assert_allclose(back, array, rtol=1e-4, atol=1e-4)
        assert back.attrs == array.attrs
    with pytest.raises(ArgumentError, match="`fs`=7"):
        run(tmp_path / "spectra.zarr", tmp_path / "out.zarr", "istft", component="p", fs=7, **asked)


@CASES
@given(data=st.data())
def test_more_slices_have_the_samples_of_all(data, tmp_path, unsynced):
    size = data.draw(st.integers(2, 12))
    hop = data.draw(st.integers(1, size - 1))
    asked = {"win": random_array((size,), "f8", 5) + 10, "hop": hop}
    lengths = sorted(data.draw(st.lists(st.integers(2 * size, 120), min_size=2, max_size=3)))
    x = random_array((lengths[-1], 2), "f8", 1)
    is_named = data.draw(st.booleans())  # the end of the samples
    k0 = data.draw(st.integers(0, size))
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    transform = scipy.signal.ShortTimeFFT(asked["win"], hop, 1.0)
    for number, length in enumerate(lengths):
        spectra = transform.stft(x[:length], axis=0, padding="even")
        k1 = length if is_named else None
        source = stored(
            folder / "in.zarr",
            spectra,
            (spectra.shape[0], 1, data.draw(st.integers(3, 30))),
            data.draw(st.sampled_from(["auto", None])),
        )
        report = run(
            source,
            folder / "out.zarr",
            "istft",
            append=True,
            k0=k0,
            k1=k1,
            f_axis=0,
            chunks=(data.draw(st.integers(9, 60)), 2) if number == 0 else None,
            **asked,
        )
        expected = transform.istft(spectra, 0, k1, f_axis=0)[k0:]
        require_close(folder / "out.zarr", expected)
        assert report.columns[1] == len(expected)


def chunk_files(path):
    """Return the identities of the files of chunks by their names."""
    files = (file for file in (Path(path) / "c").rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_mtime_ns for file in files}


def test_only_chunks_with_changed_samples_are_computed_after_an_interruption(tmp_path):
    transform = scipy.signal.ShortTimeFFT(WIN, 5, 1.0)
    x = random_array((2000,), "f8", 0)
    out = tmp_path / "out.zarr"
    source = tmp_path / "in.zarr"
    for length in (1000, 1300):
        stored(source, transform.stft(x[:length]), (9, 20))
        request = RunRequest(
            source,
            out,
            "istft",
            slices=ShortTimeArguments(k1=length, **ASKED),
            options={"chunks": (40,)},
            append=True,
        )
        if length == 1300:

            def interrupted(result, sink):
                store_now(result[:80], sink)
                raise KeyboardInterrupt

            before = chunk_files(out)
            with pytest.raises(KeyboardInterrupt):
                execute(request, interrupted)
            assert read_attributes(out)["complete"] is False
        report = execute(request)
    changed = {name for name, time in chunk_files(out).items() if before.get(name) != time}
    first = report.columns[0]
    assert first % 40 == 0
    assert 1000 - 40 - 3 * 16 < first < 1000  # at most a chunk and the overlap before the old end
    assert len(changed) == math.ceil(1300 / 40) - first // 40
    np.testing.assert_allclose(result_of(out), x[:1300], rtol=0, atol=1e-12)


REFUSED = [
    ({"win": WIN + 1}, ArgumentError, "win"),
    ({"dual_win": WIN}, ArgumentError, "dual_win"),
    ({"k0": 1}, ArgumentError, "k0"),
    ({"k1": 250}, ArgumentError, "k1"),
    ({"kind": "stft", "k1": None}, ArgumentError, "kind|fft_mode"),
    ({"kind": "stft"}, ArgumentTypeError, "k1"),
    ({"padding": "even"}, ArgumentTypeError, "padding"),
    ({"detr": "constant"}, ArgumentTypeError, "detr"),
    ({"axis": 0}, ArgumentTypeError, "axis"),
    ({"f_axis": 1, "t_axis": 0}, ArgumentError, "f_axis"),
    ({"f_axis": 1, "append": False, "overwrite": True}, ArgumentError, "t_axis"),
    ({"f_axis": "freq_time"}, ArgumentError, "f_axis"),
    ({"scratch": "scratch"}, ArgumentTypeError, "scratch"),
    ({"hop": 17, "append": False, "overwrite": True}, ArgumentError, "win"),
    ({"kind": "fft", "win": None, "hop": None, "append": False}, ArgumentTypeError, "k1"),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_other_arguments_are_named(tmp_path, changed, kind, named):
    spectra = random_array((9, 61), "c16", 0)
    source = stored(tmp_path / "in.zarr", spectra, (9, 20))
    out = tmp_path / "out.zarr"
    asked = {"kind": "istft", "k1": 300, **ASKED}
    run(source, out, **asked)
    with pytest.raises(kind, match=f"`({named})`"):
        run(source, out, **{"append": True, **asked, **changed})
    assert read_attributes(out)["complete"]


def test_the_command_line_goes_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = random_array((600,), "f8", 3)
    stored("x.zarr", x, (100,))
    words = ["--win", "hann:16", "--hop", "5", "--scheduler", "sync"]
    assert main(["run", "x.zarr", "in.zarr", "--kind", "stft", "--quiet", *words]) == 0
    words += ["--kind", "istft", "--k1", "600"]
    assert main(["plan", "in.zarr", *words]) == 0
    assert "istft" in capsys.readouterr().out
    assert main(["run", "in.zarr", "out.zarr", "--quiet", *words]) == 0
    assert "600 samples" in capsys.readouterr().out
    np.testing.assert_allclose(result_of("out.zarr"), x, rtol=0, atol=1e-12)


def test_a_run_has_the_samples_of_the_function(tmp_path):
    spectra = random_array((9, 300), "c8", 0)
    lazy = da.from_array(spectra, chunks=(9, 50))
    run(lazy, tmp_path / "out.zarr", "istft", **ASKED)
    samples = signal.istft(lazy, fs=1.0, **ASKED)
    np.testing.assert_allclose(result_of(tmp_path / "out.zarr"), samples, rtol=0, atol=1e-5)

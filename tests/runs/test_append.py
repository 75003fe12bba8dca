"""Spectra of slices from file to file, and their continuation when the record has grown."""

import tempfile
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from records import CASES

import dask_bigfft.xarray as bx
from dask_bigfft import run
from dask_bigfft.cli import main
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, MemoryLimitError
from dask_bigfft.runs import RunRequest, ShortTimeArguments, execute
from dask_bigfft.runs.sinks import store_now
from dask_bigfft.storage.targets import read_attributes
from dask_bigfft.testing.clusters import started
from dask_bigfft.testing.strategies import random_array

pytestmark = [
    pytest.mark.usefixtures("sync"),
    pytest.mark.filterwarnings("ignore:.*[Cc]onsolidated"),
]

WIN = scipy.signal.get_window("hann", 16)
ASKED = {"win": WIN, "hop": 5}
WORDS = ["run", "in.zarr", "out.zarr", "--win", "hann:16", "--hop", "5", "--append"]


def stored(path, values, chunk=40, axis=-1, compressors="auto"):
    """Store a record in chunks along one axis, over what is there."""
    chunks = list(values.shape)
    chunks[axis] = chunk
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


def expected_of(values, kind="stft", padding="zeros", axis=-1, detr=None, **window):
    """Return SciPy's result for a whole record, in double precision."""
    transform = scipy.signal.ShortTimeFFT(
        np.array(window.pop("win")),
        window.pop("hop"),
        window.pop("fs", 1.0),
        **window,
    )
    wide = values.astype("c16" if values.dtype.kind == "c" else "f8")
    more = {} if detr is None else {"detr": detr}
    return getattr(transform, kind)(wide, padding=padding, axis=axis, **more)


def require_close(path, expected, dtype="f8"):
    result = result_of(path)
    assert result.shape == expected.shape
    error = 1e-5 if np.dtype(dtype).char in "fFe" else 1e-12
    atol = error * np.abs(expected).max(initial=1)
    np.testing.assert_allclose(result, expected, rtol=0, atol=atol)


@CASES
@given(data=st.data())
def test_a_grown_record_has_the_result_of_the_whole_one(data, tmp_path, unsynced):
    dtype = data.draw(st.sampled_from(["f8", "f4", "c16", "i2"]))
    size = data.draw(st.sampled_from([1, 2, 7, 16]))
    ndim = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-ndim, ndim - 1))
    lengths = sorted(data.draw(st.lists(st.integers(size, 90), min_size=2, max_size=3)))
    shape = [data.draw(st.integers(1, 3)) for _ in range(ndim)]
    shape[axis] = lengths[-1]
    x = random_array(shape, dtype, data.draw(st.integers(0, 9)))
    kind = data.draw(st.sampled_from(["stft", "spectrogram"]))
    asked = {
        "win": random_array((size,), "f8", 5) + 10,
        "hop": data.draw(st.integers(1, size + 3)),
        "fft_mode": "centered" if x.dtype.kind == "c" else "onesided",
        "padding": data.draw(st.sampled_from(["zeros", "edge", "even", "odd"])),
        "scale_to": data.draw(st.sampled_from([None, "psd"])),
        "fs": 2.0,
        "axis": axis,
    }
    if kind == "spectrogram" and x.dtype.kind != "c":
        asked["detr"] = data.draw(st.sampled_from([None, "constant"]))
    folder = Path(tempfile.mkdtemp(dir=tmp_path))  # the fixture's is that of all examples
    columns = data.draw(st.integers(1, 9))
    compressors = data.draw(st.sampled_from(["auto", None]))  # rows of plain chunks are read alone
    chunks = [-1] * (ndim + 1)
    chunks[-1] = columns
    out = folder / "out.zarr"
    for number, length in enumerate(lengths):
        part = x.take(range(length), axis)
        source = stored(
            folder / "in.zarr",
            part,
            data.draw(st.integers(1, 60)),
            axis,
            compressors,
        )
        report = run(
            source,
            out,
            kind,
            append=True,
            overwrite=False,
            chunks=tuple(chunks) if number == 0 else None,
            **asked,
        )
        expected = expected_of(part, kind, **asked)
        require_close(out, expected, dtype)
        assert report.columns[1] == expected.shape[-1]
        assert read_attributes(out)["complete"]
    zarr_array = zarr.open_array(str(out))
    assert zarr_array.chunks[-1] == min(columns, zarr_array.chunks[-1])


def chunk_files(path):
    """Return the identities of the files of chunks by their names."""
    files = (file for file in (Path(path) / "c").rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_mtime_ns for file in files}


def test_only_chunks_with_changed_columns_are_computed(tmp_path):
    x = random_array((2, 2000), "f8", 0)
    source = stored(tmp_path / "in.zarr", x[:, :1000])
    out = tmp_path / "out.zarr"
    whole = run(source, out, "stft", chunks=(-1, -1, 20), **ASKED)
    assert whole.columns[0] == 0
    before = chunk_files(out)
    stored(tmp_path / "in.zarr", x[:, :1300])
    report = run(source, out, "stft", append=True, **ASKED)
    after = chunk_files(out)
    changed = {name for name, time in after.items() if before.get(name) != time}
    first_column, count = report.columns
    assert first_column % 20 == 0
    assert 1000 // 5 - 20 - 4 < first_column <= 1000 // 5  # at most a chunk before the old end
    assert len(changed) == -(-count // 20) - first_column // 20
    assert report.read < 0.4 * x[:, :1300].nbytes
    require_close(out, expected_of(x[:, :1300], **ASKED))
    again = run(source, out, "stft", append=True, **ASKED)
    assert again.already
    assert again.columns[0] == again.columns[1]
    assert chunk_files(out) == after


def request_of(source, out, **more):
    return RunRequest(source, out, "stft", slices=ShortTimeArguments(**ASKED), **more)


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_an_interrupted_append_is_resumed(tmp_path, blocks):
    x = random_array((900,), "f8", 1)
    source = stored(tmp_path / "in.zarr", x[:400])
    out = tmp_path / "out.zarr"
    run(source, out, "stft", chunks=(-1, 7), **ASKED)
    stored(source, x[:800])

    def interrupted(result, sink):
        if blocks:
            store_now(result[..., : 7 * blocks], sink)
        raise KeyboardInterrupt

    request = request_of(source, out, append=True)
    with pytest.raises(KeyboardInterrupt):
        execute(request, interrupted)
    assert read_attributes(out)["complete"] is False
    with pytest.raises(ArgumentError, match=r"`win`=.*append=True"):
        run(source, out, "stft", append=True, win=WIN + 1, hop=5)
    stored(source, x)  # it has grown again
    execute(request)
    assert read_attributes(out)["complete"]
    require_close(out, expected_of(x, **ASKED))


def test_a_longer_attempt_that_failed_leaves_no_columns(tmp_path):
    x = random_array((900,), "f8", 1)
    source = stored(tmp_path / "in.zarr", x[:400])
    out = tmp_path / "out.zarr"
    run(source, out, "stft", chunks=(-1, 7), **ASKED)

    def fails(result, sink):
        store_now(result, sink)
        raise OSError("the disk is full")

    stored(source, x)
    with pytest.raises(OSError, match="disk is full"):
        execute(request_of(source, out, append=True), fails)
    stored(source, x[:500])
    run(source, out, "stft", append=True, **ASKED)
    require_close(out, expected_of(x[:500], **ASKED))


def test_an_interrupted_first_run_leaves_nothing(tmp_path):
    source = stored(tmp_path / "in.zarr", np.ones(300))

    def interrupted(result, sink):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(request_of(source, tmp_path / "out.zarr", append=True), interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["in.zarr"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_second_append_at_the_same_time_is_refused(tmp_path, is_begun):
    """In this process and in another one; the result is that of the first."""
    x = random_array((800,), "f8", 1)
    source = stored(tmp_path / "in.zarr", x[:400])
    out = tmp_path / "out.zarr"
    if is_begun:
        run(source, out, "stft", chunks=(-1, 7), **ASKED)
    stored(source, x)
    exit_codes = []

    def stores_beside_others(result, sink):
        with pytest.raises(ArgumentError, match=r"`destination`.*no other run is appending"):
            run(source, out, "stft", append=True, **ASKED)
        process = started(run, source, out, "stft", append=True, **ASKED)
        process.join(120)
        exit_codes.append(process.exitcode)
        store_now(result, sink)

    execute(request_of(source, out, append=True), stores_beside_others)
    assert exit_codes == [1]
    require_close(out, expected_of(x, **ASKED))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr", "out.zarr"]


def test_the_lock_of_a_killed_append_is_taken(tmp_path):
    source = stored(tmp_path / "in.zarr", np.ones(300))
    out = tmp_path / "out.zarr"
    left = tmp_path / "out.zarr.appending"
    left.mkdir()
    (left / "lock").touch()
    run(source, out, "stft", append=True, **ASKED)
    assert not left.exists()
    with pytest.raises(ArgumentError, match="`destination`"):
        run(source, tmp_path / "missing" / "out.zarr", "stft", append=True, **ASKED)


REFUSED = [
    ({"win": WIN + 1}, ArgumentError, "win"),
    ({"win": WIN[:9]}, ArgumentError, "win"),
    ({"hop": 4}, ArgumentError, "hop"),
    ({"fs": 3.0}, ArgumentError, "fs"),
    ({"fft_mode": "twosided"}, ArgumentError, "fft_mode"),
    ({"mfft": 20}, ArgumentError, "mfft"),
    ({"scale_to": "psd"}, ArgumentError, "scale_to"),
    ({"phase_shift": 1}, ArgumentError, "phase_shift"),
    ({"padding": "even"}, ArgumentError, "padding"),
    ({"kind": "spectrogram"}, ArgumentError, "kind"),
    ({"chunks": (-1, 3)}, ArgumentError, "chunks"),
    ({"inner_chunks": (1, 1)}, ArgumentError, "inner_chunks"),
    ({"compressors": None}, ArgumentError, "compressors"),
    ({"overwrite": True}, ArgumentTypeError, "overwrite"),
    ({"scratch": "scratch"}, ArgumentTypeError, "scratch"),
    ({"append": 1}, ArgumentTypeError, "append"),
    ({"kind": "fft", "win": None, "hop": None}, ArgumentTypeError, "append"),
    ({"kind": "fft", "append": False}, ArgumentTypeError, "win"),
    ({"hop": None}, ArgumentTypeError, "hop"),
    ({"detr": "constant"}, ArgumentTypeError, "detr"),
    ({"axes": (0,)}, ArgumentTypeError, "axes"),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_other_arguments_are_named(tmp_path, changed, kind, named):
    source = stored(tmp_path / "in.zarr", np.ones(300))
    out = tmp_path / "out.zarr"
    run(source, out, "stft", chunks=(-1, 7), **ASKED)
    with pytest.raises(kind, match=f"`{named}`"):
        run(source, out, **{"kind": "stft", "append": True, **ASKED, **changed})
    assert read_attributes(out)["complete"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (np.ones(299), "299 samples"),
        (np.ones(400, "f4"), "float32"),
        (np.ones((1, 400)), "source|axis"),
    ],
)
def test_another_source_is_named(tmp_path, values, named):
    source = stored(tmp_path / "in.zarr", np.ones(300))
    run(source, tmp_path / "out.zarr", "stft", **ASKED)
    with pytest.raises(ArgumentError, match=named):
        run(stored(source, values), tmp_path / "out.zarr", "stft", append=True, **ASKED)


def test_what_is_no_result_is_not_continued(tmp_path):
    source = stored(tmp_path / "in.zarr", np.ones(300))
    run(source, tmp_path / "out.zarr", "fft")
    with pytest.raises(ArgumentError, match="`destination`"):
        run(source, tmp_path / "out.zarr", "stft", append=True, **ASKED)


def record(count):
    time = np.datetime64("2026-03-01T12:00", "ns") + np.arange(count) * np.timedelta64(10, "ms")
    values = random_array((2, 1000), "f4", 2)[:, :count]
    return xr.DataArray(values, {"time": time}, ("x", "time"), "p", attrs={"units": "Pa"})


@pytest.mark.parametrize("kind", ["stft", "spectrogram"])
def test_coordinates_grow_with_the_result(tmp_path, kind):
    out = tmp_path / "out.zarr"
    for count in (300, 301, 1000):
        array = record(count)
        array.to_dataset().to_zarr(tmp_path / "in.zarr", mode="w")
        run(
            tmp_path / "in.zarr",
            out,
            kind,
            component="p",
            axis="time",
            append=True,
            chunks=(1, -1, 10) if count == 300 else None,
            **ASKED,
        )
        result = xr.open_zarr(out)["p"]
        expected = getattr(bx, kind)(array.chunk(), "time", **ASKED)
        xr.testing.assert_allclose(result.load(), expected.compute(), rtol=1e-4, atol=1e-4)
        assert result.attrs == expected.attrs
    with pytest.raises(ArgumentError, match="`fs`=7"):
        run(tmp_path / "in.zarr", out, kind, component="p", axis="time", append=True, fs=7, **ASKED)


def test_lazy_records_are_continued(tmp_path):
    x = random_array((3, 700), "f8", 3)
    out = tmp_path / "out.zarr"
    for count in (300, 700):
        lazy = da.from_array(x[:, :count], chunks=(2, 90))
        run(lazy, out, "spectrogram", append=True, **ASKED)
    require_close(out, expected_of(x, "spectrogram", **ASKED))


def test_blocks_shrink_to_the_memory_limit(tmp_path):
    source = stored(tmp_path / "in.zarr", random_array((4, 2**17), "f4", 0), 2**14)
    with dask.config.set(scheduler="threads", num_workers=2):
        report = run(source, tmp_path / "out.zarr", "stft", memory_limit="12 MiB", **ASKED)
        assert report.plan.expected.peak_host <= 12 * 2**20
        require_close(tmp_path / "out.zarr", expected_of(result_of(source), **ASKED), "f4")
        with pytest.raises(MemoryLimitError, match="memory_limit"):
            run(source, tmp_path / "out2.zarr", "stft", memory_limit="50 kiB", **ASKED)


def test_shards_are_continued(tmp_path):
    x = random_array((600,), "f8", 3)
    out = tmp_path / "out.zarr"
    for count in (300, 600):
        source = stored(tmp_path / "in.zarr", x[:count])
        more = {"chunks": (-1, 8), "inner_chunks": (9, 2)} if count == 300 else {}
        run(source, out, "stft", append=True, **more, **ASKED)
    require_close(out, expected_of(x, **ASKED))


def test_the_command_line_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = random_array((600,), "f8", 3)
    words = [
        "run",
        "in.zarr",
        "out.zarr",
        "--kind",
        "spectrogram",
        "--win",
        "hann:16",
        "--hop",
        "5",
        "--append",
    ]
    for count in (300, 600):
        stored("in.zarr", x[:count])
        assert main([*words, "--scheduler", "sync", "--quiet"]) == 0
    require_close("out.zarr", expected_of(x, "spectrogram", **ASKED))
    assert "spectrogram" in capsys.readouterr().out
    assert main([*words, "--scheduler", "sync", "--quiet"]) == 0
    assert "already done" in capsys.readouterr().out
    stored("in.zarr", x[:200])
    assert main([*words, "--scheduler", "sync"]) == 2
    assert "at least the 600 samples" in capsys.readouterr().err
    plan_words = [word for word in words if word not in ("run", "out.zarr", "--append")]
    assert main(["plan", *plan_words, "--scheduler", "sync"]) == 0
    assert "segments" in capsys.readouterr().out


def test_the_command_line_names_an_incomplete_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored("in.zarr", np.ones(300))
    words = [
        "run",
        "in.zarr",
        "out.zarr",
        "--kind",
        "stft",
        "--win",
        "hann:16",
        "--hop",
        "5",
        "--append",
    ]
    assert main([*words, "--scheduler", "sync", "--quiet"]) == 0
    stored("in.zarr", np.ones(600))

    def fails(self, index, values):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr("dask_bigfft.storage.targets.Target.write", fails)
        assert main([*words, "--scheduler", "sync", "--quiet"]) == 1
    assert (
        "--append completes it" in capsys.readouterr().err
        or not read_attributes("out.zarr")["complete"]
    )
    assert main([*words, "--scheduler", "sync", "--quiet"]) == 0
    require_close("out.zarr", expected_of(np.ones(600), **ASKED))


def test_requests_are_values():
    request = request_of(Path("."), Path("out"))
    assert replace(request, append=True).is_short_time


@pytest.mark.parametrize("compressors", ["auto", None])
def test_a_plan_says_how_blocks_are_read(tmp_path, compressors):
    x = random_array((2, 5000), "f8", 0)
    source = stored(
        tmp_path / "in.zarr",
        x,
        700,
        compressors=compressors,
    )
    report = run(source, tmp_path / "out.zarr", "stft", **ASKED)
    text = " ".join(report.plan.explain().split())
    is_read_whole = "read with all samples of its segments" in text
    assert is_read_whole == (compressors is None)


def test_a_bare_record_gets_coordinates_by_names_and_a_rate(tmp_path):
    x = random_array((2, 700), "f8", 3)
    out = tmp_path / "out.zarr"
    asked = {"append": True, "fs": 50.0, "dims": ("channel", "time"), **ASKED}
    for count in (300, 700):
        source = stored(tmp_path / "in.zarr", x[:, :count])
        done = run(source, out, "stft", **asked)
        result = xr.open_zarr(out)[done.component].load()
        transform = scipy.signal.ShortTimeFFT(WIN, 5, 50.0)
        assert result.dims == ("channel", "freq_time", "time")
        np.testing.assert_allclose(result, transform.stft(x[:, :count]), rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.freq_time, transform.f)
        np.testing.assert_allclose(result.time, transform.t(count), atol=1e-12)
    with pytest.raises(ArgumentError, match="`dims`"):
        run(source, out, "stft", **asked | {"dims": None})
    back = tmp_path / "back.zarr"
    run(out, back, "istft", component=done.component, **ASKED)
    (samples,) = xr.open_zarr(back).data_vars.values()
    np.testing.assert_allclose(samples, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(samples.time, np.arange(700) / 50)


@pytest.mark.parametrize(
    ("dims", "kind"),
    [
        (("time",), ArgumentError),
        (("time", "time"), ArgumentError),
        (["a", "time"], ArgumentTypeError),
        ("at", ArgumentTypeError),
        (("a", 1), ArgumentError),
    ],
)
def test_other_names_are_refused(tmp_path, dims, kind):
    source = stored(tmp_path / "in.zarr", np.ones((2, 300)))
    with pytest.raises(kind, match="`dims`"):
        run(source, tmp_path / "out.zarr", "stft", dims=dims, **ASKED)


@pytest.mark.parametrize("kind", ["stft", "spectrogram"])
def test_a_window_may_be_a_text_as_on_the_command_line(tmp_path, kind):
    source = stored(tmp_path / "in.zarr", random_array((300,), "f8", 5))
    np.save(tmp_path / "win.npy", WIN)
    run(source, tmp_path / "out.zarr", kind, **ASKED)
    for number, text in enumerate(["hann:16", str(tmp_path / "win.npy")]):
        run(source, tmp_path / f"{number}.zarr", kind, win=text, hop=5)
        require_close(tmp_path / f"{number}.zarr", result_of(tmp_path / "out.zarr"))


@pytest.mark.parametrize("text", ["hann", "hann:many", "no_window:16", "tukey:a:16", "gone.npy"])
def test_another_text_is_no_window(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    stored("in.zarr", np.ones(300))
    with pytest.raises(ArgumentError, match=rf"^`win`='{text}' .*'hann:1024'"):
        run("in.zarr", "out.zarr", "stft", win=text, hop=5)
    assert main([*WORDS[:4], text, *WORDS[5:], "--kind", "stft", "--scheduler", "sync"]) == 2
    assert f"`--win`='{text}' is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["stft", "spectrogram"])
def test_a_window_that_is_too_long_is_named(tmp_path, kind):
    source = stored(tmp_path / "in.zarr", np.ones((2, 7)))
    with pytest.raises(ArgumentError, match=r"`win`='16 samples'.*twice the 7 samples .* axis 1"):
        run(source, tmp_path / "out.zarr", kind, **ASKED)
    run(source, tmp_path / "out.zarr", kind, win=WIN[1:15], hop=5)


def test_names_of_the_source_stay(tmp_path):
    record(300).to_dataset().to_zarr(tmp_path / "in.zarr")
    asked = {"component": "p", "dims": ("a", "b"), **ASKED}
    with pytest.raises(ArgumentError, match=r"`dims`.*'x', 'time'"):
        run(tmp_path / "in.zarr", tmp_path / "out.zarr", "stft", **asked)

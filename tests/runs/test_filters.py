"""Filters from file to file: results, resumed runs, and arguments that do not go together."""

from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
import pytest
import zarr

from dask_bigfft import run, signal
from dask_bigfft.cli import main
from dask_bigfft.cli.arguments import parser
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.runs import RunRequest, execute


def smooth(*frequencies):
    return np.exp(-sum(f**2 for f in frequencies) * 9)


def sharp(*frequencies):
    return 1 + sum(f**2 for f in frequencies)


def expected_of(x, function):
    frequencies = np.meshgrid(*map(np.fft.fftfreq, x.shape), indexing="ij", sparse=True)
    return np.fft.ifftn(np.fft.fftn(x) * function(*frequencies)).real


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((24, 36))


@pytest.fixture
def source(x, tmp_path):
    path = tmp_path / "in.zarr"
    array = zarr.create_array(str(path), shape=x.shape, chunks=(6, 36), dtype=x.dtype)
    array[...] = x
    return path


def test_a_file_becomes_a_filtered_file(x, source, tmp_path):
    done = run(source, tmp_path / "out.zarr", "fourier_filter", transfer=smooth)
    assert done.plan.spec.transfer
    assert done.plan.notation in done.plan.explain(details=True)
    result = zarr.open_array(str(tmp_path / "out.zarr"))[...]
    np.testing.assert_allclose(result, expected_of(x, smooth), atol=1e-12)


@pytest.mark.parametrize("as_dask", [False, True])
@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_an_array_multiplies(x, source, tmp_path, scratch, as_dask):
    h = np.random.default_rng(2).standard_normal((24, 19))
    transfer = da.from_array(h, chunks=7) if as_dask else h
    folder = None if scratch is None else tmp_path / scratch
    run(
        source,
        tmp_path / "out.zarr",
        "fourier_filter",
        transfer=transfer,
        scratch=folder,
    )
    result = zarr.open_array(str(tmp_path / "out.zarr"))[...]
    expected = np.fft.irfftn(np.fft.rfftn(x) * h, x.shape, (0, 1))
    np.testing.assert_allclose(result, expected, atol=1e-12)


@pytest.mark.parametrize("scratch", [False, True])
def test_a_band_is_kept(x, source, tmp_path, scratch):
    folder = tmp_path / "scratch" if scratch else None
    band = {0: (-0.2, 0.2), 1: (0, 0.25)}
    done = run(
        source,
        tmp_path / "out.zarr",
        "fourier_filter",
        transfer=smooth,
        band=band,
        scratch=folder,
        block_size="2 KiB",
    )
    assert done.plan.spec.windows_between

    def smooth_in_band(fy, fx):
        return smooth(fy, fx) * (np.abs(fy) < 0.2 + 1e-9) * (np.abs(fx) < 0.25 + 1e-9)

    result = zarr.open_array(str(tmp_path / "out.zarr"))[...]
    np.testing.assert_allclose(result, expected_of(x, smooth_in_band), atol=1e-12)


def test_a_resumed_run_needs_the_same_transfer_function(x, source, tmp_path):
    out = tmp_path / "out.zarr"
    request = RunRequest(
        source,
        out,
        "fourier_filter",
        transfer=smooth,
        scratch=tmp_path / "scratch",
        resume=True,
        block_size="2 KiB",
    )

    def interrupted(result, sink):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(request, interrupted)
    with pytest.raises(ArgumentError, match="transfer"):
        execute(replace(request, transfer=sharp))
    assert not execute(request).already
    np.testing.assert_allclose(zarr.open_array(str(out))[...], expected_of(x, smooth), atol=1e-12)
    assert execute(request).already


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"kind": "fourier_filter"}, "transfer"),
        ({"kind": "fourier_filter", "transfer": smooth, "n": 4}, "`n`"),
        ({"kind": "fourier_filter", "transfer": smooth, "norm": "ortho"}, "norm"),
        ({"kind": "fourier_filter", "transfer": smooth, "order": "transposed"}, "order"),
        ({"kind": "fourier_filter", "transfer": smooth, "band_index": {0: (0, 4)}}, "band_index"),
        ({"kind": "fftn", "transfer": smooth}, "transfer"),
        ({"kind": "fftn", "spacing": 2.0}, "spacing"),
        ({"kind": "fourier_filter", "transfer": smooth, "spacing": -1}, "spacing"),
    ],
)
def test_arguments_that_do_not_go_together_are_named(arguments, named, source, tmp_path):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=named):
        run(source, tmp_path / "out.zarr", **arguments)


def test_the_command_line_takes_a_function():
    words = ["run", "in.npy", "out.zarr", "--kind", "fourier_filter"]
    args = parser().parse_args([*words, "--transfer", "numpy:exp", "--spacing", "0.5,0.25"])
    assert args.transfer is np.exp
    assert args.spacing == (0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "by_name"),
    [
        ("lowpass:0.1", partial(signal.lowpass, cutoff=0.1)),
        ("highpass:0.2:butterworth", partial(signal.highpass, cutoff=0.2, edge="butterworth")),
        ("bandpass:0.1:0.2:sharp", partial(signal.bandpass, band=(0.1, 0.2), edge="sharp")),
        ("bandstop:0.1:.3", partial(signal.bandstop, band=(0.1, 0.3))),
    ],
)
def test_filters_by_name(source, x, tmp_path, text, by_name):
    expected = by_name(x).compute()
    run(source, tmp_path / "out.zarr", "fourier_filter", transfer=text)
    result = zarr.open_array(tmp_path / "out.zarr")[:]
    np.testing.assert_allclose(result, expected, atol=1e-13)
    arguments = [
        "run",
        str(source),
        str(tmp_path / "other.zarr"),
        "--kind",
        "fourier_filter",
        "--transfer",
        text,
    ]
    assert main(arguments) == 0
    other_result = zarr.open_array(tmp_path / "other.zarr")[:]
    np.testing.assert_array_equal(other_result, result)


@pytest.mark.parametrize(
    "text",
    [
        "lowpass",
        "lowpass:0.1:0.2:sharp",
        "lowpass:0.1:round",
        "bandpass:0.1",
        "lowpass:-1",
        "sinc:1",
    ],
)
def test_texts_that_describe_no_filter(source, tmp_path, text):
    with pytest.raises(ArgumentError, match=r"`transfer`.*'lowpass:0.1'"):
        run(source, tmp_path / "out.zarr", "fourier_filter", transfer=text)

"""The memory contract of functions in `signal`: peak <= forecast <= limit."""

import pytest
from laws.peak_of_signals import of_signals
from laws.peak_of_slices import of_samples, of_slices
from laws.peaks import measured
from laws.test_memory import MIB, OBJECTS

LONG = [2**24], [2**20]
WIDE = [64, 2**18], [16, 2**16]
SPECTRA = [513, 2**15], [513, 2**11]
ROWS = [4, 513, 2**12], [2, 513, 2**9]

#: Shape, chunks, dtype, forecast or limit in MiB, and options, and the least part that is used.
FORECAST = {
    "stft": (*LONG, "f4", 512, {}, 0.5),
    "stft of rows": (*WIDE, "f8", 1024, {}, 0.5),
    "stft, complex": (*LONG, "c16", 1024, {"fft_mode": "centered"}, 0.5),
    "stft along axis 0": ([2**18, 16], [2**16, 4], "f4", 512, {"axis": 0}, 0.4),
    "spectrogram": (*LONG, "f4", 512, {}, 0.5),
    "spectrogram of rows": (*WIDE, "f4", 512, {"detr": "constant"}, 0.5),
    "istft": (*SPECTRA, "c8", 512, {}, 0.5),
    "istft of rows": (*ROWS, "c16", 512, {}, 0.4),
    "istft, both halves": (
        [1024, 2**13],
        [1024, 2**10],
        "c16",
        512,
        {"fft_mode": "twosided"},
        0.4,
    ),
}


@pytest.mark.parametrize("case", FORECAST)
def test_short_time_transforms_take_no_more_than_forecast(case, tmp_path):
    shape, chunks, dtype, limit, options, least = FORECAST[case]
    function = case.partition(" ")[0].strip(",")
    job = [function, shape, chunks, dtype, limit * MIB, options]
    peak, figures = measured(of_signals, tmp_path, job)
    assert figures["peak"] <= limit * MIB
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + OBJECTS


#: Samples of a record, samples of its chunks, compressors, columns of a chunk of the result, and
#: the least part of the forecast that is used.
RECORDS = {
    "read": (2**25, 2**20, None, 4096, 0.7),
    "decoded": (2**24, 2**22, "auto", 512, 0.4),
}


@pytest.mark.parametrize("case", RECORDS)
def test_slices_of_files_take_no_more_than_forecast(case, tmp_path):
    *job, least = RECORDS[case]
    peak, figures = measured(of_slices, tmp_path, job, cgroups=False)
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + OBJECTS


#: The same of spectra that are transformed back.
SPECTRA_IN_FILES = {
    "read": (2**24, 2**20, None, 2048, 0.6),
    "decoded": (2**24, 2**20, "auto", 1024, 0.3),
}


@pytest.mark.parametrize("case", SPECTRA_IN_FILES)
def test_samples_of_files_take_no_more_than_forecast(case, tmp_path):
    *job, least = SPECTRA_IN_FILES[case]
    peak, figures = measured(of_samples, tmp_path, job, cgroups=False)
    assert least * figures["peak"] <= peak.nbytes <= figures["peak"] + OBJECTS


CUBE = [256, 256, 256], [4, 256, 256]
HALF_CUBE = [256, 256, 128], [4, 256, 128]
ROWS_OF_PLANES = [2**14, 2**10], [2**8, 2**10]

#: Bytes of Python objects of graphs of a few thousand tasks, which vary from run to run.
SMALL_OBJECTS = 2 * MIB

#: Shape, chunks and dtype of an array that is larger than its memory limit in MiB, and options.
LIMITED = {
    "fill_gaps": (*HALF_CUBE, "f4", 30, {"band": 0.1, "iterations": 2, "tolerance": 0.9}),
    "convolve_masked": (*CUBE, "f4", 40, {"kernel": [65, 65, 65]}),
    "convolve_masked, file": (*HALF_CUBE, "f4", 30, {"kernel": [9, 9, 9], "preserve_nan": True}),
    "convolve_masked, wrapped": (*CUBE, "f4", 40, {"kernel": [5, 5, 5], "boundary": "wrap"}),
    "convolve_masked, zeros": (
        *ROWS_OF_PLANES,
        "f8",
        60,
        {"kernel": [301, 5], "nan_treatment": "fill", "preserve_nan": True},
    ),
}


@pytest.mark.parametrize("case", LIMITED)
def test_functions_keep_to_their_limit(case, tmp_path):
    shape, chunks, dtype, limit, options = LIMITED[case]
    function, _, variant = case.partition(", ")
    if variant == "file":
        options = {**options, "file": str(tmp_path / "x.zarr")}
    job = [function, shape, chunks, dtype, limit * MIB, options]
    peak, figures = measured(of_signals, tmp_path, job, cgroups=False)
    assert figures["nbytes"] > limit * MIB >= figures["peak"]
    assert peak.nbytes <= limit * MIB + SMALL_OBJECTS
    assert peak.nbytes <= figures["peak"] + OBJECTS

"""What tests of runs that are killed and resumed share: one run, and what lies in its folders."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from support import listening

import dask_bigfft
from dask_bigfft.errors import ArgumentError
from dask_bigfft.exchange.scratch import RESULT, records

RNG = np.random.default_rng(11)
N = 2**12
BLOCK = 2**8
NBYTES = BLOCK * 16

ASKED = {"kind": "fft", "block_size": NBYTES}


def complex_values(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


def values_of(name):
    return pytest.importorskip("zarr").open_array(name, mode="r")[...]


def contents(folder):
    """All files of a folder, by their names in it."""
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def stored(name, values, chunks, **options):
    pytest.importorskip("zarr").create_array(name, data=values, chunks=chunks, **options)
    return values


def files(folder):
    """What lies in a folder, but for the record of how it came to be."""
    by_path = contents(folder)
    text = json.loads(by_path.pop("zarr.json"))
    for name in ("run", "identity"):
        text["attributes"]["dask_bigfft"].pop(name, None)
    return by_path, text


def again(scratch="scratch", **options):
    requested = {**ASKED, "scratch": scratch, "resume": True, **options}
    return dask_bigfft.run("in.zarr", "out.zarr", **requested)


def done_so_far():
    scratch = Path("scratch")
    numbers = [len(records(scratch, f"exchange{i}")) for i in (1, 2, 3)]
    return [*numbers, len(records(scratch, RESULT))]


def command(more, destination="out.zarr", size=f"{NBYTES}B"):
    """The command line of a run in a scratch folder."""
    words = f"run in.zarr {destination} --kind fft --scratch scratch --quiet --block-size {size}"
    return [*words.split(), *more.split()]


@contextlib.contextmanager
def when_first_stored(call):
    """Do something when the first block of a result is stored."""
    left = [call]

    def sink(name, numbers):
        if name == "sink_write" and left:
            left.pop()()

    with listening(sink):
        yield
    assert not left


def close(values, wanted, most=1e-13):
    """Whether a result, or an array of a name, is right."""
    if isinstance(values, str | Path):
        values = values_of(values)
    return np.linalg.norm(values - wanted) < most * np.linalg.norm(wanted)


def refused_unless_filled(source, text, values, **requested):
    """Whatever is missing is refused by name, and is zero where it is meant so."""
    with pytest.raises(ArgumentError, match=text):
        dask_bigfft.run(source, "out.zarr", **requested)
    assert not Path("out.zarr").exists()
    dask_bigfft.run(source, "out.zarr", **requested, missing_chunks="fill")
    assert close("out.zarr", np.fft.fftn(values))

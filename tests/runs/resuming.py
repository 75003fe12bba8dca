"""What tests of runs that are killed and resumed share: one run, and what lies in its folders."""

import json
from pathlib import Path

import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.exchange.scratch import recorded_blocks

RNG = np.random.default_rng(11)
N, BLOCK = 2**12, 2**8
NBYTES = BLOCK * 16

ASKED = {"kind": "fft", "block_size": NBYTES}


def stored(name, values, chunks, **options):
    array = pytest.importorskip("zarr").create_array(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype, **options
    )
    array[...] = values
    return values


def files(folder):
    """What lies in a folder, but for the record of how it came to be."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    text = json.loads(found.pop("zarr.json"))
    for name in ("run", "identity"):
        text["attributes"]["dask_bigfft"].pop(name, None)
    return found, text


def again(scratch="scratch", **options):
    return dask_bigfft.run("in.zarr", "out.zarr", **ASKED, scratch=scratch, resume=True, **options)


def done_so_far():
    scratch = Path("scratch")
    numbers = [len(recorded_blocks(scratch, f"exchange{i}")) for i in (1, 2, 3)]
    return [*numbers, len(recorded_blocks(scratch, None))]

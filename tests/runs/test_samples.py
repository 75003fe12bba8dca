"""A sample of a stored block has a value of every 4 KiB of its file."""

from pathlib import Path

import numpy as np
import pytest

from dask_bigfft.runs.lost import PAGE, sample_of

zarr = pytest.importorskip("zarr")

SHAPES = [
    # block, chunk, of values that have other types in memory
    ((2**15,), (2**15,), "f8"), ((100, 77), (100, 77), "c16"), ((100, 77), (100, 100), "f4"),
    ((3, 5000), (3, 5000), "c8"), ((64, 96), (32, 24), "c16"), ((12, 10, 300), (4, 5, 100), "f8"),
    ((3, 2, 5, 700), (3, 2, 5, 700), "c8"), ((64, 2, 1), (64, 2, 1), "f8"),
    ((9, 1300), (9, 1300), "f2"),
]


def is_noticed(array, chunk, sample):
    try:
        return sample_of(array[...], chunk) != sample
    except ValueError:  # the index of a shard has a checksum of its own
        return True


@pytest.mark.parametrize(("block", "chunk", "dtype"), SHAPES)
def test_every_page_that_is_lost_is_noticed(tmp_path, block, chunk, dtype):
    """In the file as zarr writes it; the last page may hold nothing but the index of a shard."""
    memory = "f4" if dtype == "f2" else dtype
    values = np.random.default_rng(0).uniform(1, 2, block).astype(memory)
    whole = tuple(-(-n // c) * c for n, c in zip(block, chunk, strict=True))
    array = zarr.create_array(str(tmp_path / "a"), shape=block, chunks=chunk, dtype=dtype,
                              shards=whole if whole != chunk else None, compressors=None)
    array[...] = values
    sample = sample_of(values, chunk, np.dtype(dtype))
    assert sample_of(array[...], chunk) == sample
    (path,) = [path for path in Path(tmp_path, "a/c").rglob("*") if path.is_file()]
    data = path.read_bytes()
    for begin in range(0, len(data), PAGE):
        page = data[begin : begin + PAGE]
        if any(page):  # else it is beyond the end of the array
            path.write_bytes(data[:begin] + bytes(len(page)) + data[begin + PAGE :])
            assert is_noticed(array, chunk, sample), begin
    path.write_bytes(data)
    assert sample_of(array[...], chunk) == sample

"""Files around the page cache: the same bytes, whatever is aligned and whatever is refused."""

import errno
import os

import dask
import numpy as np
import pytest

from dask_bigfft import files
from dask_bigfft.memory import lend

RNG = np.random.default_rng(3)


def aligned(size: int, shift: int = 0) -> np.ndarray:
    return lend((size + shift + (1 << 20),), np.uint8)[shift : shift + size]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("begin", [0, 4096, 100])
@pytest.mark.parametrize("shift", [0, 64])
@pytest.mark.parametrize("size", [0, 5, files.LEAST, files.LEAST + 4095, 9_000_001])
def test_bytes_go_where_they_belong(tmp_path, direct, begin, shift, size):
    path = tmp_path / "file"
    wanted = bytearray(RNG.bytes(size + begin + 5000))
    path.write_bytes(wanted)
    data = aligned(size, shift)
    data[:] = np.frombuffer(RNG.bytes(size), np.uint8)
    with (
        dask.config.set({"bigfft.scratch.direct": direct}),
        files.opened(path, os.O_RDWR) as file,
    ):
        assert (file.direct is not None) <= direct
        assert file.write(data, begin) == size
        out = aligned(size, shift)
        assert file.read(out, begin) == size
    wanted[begin : begin + size] = data.tobytes()
    assert path.read_bytes() == wanted
    assert out.tobytes() == data.tobytes()


def test_a_file_that_ends_early(tmp_path):
    path = tmp_path / "file"
    data = RNG.bytes(files.LEAST + 4096 + 17)
    path.write_bytes(data)
    out = aligned(1 << 20)
    with files.opened(path, os.O_RDONLY) as file:
        assert file.read(out, 0) == len(data)
        assert file.read(out, 4096) == len(data) - 4096
    assert out[: len(data) - 4096].tobytes() == data[4096:]


def test_a_file_system_that_wants_other_units(tmp_path, monkeypatch):
    """What it refuses goes the ordinary way."""
    path, calls, real = tmp_path / "file", [], os.pwritev

    def pwritev(handle, buffers, begin):
        calls.append(handle)
        if handle == file.direct:
            raise OSError(errno.EINVAL, "no")
        return real(handle, buffers, begin)

    monkeypatch.setattr(os, "pwritev", pwritev)
    data = aligned(1 << 20)
    data[:] = 7
    with files.opened(path, os.O_RDWR | os.O_CREAT) as file:
        if file.direct is None:
            pytest.skip("this file system does not go around the page cache")
        assert file.write(data, 0) == len(data)
    assert len(calls) == 2
    assert path.read_bytes() == data.tobytes()


def test_other_errors_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError), files.opened(tmp_path / "none", os.O_RDONLY):
        pass
    (tmp_path / "file").write_bytes(b"1")
    with files.opened(tmp_path / "file", os.O_RDONLY) as file, pytest.raises(OSError, match="Bad"):
        file.write(np.zeros(8, np.uint8), 0)

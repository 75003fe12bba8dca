"""Arrays of cubed go through Zarr within their memory, and come back as arrays of cubed."""

import numpy as np
import pytest
import xarray as xr

from dask_bigfft import fft, run
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

cubed = pytest.importorskip("cubed")

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def spec(tmp_path):
    return cubed.Spec(work_dir=str(tmp_path / "work"), allowed_mem="200MB")


@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((30, 48), (7, 20), "fft2"),
        ((97,), (20,), "rfft"),
        ((1, 12, 5), (1, 5, 5), "fftn"),
    ],
)
def test_there_and_back(
    tmp_path,
    spec,
    shape,
    chunks,
    name,
):
    x = random_array(shape, "f8", 1)
    array = cubed.from_array(x, chunks=chunks, spec=spec) * 2
    done = run(array, tmp_path / "out.zarr", name)
    result = done.open()
    assert isinstance(result, cubed.Array)
    assert result.spec == spec
    expected = getattr(np.fft, name)(2 * x)
    assert relative_l2((result + 1).compute(), expected + 1) < 1e-14
    assert {path.name for path in tmp_path.iterdir()} <= {"out.zarr", "work"}


def test_memory_is_that_of_the_specification(tmp_path):
    spec = cubed.Spec(work_dir=str(tmp_path / "work"), allowed_mem="200MB")
    array = cubed.from_array(np.ones((64, 64)), chunks=16, spec=spec)
    done = run(array, tmp_path / "out.zarr", "fft2")
    assert done.plan.machine.memory_limit == 200_000_000
    done = run(array, tmp_path / "other.zarr", "fft2", memory_limit="150 MB")
    assert done.plan.machine.memory_limit == 150_000_000


def test_memory_that_is_reserved_is_not_used(tmp_path):
    def array_of(reserved):
        work = str(tmp_path / "work")
        spec = cubed.Spec(work_dir=work, allowed_mem="200MB", reserved_mem=reserved)
        return cubed.from_array(np.ones((64, 64)), chunks=16, spec=spec)

    done = run(array_of("50MB"), tmp_path / "out.zarr", "fft2")
    assert done.plan.machine.memory_limit == 150_000_000
    with pytest.raises(ArgumentError, match=r"allowed_mem.*200000000.*reserved_mem"):
        run(array_of("200MB"), tmp_path / "other.zarr", "fft2")


def test_single_precision_and_axes(tmp_path, spec):
    x = random_array((12, 20), "f4", 2)
    array = cubed.from_array(x, chunks=(5, 20), spec=spec)
    done = run(array, tmp_path / "out.zarr", "rfft", axis=0, norm="ortho")
    result = done.open()
    assert result.dtype == np.complex64
    expected = np.fft.rfft(x, axis=0, norm="ortho")
    assert relative_l2(result.compute(), expected) < 1e-6


def test_refusals(tmp_path, spec):
    array = cubed.from_array(np.ones(8), chunks=4, spec=spec)
    with pytest.raises(ArgumentTypeError, match=r"dask_bigfft\.run"):
        fft.fft(array)
    with pytest.raises(ArgumentError, match="scratch"):
        run(array, tmp_path / "out.zarr", "fft", scratch=tmp_path / "scratch")
    with pytest.raises(ArgumentError, match="kind"):
        run(array, tmp_path / "out.zarr", "nofft")
    with pytest.raises(ArgumentTypeError, match=r"source.*DataArray of an array of cubed.*data"):
        run(xr.DataArray(array), tmp_path / "out.zarr", "fft")
    assert not (tmp_path / "out.zarr").exists()

"""Work areas of FFT plans: the caller's where a self-test passes, else one for each plan."""

import os
import sys
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import scipy.fft
from devices.cufft import GPU

from dask_bigfft.errors import DeviceMemoryError, FallbackWarning
from dask_bigfft.gpu import cuda, work_areas
from dask_bigfft.gpu.ffts import FFTPlans
from dask_bigfft.gpu.operations import FFT
from dask_bigfft.gpu.work_areas import GivenWorkAreas, OwnWorkAreas, self_test


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that puts a stand-in for CuPy in a new process of a new machine."""

    def process(**keywords):
        stand_in = GPU(**keywords)
        monkeypatch.setitem(sys.modules, "cupy", stand_in)
        monkeypatch.setattr(work_areas, "_library", lambda: stand_in)
        cuda.cupy.cache_clear()
        work_areas._tested.cache_clear()
        return stand_in

    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path / "wisdom")}):
        yield SimpleNamespace(process=process, file=tmp_path / "wisdom" / "self-test.json")
    cuda.cupy.cache_clear()
    work_areas._tested.cache_clear()


MISTAKES = {
    "status": "refused a work area with status 1",
    "ignored": "writes beside its work area",
    "too long": "writes beside its work area",
    "results": "results are off by 0.0001",
    "own allocator": "no FFT has used a work area",
    "error": "CUFFT_INTERNAL_ERROR",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(machine, mistake):
    machine.process()
    assert self_test() is None
    machine.process(mistake=mistake)
    assert MISTAKES[mistake] in self_test()


def test_a_plan_without_need_of_a_work_area_proves_nothing(machine):
    machine.process(least_nbytes=1 << 40)
    assert self_test() == "no FFT has used a work area"


@pytest.mark.parametrize("error", [ImportError, OSError, AttributeError, TypeError])
def test_a_library_that_does_not_load_fails_the_test(machine, monkeypatch, error):
    machine.process()

    def library():
        raise error("no such function")

    monkeypatch.setattr(work_areas, "_library", library)
    assert self_test().endswith("no such function")


def test_the_verdict_is_stored_for_a_version(machine, monkeypatch):
    """A process on the same machine reads it; another version, driver or GPU repeats the test."""
    gpu = machine.process()
    assert type(work_areas.work_areas()) is GivenWorkAreas
    tried = sum(gpu.plans.values())
    assert tried == len(work_areas.TRIALS)
    work_areas.work_areas()
    assert sum(gpu.plans.values()) == tried

    gpu = machine.process()
    assert type(work_areas.work_areas()) is GivenWorkAreas
    assert not gpu.plans

    for change in (
        lambda gpu: monkeypatch.setattr(gpu, "__version__", "14.1", raising=False),
        lambda gpu: setattr(gpu.cuda.cufft, "getVersion", lambda: 12001),
        lambda gpu: setattr(gpu.cuda.runtime, "driverGetVersion", lambda: 13010),
    ):
        gpu = machine.process()
        change(gpu)
        work_areas.work_areas()
        assert gpu.plans

    other = machine.process()
    other.cuda.runtime.getDeviceProperties = lambda ordinal: {"name": b"another"}
    work_areas.work_areas()
    assert other.plans


def test_a_failed_test_warns_once_and_is_not_stored(machine):
    for _process in range(2):
        gpu = machine.process(mistake="ignored")
        with pytest.warns(FallbackWarning, match=r"2 c2c FFTs.*double.*writes beside"):
            work_areas.work_areas()
        assert type(work_areas.work_areas()) is OwnWorkAreas  # a warning would be an error
        assert gpu.plans
    assert not machine.file.exists()


def test_too_little_memory_is_no_verdict(machine):
    machine.process(mistake="memory")
    with pytest.raises(DeviceMemoryError):
        work_areas.work_areas()
    assert not machine.file.exists()
    machine.process()
    assert type(work_areas.work_areas()) is GivenWorkAreas


def test_a_folder_that_cannot_be_written(machine):
    """The test is repeated in each process, as that of SciPy's private functions."""
    machine.file.parent.parent.joinpath("wisdom").write_text("a file in place of the folder")
    for _process in range(2):
        gpu = machine.process()
        assert type(work_areas.work_areas()) is GivenWorkAreas
        assert gpu.plans
    assert os.listdir(machine.file.parent.parent) == ["wisdom"]


def test_plans_with_work_areas_of_their_own(machine):
    """They ask the caller for none, count their memory, and wait for their last FFT."""
    gpu = machine.process(mistake="ignored", plan_nbytes=96)
    plans = FFTPlans()
    rng = np.random.default_rng(0)
    shape = (128, 128)
    op = FFT("c2c", shape, shape, (0, 1), -1, "<c16")
    with pytest.warns(FallbackWarning, match="each FFT plan on stand-in has a work area"):
        assert plans.prepare(op) == 0
    assert plans.taken == 96 + 16 * 128 * 128
    assert not gpu.calls["events"]
    for number in range(3):
        x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        result = np.empty_like(x)
        plans.fft(op, x.ctypes.data, result.ctypes.data, 0)
        np.testing.assert_allclose(result, scipy.fft.fftn(x), atol=1e-10)
        assert gpu.calls["events"] == number

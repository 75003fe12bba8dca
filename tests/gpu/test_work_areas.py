"""cuFFT uses the work areas that it is given, and FFTs are right with areas of their own."""

import time

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import NEEDS_GPU

from dask_bigfft import fft
from dask_bigfft.gpu import dispatch, ffts, work_areas
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.work_areas import GivenWorkAreas, OwnWorkAreas, self_test
from dask_bigfft.testing.strategies import random_array

pytestmark = NEEDS_GPU


@pytest.fixture
def new_machine(tmp_path):
    """Forget the verdict of this process and of this machine."""
    work_areas._tested.cache_clear()
    with dask.config.set({"bigfft.wisdom.directory": str(tmp_path)}):
        yield tmp_path
    work_areas._tested.cache_clear()


def test_given_work_areas_are_used(new_machine):
    """The verdict takes a fraction of a second, and is stored."""
    pool_before = cupy().get_default_memory_pool().total_bytes()
    seconds = []
    for _process in range(3):
        work_areas._tested.cache_clear()
        began = time.perf_counter()
        assert type(work_areas.work_areas()) is GivenWorkAreas
        seconds.append(time.perf_counter() - began)
    print("self-test of work areas, stored verdict twice:", *(f"{s:.4f} s" for s in seconds))
    assert (new_machine / "self-test.json").exists()
    assert seconds[0] < 2
    assert max(seconds[1:]) < 0.02
    assert cupy().get_default_memory_pool().total_bytes() == pool_before


def test_each_trial_needs_what_it_states():
    """Those with a large prime length and one with a large power of two have a work area."""
    with cupy().cuda.Stream.null:
        used = {trial: work_areas._uses_given_areas(trial) for trial in work_areas.TRIALS}
    for trial, is_used in used.items():
        print(trial, "uses its work area" if is_used else "needs none")
    assert any(is_used for trial, is_used in used.items() if trial.n == (20011,))


@pytest.mark.parametrize("mistake", ["ignored", "too small"])
def test_mistakes_are_found(monkeypatch, mistake):
    if mistake == "ignored":
        monkeypatch.setattr(work_areas, "_set_work_area", lambda plan, address: None)
    else:
        set_work_area = work_areas._set_work_area
        monkeypatch.setattr(
            work_areas,
            "_set_work_area",
            lambda plan, address: set_work_area(plan, address - work_areas.GUARD_NBYTES // 2),
        )
    assert "writes beside its work area" in self_test()


@pytest.mark.parametrize("where", ["host", "gpu"])
def test_work_areas_of_each_plan(monkeypatch, where):
    """The fallback gives the same results in every kind of round, several of them at once."""
    monkeypatch.setattr(ffts, "work_areas", OwnWorkAreas)
    dispatch.release()
    x = random_array((96, 20011), "c16", 5)
    values = x if where == "host" else cupy().asarray(x)
    device = {"device": "gpu"} if where == "host" else {}
    y = fft.fftn(da.from_array(values, chunks=(16, 20011)), **device)
    z = fft.ifft(da.from_array(values, chunks=(96, 3000)), axis=0, **device)
    results = dask.compute(y, z, scheduler="threads")
    expected = scipy.fft.fftn(x), scipy.fft.ifft(x, axis=0)
    for result, right in zip(results, expected, strict=True):
        on_host = result.get() if where == "gpu" else result
        assert np.linalg.norm(on_host - right) <= 1e-14 * np.linalg.norm(right)
    monkeypatch.undo()
    dispatch.release()

"""Looking for GPUs: without CuPy where all are hidden, and beside other work in a first call."""

import ctypes
import textwrap
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support import python

from dask_bigfft import fft
from dask_bigfft.gpu import cuda

#: A process that says why it has no GPU, and whether it has tried CuPy.
PROGRAM = """
    import sys
    from dask_bigfft.gpu import cuda

    class Refuses:
        def find_spec(self, name, path=None, target=None):
            assert name != "cupy", "imported"

    sys.modules.pop("cupy", None)
    sys.meta_path.insert(0, Refuses())
    print(cuda.available(), cuda.reason())
"""


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_devices_are_not_looked_for(visible):
    env = {"CUDA_VISIBLE_DEVICES": visible}
    says = python("-c", textwrap.dedent(PROGRAM), env=env).stdout
    assert says.startswith("() CUDA sees no device: look at CUDA_VISIBLE_DEVICES")


class Driver:
    """CUDA's driver, which takes its time."""

    def __init__(self, status):
        self.status = status
        self.calls = []

    def cuInit(self, flags):
        time.sleep(0.2)
        self.calls.append(("init", threading.current_thread()))
        return self.status

    def cuDeviceGet(self, device, ordinal):
        return self.status

    def cuDevicePrimaryCtxRetain(self, context, device):
        self.calls.append(("context", threading.current_thread()))
        return self.status


@pytest.mark.parametrize("status", [0, 100])
@pytest.mark.parametrize("device", ["gpu", "hybrid", "cpu", "auto"])
def test_a_device_that_a_call_names_is_opened_beside_it(device, status, monkeypatch):
    driver = Driver(status)

    def count():
        assert not driver.calls or driver.calls[0][0] == "init"
        driver.calls.append(("count", threading.current_thread()))
        return 0

    runtime = SimpleNamespace(getDeviceCount=count)
    stand_in = SimpleNamespace(
        CDLL=lambda name: driver,
        byref=ctypes.byref,
        c_int=ctypes.c_int,
        c_void_p=ctypes.c_void_p,
    )
    monkeypatch.setattr(cuda, "ctypes", stand_in)  # not for llvmlite, which has a library, too
    monkeypatch.setattr(
        cuda, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    )
    monkeypatch.setattr(cuda, "_driver_is_ready", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda._visible_devices.cache_clear()
    try:
        if device in ("gpu", "hybrid"):
            for _ in range(2):
                with pytest.raises(ValueError, match="`device`"):
                    fft.fft(np.ones(64, "c8"), device=device)
        else:
            fft.fft(np.ones(64, "c8"), device=device)
    finally:
        cuda._visible_devices.cache_clear()
    names = [name for name, _ in driver.calls]
    is_named = device in ("gpu", "hybrid")
    assert names.count("init") == is_named
    for name, thread in driver.calls:
        assert (name == "count") is (thread is threading.current_thread())
    if is_named:
        assert names.index("init") < names.index("count")

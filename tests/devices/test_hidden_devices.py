"""A process from which all GPUs are hidden knows it without CuPy."""

import textwrap

import pytest
from support import python

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

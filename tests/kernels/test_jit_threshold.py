"""What a process copies first is copied by NumPy: small arrays wait for no compiler."""

import textwrap
from collections import Counter

import numpy as np
import pytest
from support import python

from dask_bigfft.kernels import copies

#: In a new process, the functions of this package that a first `compute()` compiles.
FIRST_COMPUTE = """
    import dask.array as da
    import numpy as np
    from numba.core import event
    from dask_bigfft import fft

    class Compiled(event.Listener):
        def on_start(self, event):
            name = event.data["dispatcher"].py_func.__module__
            if name.startswith("dask_bigfft"):
                print(name.rpartition(".")[2])
        def on_end(self, event):
            pass

    event.register("numba:compile", Compiled())
    x = np.random.default_rng(0).standard_normal({shape})
    y = fft.{kind}(da.from_array(x, chunks={chunks})).compute(num_workers=2)
    np.testing.assert_allclose(y, np.fft.{kind}(x), atol=1e-9)
"""


@pytest.mark.parametrize(
    ("kind", "shape", "chunks"),
    [
        ("rfft2", (100, 120), (25, 30)),
        ("fft", (4096,), 256),
    ],
)
def test_a_first_compute_does_not_wait_for_the_compiler(
    kind,
    shape,
    chunks,
    tmp_path,
):
    code = textwrap.dedent(FIRST_COMPUTE.format(kind=kind, shape=shape, chunks=chunks))
    assert python("-c", code, env={"NUMBA_CACHE_DIR": tmp_path}).stdout == ""


def test_no_call_loads_all_of_numba(monkeypatch):
    loaded = []
    load = copies.load_types
    complex_ = np.dtype("D")
    monkeypatch.setattr(copies, "load_types", loaded.append)
    monkeypatch.setattr(copies, "_counted", Counter())
    monkeypatch.setattr(copies, "_left", [copies.FIRST])
    parts = [copies.FIRST // 4] * 4
    assert not any(copies.pays((np.dtype("G"), complex_), 0, part) for part in parts)
    assert loaded == []
    assert [copies.pays((complex_, complex_), 0, part) for part in parts] == [False] * 3 + [True]
    assert loaded == ["typing_context", "target_context"]
    for context in loaded:
        load(context)

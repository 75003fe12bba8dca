"""What a process copies first is copied by NumPy: small arrays wait for no compiler."""

import os
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest

from dask_bigfft.cluster.worker import warm_up
from dask_bigfft.kernels import copy, warming
from dask_bigfft.testing.oracles import index_valued

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


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not copied anything, and who copied what."""
    monkeypatch.setattr(warming, "_counted", Counter())
    monkeypatch.setattr(warming, "_left", [warming.FIRST])
    calls = []
    compiled = copy.copy_rows

    def copy_rows(*args):
        calls.append(args[5].dtype)
        return compiled(*args)

    monkeypatch.setattr(copy, "copy_rows", copy_rows)
    return calls


def tabled(source):
    """A transposed copy, in three tiles."""
    target = np.zeros(source.shape[::-1], source.dtype)
    table = copy.CopyTable(target)
    steps = target.strides[::-1]
    table.add(source, source.shape, 0, source.strides, 0, steps, along=1, step=steps[1])
    for low in range(0, source.shape[1], 5):
        table.run(low, min(low + 5, source.shape[1]))
    np.testing.assert_array_equal(target, source.T)


def straight(source):
    target = np.zeros_like(source)
    copy.copied(target, source)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("made", [tabled, straight])
def test_loops_are_compiled_once_there_is_enough_to_copy(fresh, made, monkeypatch):
    values = index_valued((16, 15), "c16")
    monkeypatch.setattr(warming, "_left", [3 * (values.nbytes + warming.EACH)])
    made(values)
    made(values)
    assert fresh == []
    made(values)
    assert set(fresh) == {values.dtype}
    made(index_valued((16, 15), "f8"))  # of which little has been copied
    assert set(fresh) == {values.dtype}


def test_many_tiny_copies_count_for_more_than_their_bytes(fresh):
    for _ in range(warming.FIRST // warming.EACH):
        warming.count(np.dtype("f8"), np.dtype("f8"), 1, 0)
    assert warming.pays(np.dtype("f8"), np.dtype("f8"))


def test_who_measures_speeds_has_loops_compiled_at_once(fresh):
    warming.at_once()
    straight(index_valued((4, 4), "f8"))
    assert fresh == [np.dtype("f8")]


def test_workers_are_ready_before_their_first_task(fresh):
    warm_up()
    assert set(fresh) >= {np.dtype("c16"), np.dtype("f8")}


@pytest.mark.parametrize(
    ("kind", "shape", "chunks", "compiled"),
    [("rfft2", (100, 120), (25, 30), set()), ("fft", (4096,), 256, {"twiddle"})],
)
def test_a_first_compute_hardly_waits_for_the_compiler(kind, shape, chunks, compiled, tmp_path):
    code = textwrap.dedent(FIRST_COMPUTE.format(kind=kind, shape=shape, chunks=chunks))
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )
    assert set(found.stdout.split()) == compiled

"""What a process copies first is copied by NumPy: small arrays wait for no compiler."""

import textwrap
from collections import Counter

import numpy as np
import pytest
from support import python

from dask_bigfft.kernels import copies

#: A new process whose first `compute()` neither compiles nor loads the compiler.
FIRST_COMPUTE = """
    import sys
    import dask.array as da
    import numpy as np
    from dask_bigfft import fft

    x = np.random.default_rng(0).standard_normal({shape})
    y = fft.{kind}(da.from_array(x, chunks={chunks})).compute(num_workers=2)
    np.testing.assert_allclose(y, np.fft.{kind}(x), atol=1e-8)
    print("numba" in sys.modules)
"""


@pytest.mark.parametrize(
    ("kind", "shape", "chunks"),
    [
        ("rfft2", (100, 120), (25, 30)),
        ("fft", (4096,), 256),
        ("fft", (1 << 22,), 1 << 20),  # 64 MiB
    ],
)
def test_a_first_compute_does_not_wait_for_the_compiler(
    kind,
    shape,
    chunks,
    tmp_path,
):
    code = textwrap.dedent(FIRST_COMPUTE.format(kind=kind, shape=shape, chunks=chunks))
    assert python("-c", code, env={"NUMBA_CACHE_DIR": tmp_path}).stdout == "False\n"


def test_loops_pay_after_some_bytes(monkeypatch):
    complex_ = np.dtype("D")
    monkeypatch.setattr(copies, "_counted", Counter())
    monkeypatch.setattr(copies, "_left", [copies.FIRST])
    parts = [copies.FIRST // 4] * 4
    assert not any(copies.pays((np.dtype("G"), complex_), 0, part) for part in parts)
    assert [copies.pays((complex_, complex_), 0, part) for part in parts] == [False] * 3 + [True]


@pytest.mark.parametrize(("columns", "is_counted"), [(8, True), (1024, False)])
def test_copies_of_wide_rows_need_no_loop(columns, is_counted, monkeypatch):
    counted = Counter()
    monkeypatch.setattr(copies, "_counted", counted)
    monkeypatch.setattr(copies, "_left", [copies.FIRST])
    source = np.arange(6 * columns).reshape(6, columns).astype("c8")
    target = np.zeros((6, 2 * columns), "c8")
    copies.copy_array(target[:, columns:], source)
    assert (counted.total() > 0) == is_counted
    np.testing.assert_array_equal(target[:, columns:], source)
    assert not target[:, :columns].any()

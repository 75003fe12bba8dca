"""Plans near a memory limit: what is not searched, since smaller blocks would not help."""

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_bigfft.planner import search
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.transforms.spec import transform_spec

#: Shape, chunks, dtype and transform of arrays of a few megabytes.
CASES = (
    ((512, 384), (64, 384), "complex64", "fftn"),
    ((512, 384), (512, 48), "float64", "rfftn"),
    ((40009,), (4096,), "complex128", "fftn"),
)


def _asked(case: tuple[Any, ...], carrier: str, **options: Any) -> tuple[Any, Request]:
    shape, chunks, dtype, kind = case
    cut = da.zeros(shape, chunks=chunks).chunks
    return transform_spec(kind, shape, np.dtype(dtype)), Request(cut, carrier=carrier, **options)


def _bytes(case: tuple[Any, ...]) -> int:
    shape, _, dtype, _ = case
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_searched_would_not_fit(
    case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for times in (0.3, 1.5, 2.2, 3.0):
        asked, on = _asked(case, "auto"), Machine(int(times * _bytes(case)), 2, 1)

        def found(asked: Any = asked, on: Machine = on) -> Plan | None:
            try:
                return replace(search.find_plan(*asked, on), reason="")
            except ValueError as error:
                assert "memory_limit" in str(error)  # noqa: PT017
                return None

        ours = found()
        with monkeypatch.context() as patched:  # every size of blocks is planned
            patched.setattr(search, "_in_vain", lambda *_: False)
            patched.setattr(search, "_least_in_smallest", lambda *_: None)
            assert found() == ours

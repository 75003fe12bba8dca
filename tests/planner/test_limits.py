"""Plans near a memory limit: what is not searched, since smaller blocks would not help."""

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_bigfft.planner import ranking, search
from dask_bigfft.planner.cost import least_host
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.transforms.spec import transform_spec

#: Shape, chunks, dtype and transform of arrays of a few megabytes.
CASES = (
    ((96, 80, 64), (24, 80, 64), "float32", "rfftn"),
    ((2**18,), (2**14,), "complex128", "fftn"),
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


@pytest.mark.parametrize("carrier", ["memory", "disk"])
@pytest.mark.parametrize("case", CASES)
def test_no_smaller_blocks_need_less_than_the_least(case: tuple[Any, ...], carrier: str) -> None:
    for shared in (False, True):
        on = Machine(None, 2, 1, shared=shared)
        whole = search.find_plans(*_asked(case, carrier), on)
        least = min(map(least_host, whole))
        assert least > 0
        for scale in (1.0, 0.25):
            for plan in search.find_plans(*_asked(case, carrier, scale=scale), on):
                assert least_host(plan) <= plan.expected.peak_host
                assert least <= plan.expected.peak_host


@pytest.mark.parametrize("case", CASES[1:])
def test_what_is_not_searched_would_not_fit(
    case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for times in (0.3, 0.8, 1.5, 2.2, 3.0, 4.5):
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


def test_input_that_is_too_large_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plans = search.ranked_plans

    def watched(one: Any, tried: Any, *rest: Any) -> list[Plan]:
        sizes.append(tried.target)
        return plans(one, tried, *rest)

    monkeypatch.setattr(search, "ranked_plans", watched)
    asked = _asked(CASES[0], "auto")
    with pytest.raises(ValueError, match="memory_limit"):
        search.find_plan(*asked, Machine(600_000, 2, 1))
    assert len(sizes) == 2  # one size in memory, and one with scratch files
    sizes.clear()
    search.find_plan(*asked, Machine(4_000_000, 2, 1))  # 10 kB less than memory would take
    halves = [size for size in dict.fromkeys(sizes) if size < max(sizes) // 32]
    assert len(halves) < ranking.SMALLER

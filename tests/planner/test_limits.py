"""Plans near a memory limit: what is not searched, since smaller blocks would not help."""

import ast
import re
import time
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft.errors import MemoryLimitError, PlanError
from dask_bigfft.planner import search
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.transforms.spec import transform_spec

#: Shape, chunks, dtype and transform of arrays of a few megabytes.
CASES = (
    ((512, 384), (64, 384), "complex64", "fftn"),
    ((512, 384), (512, 48), "float64", "rfftn"),
    ((40009,), (4096,), "complex128", "fftn"),
)


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_searched_would_not_fit(
    case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, chunks, dtype, kind = case
    x = da.zeros(shape, chunks=chunks, dtype=dtype)
    for times in (0.3, 1.5, 2.2, 3.0):

        def found(times: float = times) -> Plan | None:
            on = Machine(int(times * x.nbytes), 2, 1)
            spec = transform_spec(kind, shape, x.dtype)
            request = Request(x.chunks, storage="auto")
            try:
                return replace(search.find_plan(spec, request, on), reason="")
            except ValueError as error:
                assert "memory_limit" in str(error)  # noqa: PT017
                return None

        ours = found()
        with monkeypatch.context() as patched:  # every size of blocks is planned
            patched.setattr(search, "_least_in_smallest", lambda *_: search._NEVER)
            assert found() == ours


#: Shape, chunks, limit and settings of what is refused, and the changes that would fit.
REFUSED = (
    ((256, 512, 512), (16, 512, 512), "200 MiB", {}, {"memory", "chunks"}),
    ((2**26,), 2**22, "240 MiB", {}, {"memory", "threads", "chunks"}),
    ((2**26,), 2**22, "600 MiB", {"num_workers": 8}, {"memory", "threads", "chunks"}),
    ((2**26,), 2**22, "600 MiB", {"bigfft.exchange.carrier": "tasks"}, {"memory", "scratch"}),
    ((2**20,), 2**18, "3 MiB", {}, {"memory", "chunks"}),
)

#: What a refusal says of each change.
CHANGES = {
    "memory": r"at least ([\d.]+ \w+) per process",
    "threads": r"num_workers=(\d+)",
    "chunks": r"an array in chunks of (\([^)]*\))",
    "scratch": r"bigfft.exchange.carrier '(disk)'",
}


@pytest.mark.parametrize(("shape", "chunks", "limit", "settings", "changes"), REFUSED)
def test_each_change_that_a_refusal_names_fits(
    shape: Any,
    chunks: Any,
    limit: str,
    settings: dict[str, Any],
    changes: set[str],
) -> None:
    x = da.zeros(shape, chunks=chunks, dtype="c16")
    with dask.config.set({"num_workers": 2, **settings}):
        with pytest.raises(PlanError, match="`memory_limit`=") as told:
            dask_bigfft.plan(x, "fftn", memory_limit=limit)
        text = str(told.value)
        named = {name: match[1] for name, how in CHANGES.items() if (match := re.search(how, text))}
        assert set(named) == changes
        assert not re.search(r"\d{8}", text)  # sizes have units
        assert dask_bigfft.plan(x, "fftn", memory_limit=named["memory"])
        for name, setting in {
            "threads": "num_workers",
            "scratch": "bigfft.exchange.carrier",
        }.items():
            if name in named:
                value = named[name] if name == "scratch" else int(named[name])
                with dask.config.set({setting: value}):
                    assert dask_bigfft.plan(x, "fftn", memory_limit=limit)
        if "chunks" in named:
            other = da.zeros(shape, chunks=ast.literal_eval(named["chunks"]), dtype="c16")
            assert dask_bigfft.plan(other, "fftn", memory_limit=limit)


def test_changes_keep_the_rounds_that_were_named() -> None:
    x = da.zeros(2**26, chunks=2**22, dtype="c16")
    requested = {
        "kind": "fft",
        "rounds": [2**13, 2**13],
        "memory_limit": "600 MiB",
    }
    with dask.config.set(num_workers=8):
        with pytest.raises(PlanError, match="`memory_limit`=") as told:
            dask_bigfft.plan(x, **requested)
        threads = re.search(CHANGES["threads"], str(told.value))
        assert threads is not None
        with dask.config.set(num_workers=int(threads[1])):
            assert dask_bigfft.plan(x, **requested)


def test_a_refusal_takes_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    plans = search.ranked_plans

    def watched(*arguments: Any) -> list[Plan]:
        count[0] += 1
        return plans(*arguments)

    monkeypatch.setattr(search, "ranked_plans", watched)
    x = da.zeros((2**18,), chunks=2**14, dtype="c16")
    with dask.config.set(num_workers=2), pytest.raises(PlanError):
        dask_bigfft.plan(x, "fft", memory_limit="1 MiB")
    assert count[0] <= 12


def test_an_axis_in_thousands_of_chunks_is_planned_in_three_rounds() -> None:
    x = da.zeros(2**39, chunks=2**26, dtype="c16")
    plan = dask_bigfft.plan(x, "fft", memory_limit="64 TiB")
    assert plan.notation == "{X1} {X2} {X3}"
    assert max(exchange.shape.fan_in for exchange in plan.exchanges) <= 4096


def test_chunks_that_allow_no_plan_are_refused() -> None:
    requested = {"kind": "fft", "memory_limit": "1024 PiB"}
    with pytest.raises(PlanError, match=r"no plan was found .*chunks of \(100000000,\)"):
        dask_bigfft.plan(da.zeros(10**12 + 39, chunks=10**8, dtype="c16"), **requested)
    assert dask_bigfft.plan(da.zeros(10**12 + 39, chunks=10**9, dtype="c16"), **requested)


@pytest.mark.parametrize(
    ("limit", "unit"),
    [
        (4, "'4 GiB'"),
        (2.0, "'2 GiB'"),
        (500, "'500 MiB'"),
    ],
)
def test_a_limit_that_lacks_its_unit_is_told_so(limit: float, unit: str) -> None:
    x = da.ones(2**24, chunks=2**18)
    with pytest.raises(MemoryLimitError, match=rf"memory_limit.*{unit}"):
        dask_bigfft.fft.fft(x, memory_limit=limit)
    with pytest.raises(MemoryLimitError) as error:
        dask_bigfft.fft.fft(x, memory_limit="90 KiB")
    assert "unit" not in str(error.value)


def test_an_open_device_needs_no_more_memory_than_the_cpu() -> None:
    """CPU threads work on blocks without copies that GPUs need in host memory."""
    x = da.zeros((4096,), chunks=256, dtype="c8")
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        peak = dask_bigfft.plan(x, "fft", device="cpu").expected.peak_host
        with simulated_devices(1):
            plan = dask_bigfft.plan(x, "fft", device="auto", memory_limit=peak)
    assert plan.expected.peak_host <= peak


def test_a_huge_grid_is_refused_in_seconds() -> None:
    """Membership in the cuts of a million chunks, and sizes with more blocks, took minutes."""
    chunks = da.core.normalize_chunks(1 << 7, (1 << 17, 1 << 17))
    x = da.Array({}, "x", chunks, dtype="c8")
    started = time.process_time()
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        dask_bigfft.plan(x, "fftn", memory_limit="64 KiB")
    assert time.process_time() - started < 20

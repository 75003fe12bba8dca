"""The named problems: what is planned for them, and that tiny ones keep their sort."""

import dask.config
import numpy as np
import pytest

from dask_bigfft.bench.measure import planned
from dask_bigfft.bench.problems import PROBLEMS, select
from dask_bigfft.errors import ArgumentError

# rounds and exchanges in which something travels; 16 and 64 blocks are planned alike
PLANS = {
    "1d-2p24-c128": ("{X1} {X2}", 3),
    "1d-2p26-c128": ("{X1} {X2}", 3),
    "1d-2p27-c128": ("{X1} {X2}", 3),
    "1d-2p24-c64": ("{X1} {X2}", 3),
    "1d-2p26-c64": ("{X1} {X2}", 3),
    "1d-2p27-c64": ("{X1} {X2}", 3),
    "1d-prime-c128": ("{X1} {X2*} {X3}", 4),
    "2d-8192x8192-c128": ("{X} {Y}", 1),
    "2d-1024x65536-c128": ("{X} {Y}", 1),
    "3d-512x512x512-c64": ("{Y, X} {Z}", 1),
    "3d-512x512x256-c128": ("{Y, X} {Z}", 1),
    "2d-65536x1024-c128": ("{X} {Y}", 1),
    "3d-8192x128x64-c128": ("{Y, X} {Z}", 1),
    "r3d-512x512x512-f32": ("{Y, X} {Z}", 1),
    "r3d-512x512x256-f64": ("{Y, X} {Z}", 1),
}


def test_the_table_of_plans_is_complete() -> None:
    assert list(PROBLEMS) == [f"{name}-x{ways}" for name in PLANS for ways in (16, 64)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_plan(name: str) -> None:
    with dask.config.set({"bigfft.memory-limit": "1 PiB"}):
        found = planned(PROBLEMS[name], 2)
    assert (found["rounds"], found["exchanges"]) == PLANS[name.rpartition("-")[0]]
    # In natural order, digits that lie in common memory are in place after the last round.
    assert len(found["pass_bytes"]) == (4 if "prime" in name else 2)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_and_its_tiny_form(name: str) -> None:
    problem, tiny = PROBLEMS[name], PROBLEMS[name].scaled(1e-4)
    assert problem.scaled(1) is problem
    assert tiny.size < 2e5 < problem.size
    assert (tiny.name, tiny.kind, tiny.ways) == (problem.name, problem.kind, problem.ways)
    for p in (problem, tiny):
        assert len(p.chunks[0]) == p.ways
        assert tuple(map(sum, p.chunks)) == p.shape
        assert p.out_dtype == np.result_type(p.dtype, np.complex64).name
        sizes = p.size * np.dtype(p.dtype).itemsize, np.empty(p.out_shape, p.out_dtype).nbytes
        assert p.nbytes == max(sizes)
    if problem.prime:
        assert all(tiny.size % d for d in range(2, 100))


def test_select() -> None:
    assert select([]) == list(PROBLEMS.values())
    assert [p.ways for p in select(["2d-8192*", "2d-8192x8192-c128-x64"])] == [16, 64]
    with pytest.raises(ArgumentError, match="only"):
        select(["4d*"])

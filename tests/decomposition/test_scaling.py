"""Which steps divide: one, or those for which it is exact or one library call."""

import math

import dask
import dask.array as da
import pytest

import dask_bigfft
from dask_bigfft.decomposition.scaling import divisor_of
from dask_bigfft.decomposition.steps import Divisor

CASES = [
    ("ifft", (36,), (6,), {}),
    ("fft", (36,), (6,), {"norm": "ortho"}),
    ("ifftn", (36, 10), (36, 10), {}),
    ("ifftn", (36, 10), (6, 10), {}),
    ("ifftn", (36, 10, 6), (6, 5, 6), {"norm": "ortho"}),
    ("irfftn", (12, 19), (4, 19), {"norm": "ortho"}),
    ("irfft", (19,), (3,), {}),
    ("rfftn", (12, 36), (4, 6), {"norm": "forward"}),
    ("ifft", (1009,), (100,), {}),
    ("ifftn", (64, 32), (8, 32), {}),
]


@pytest.mark.parametrize(("name", "shape", "chunks", "options"), CASES)
def test_divisors_multiply_up_and_round_once(name, shape, chunks, options):
    dtype = float if name.startswith("rfft") else complex
    x = da.zeros(shape, chunks=chunks, dtype=dtype)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        plan = dask_bigfft.plan(x, name, **options)
    steps = [step for round_ in plan.rounds for step in round_.steps]
    assert steps == [s for r in plan.rounds for s in r.steps if s in {
        t for p in plan.programs for t in p.steps}]
    total = Divisor()
    for step in steps:
        total = total * step.divisor
    assert total == divisor_of(plan.spec.scale, math.prod(plan.spec.lengths))
    bearers = [step for step in steps if step.divisor != Divisor()]
    exact = all(s.divisor.root == 1 and s.divisor.whole.bit_count() == 1 for s in bearers)
    assert len(bearers) <= 1 or exact or len(plan.rounds) == 1



"""What the planner chooses, unaided: a row for each scheme of the literature where it is best.

A plan is metadata, so arrays of any size will do. A change of this table is a change of behaviour:
it belongs into the changelog.
"""

import dask.array as da
import numpy as np
import pytest

import dask_bigfft


def case(kind, shape, chunks, rounds, exchanges, first, /, dtype=complex, **options):
    """A call, and what is chosen: rounds, exchanges, first chunk of the result by axis."""
    x = da.zeros(shape, chunks=chunks, dtype=dtype)
    return (x, kind, {"memory_limit": "1 PiB", **options}), (rounds, exchanges, first)


TABLE = {
    "whole axes, batch of any chunking": case(
        "fft", (100, 1000, 64), (7, 300, 64), "{X}", 0, (7, 300, 64)
    ),
    "1D two rounds": case("fft", (2**26,), (2**22,), "{X1} {X2}", 3, (2**22,)),
    "1D two rounds, transposed order": case(
        "fft", (2**26,), (2**22,), "{X1} {X2}", 2, (2**22,), order="transposed"
    ),
    "1D three rounds: blocks smaller than the root of the length": case(
        "fft", (2**30,), (2**14,), "{X1} {X2} {X3}", 4, (2**15,)
    ),
    "1D in thousands of blocks: the last ones twice as large, for dask's ordering": case(
        "fft", (2**36,), (2**24,), "{X1} {X2}", 3, (2**25,)
    ),
    "1D prime length: Bluestein": case(
        "fft", (10_000_019,), (625_002,), "{X1} {X2*} {X3}", 4, (303_031,)
    ),
    "1D, a short axis that does not split is gathered whole": case(
        "fft", (1009,), (100,), "{X}", 1, (1009,)
    ),
    "2D naive, rows": case("fftn", (8192, 8192), (512, 8192), "{X} {Y}", 1, (8192, 512)),
    "2D naive, checkerboard": case("fftn", (8192, 8192), (2048, 2048), "{Y} {X}", 2, (512, 8192)),
    "2D Y decomposition: Y larger than a block, few columns": case(
        "fftn", (2**26, 4), (2**22, 4), "{Y1, X} {Y2}", 3, (2**22, 4)
    ),
    "2D X larger than a block": case("fftn", (4, 2**26), (4, 2**22), "{X1} {Y, X2}", 3, (4, 2**22)),
    "3D naive (slabs)": case(
        "fftn", (512, 512, 512), (32, 512, 512), "{Y, X} {Z}", 1, (512, 32, 512)
    ),
    "3D tall": case("fftn", (8192, 128, 64), (512, 128, 64), "{Y, X} {Z}", 1, (8192, 8, 64)),
    "3D Z decomposition, reordered": case(
        "fftn", (2**24, 8, 8), (2**16, 8, 8), "{Z1, Y} {Z2, X}", 3, (2**16, 8, 8)
    ),
    "3D XY larger than a block": case(
        "fftn", (64, 2**13, 2**13), (1, 2**10, 2**13), "{X} {Z, Y}", 1, (64, 2**13, 16)
    ),
    "3D X larger than a block": case(
        "fftn", (16, 16, 2**26), (1, 1, 2**22), "{X1} {Z} {Y, X2}", 4, (1, 16, 2**19)
    ),
    "3D pencils": case("fftn", (4096, 4096, 512), (64, 64, 512), "{X} {Z} {Y}", 2, (128, 4096, 8)),
    "4D slabs": case(
        "fftn", (64, 64, 64, 64), (8, 64, 64, 64), "{Z, Y} {W, X}", 1, (64, 64, 8, 64)
    ),
    "5D": case(
        "fftn", (32, 32, 32, 32, 32), (4, 4, 32, 32, 32), "{Z, Y, X} {V, W}", 1, (32, 32, 1, 16, 32)
    ),
    "real input, real axis whole": case(
        "rfftn", (512, 512, 512), (32, 512, 512), "{Y, X} {Z}", 1, (512, 32, 257), dtype="f8"
    ),
    "real input, single precision: rows stay long": case(
        "rfftn", (512, 512, 1024), (64, 512, 1024), "{Y, X} {Z}", 1, (512, 64, 513), dtype="f4"
    ),
    "real input in cubes: the plan with the fewest rows": case(
        "rfftn", (512, 512, 512), (128, 128, 128), "{Y, X} {Z}", 2, (512, 8, 257), dtype="f4"
    ),
    "real input, real axis split": case(
        "rfft", (2**26,), (2**22,), "{X1} {X2}", 3, (2097153,), dtype="f8"
    ),
    "one axis of a batch": case("fft", (1000, 2**20), (10, 2**16), "{X}", 1, (1, 2**20), axis=1),
    "2D two axes' digits at a time: transposed order, cut as it came": case(
        "fftn",
        (8192, 8192),
        (2048, 2048),
        "{Y1, X1} {Y2, X2}",
        2,
        (2048, 2048),
        order="transposed",
        chunks="preserve",
    ),
}


def assert_every_digit_is_transformed_once(plan: dask_bigfft.Plan) -> None:
    """Require that rounds do the steps of all axes, each axis's in order, and no others."""
    steps = [step for round_ in plan.rounds for step in round_.steps]
    assert sorted(map(repr, steps)) == sorted(repr(s) for p in plan.programs for s in p.steps)
    for program in plan.programs:
        order = [step for step in steps if step.axis == program.axis]
        assert order == list(program.steps)
        product = int(np.prod(program.factors))
        if program.bluestein:
            assert product >= 2 * program.length - 1
        else:
            assert product == program.length


def assert_json_restores(plan: dask_bigfft.Plan) -> None:
    again = type(plan).from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.to_json() == plan.to_json()


@pytest.mark.parametrize("case", TABLE)
def test_choice(case: str) -> None:
    """Plans cover every digit, hold the sizes of blocks, and come back from JSON as they were."""
    (x, kind, options), chosen = TABLE[case]
    plan = dask_bigfft.plan(x, kind, **options)
    first = tuple(chunk[0] for chunk in plan.chunks)
    assert (plan.notation, len(plan.travelling), first) == chosen
    assert all(forecast != plan.expected for _, forecast in plan.rejected)
    assert_every_digit_is_transformed_once(plan)
    for round_ in plan.rounds:
        for step in round_.steps:
            assert round_.source.axes[step.axis].groups[-1].chunks == (step.source.size,)
        if x.ndim < 5 and "gathered whole" not in case:
            assert round_.source.largest <= 2 * int(np.prod(x.chunksize))
    assert tuple(sum(c) for c in plan.chunks) == plan.spec.out_shape
    assert_json_restores(plan)


def test_memory_limit_changes_the_plan() -> None:
    x = da.zeros(10_000_019, chunks=625_002, dtype=complex)
    assert dask_bigfft.plan(x, "fft", memory_limit="2 GiB").notation == "{X1} {X2*} {X3}"
    small = dask_bigfft.plan(x, "fft", memory_limit="1 GiB")
    assert small.expected.peak_host <= 2**30
    with pytest.raises(ValueError, match="memory_limit"):
        dask_bigfft.plan(x, "fft", memory_limit="300 MiB")


def test_whole_axes_that_fit_are_not_compared_with_split_ones() -> None:
    """Such plans never won, and took most of the time of the search."""
    plan = dask_bigfft.plan(da.zeros((8192, 8192), chunks=(1024, 8192)), "fftn")
    assert {" x " in digits for digits, _ in plan.rejected} == {False}

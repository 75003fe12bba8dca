"""What a round asks of a library: the same for all blocks, and told apart by what steps are."""

from dataclasses import replace

import numpy as np
import pytest

from dask_bigfft.decomposition.layout import AxisLayout, Layout, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Chirp, Divisor, axis_program
from dask_bigfft.kernels.calls import calls_of, works_of


def one_round(*kinds, factors=(6,), divisor=None):
    """The first round of axes of 6 elements, or of several digits, each whole in its block."""
    programs = [
        axis_program(axis, 6 if kind != "c2r" else 4, factors, kind=kind, sign=-1)
        for axis, kind in enumerate(kinds)
    ]
    steps = tuple(program.steps[0] for program in programs)
    if divisor is not None:
        steps = tuple(replace(step, divisor=divisor) for step in steps)
    source = Layout(tuple(AxisLayout((whole(step.source),)) for step in steps))
    return Round(steps, source, transformed(source, steps))


def test_ffts_of_several_axes_are_one_call():
    calls = calls_of(one_round("c2c", "c2c"))
    (call,) = calls.c2c
    assert (call.dims, call.sign, call.scale, call.left) == ((0, 1), -1, "none", None)
    assert calls.begins_with_ffts
    assert calls.one_call
    assert not calls.begins_with_r2c


@pytest.mark.parametrize(
    ("divisor", "scale", "left"),
    [
        (Divisor(6), "full", None),
        (Divisor(1, 6), "ortho", None),
        (Divisor(5), "none", Divisor(5)),
        (Divisor(), "none", None),
    ],
)
def test_a_library_divides_by_its_length_and_by_nothing_else(divisor, scale, left):
    calls = calls_of(one_round("c2c", divisor=divisor))
    assert (calls.c2c[0].scale, calls.c2c[0].left) == (scale, left)
    assert calls.one_call == (left is None)


@pytest.mark.parametrize(
    ("kinds", "dims"), [(("r2c",), (0,)), (("c2c", "r2c"), (0, 1)), (("r2c", "c2c"), (1, 0))]
)
def test_real_values_and_what_follows_them_are_one_call_that_comes_first(kinds, dims):
    calls = calls_of(one_round(*kinds, divisor=Divisor(6)))
    (call,) = calls.r2c
    assert (call.dims, call.length, calls.c2c) == (dims, 6, ())
    assert (call.scale, call.left) == ("full", None)
    assert calls.begins_with_r2c
    assert not calls.begins_with_ffts
    assert calls.one_call


def test_a_chirp_keeps_real_values_apart_from_what_follows_them():
    round_ = one_round("c2c", "r2c")
    chirped = replace(round_.steps[0], chirp_in=Chirp(6, -1))
    calls = calls_of(Round((chirped, round_.steps[1]), round_.source, round_.target))
    assert [call.dims for call in (*calls.r2c, *calls.c2c)] == [(1,), (0,)]
    assert not calls.one_call


def test_what_gives_real_values_is_the_last_call():
    calls = calls_of(one_round("c2c", "c2r"))
    assert [call.kind for call in (*calls.c2c, *calls.c2r)] == ["c2c", "c2r"]
    assert not calls.one_call
    assert calls_of(one_round("c2r")).one_call


def test_calls_are_worked_out_once_for_equal_rounds():
    assert calls_of(one_round("c2c")) is calls_of(one_round("c2c"))
    assert calls_of(one_round("c2c")) is not calls_of(one_round("c2c", "c2c"))


def test_only_steps_that_are_more_than_ffts_have_tables():
    assert works_of(one_round("c2c", "c2c"), (0, 0), {}) == []
    program = axis_program(0, 12, (3, 4), kind="c2c", sign=-1)
    step, other = program.steps[0], program.steps[1].source
    source = Layout((AxisLayout((whole(other), whole(step.source))),))
    (work,) = works_of(Round((step,), source, transformed(source, (step,))), (0,), {})
    assert (step.source.size, other.size) == (3, 4)
    assert work.index_twiddle.table.tolist() == np.arange(4).tolist()
    assert work.index_in is work.index_out is work.spectrum is None
    tile = work.within(0, slice(1, 3))
    assert tile.index_twiddle.table.tolist() == [1, 2]
    assert tile.index_in is tile.index_out is None

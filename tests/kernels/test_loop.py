"""One round on one block against the formula, place by place."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from laws.law import small_tiles

from dask_bigfft.kernels.libraries import available, get_library
from dask_bigfft.kernels.loop import run_round
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.testing.oracles import exact_dft, exact_irdft, relative_l2
from dask_bigfft.testing.strategies import chunks_of, random_array
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, plain, whole
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.steps import Chirp, Divisor, Step, axis_program

SCIPY = get_library("scipy")
#: One that answers in the memory it transforms, and one that answers elsewhere as well.
LIBRARIES = [SCIPY, *(get_library(name) for name in available() if name == "ducc0")]
TOLERANCE = {np.dtype("c16"): 1e-14, np.dtype("c8"): 5e-6}


def brute_index(
    axis,
    block,
    stage,
    skip=None,
):
    """Index of one stage at each place of a block, one place at a time."""
    chunks = np.unravel_index(block, axis.grid)
    indices = []
    shape = [g.chunks[c] for i, (g, c) in enumerate(zip(axis.groups, chunks, strict=True))]
    others = [i for i in range(len(shape)) if i != skip]
    for place in np.ndindex(*[shape[i] for i in others]):
        total = 0
        for i, at in zip(others, place, strict=True):
            group = axis.groups[i]
            flat = sum(group.chunks[: chunks[i]]) + at
            for digit in reversed(group.digits):
                flat, value = divmod(flat, digit.size)
                total += value * digit.stride * (digit.stage == stage)
        indices.append(total)
    return np.array(indices)


@st.composite
def split_axes(draw, axis=0, kind="c2c"):
    """Program of an axis, a step of it, and a layout whose last group is the step's digit."""
    factors = tuple(draw(st.lists(st.integers(2, 6), min_size=1, max_size=3)))
    number = {"r2c": 0, "c2r": len(factors) - 1}.get(kind)
    if number is None:
        number = draw(st.integers(0, len(factors) - 1))
    program = axis_program(
        axis,
        int(np.prod(factors)),
        factors,
        kind=kind,
        sign=draw(st.sampled_from([-1, 1])),
    )
    digits = [s.source for s in program.steps]
    for step in program.steps[:number]:
        digits[digits.index(step.source)] = step.target
    n = program.steps[number].length
    divisors = [Divisor(), Divisor(n), Divisor(1, n), Divisor(7, 3)]
    divided = replace(program.steps[number], divisor=draw(st.sampled_from(divisors)))
    step = program.steps[number]
    others = draw(st.permutations([d for d in digits if d != step.source]))
    groups = [Group((d,), draw(chunks_of(d.size, 4))) for d in others]
    return divided, AxisLayout((*groups, whole(step.source)))


def expected_round(
    values,
    round_,
    block,
    steps,
):
    """The round by its definition: FFT of the digit, then exp(sign*2j*pi*k*r/M)."""
    spectrum = values.astype(np.clongdouble)
    for step in steps:
        dim = round_.dim(step)
        axis = round_.target.axes[step.axis]
        if step.kind == "c2r":
            spectrum = exact_irdft(
                spectrum,
                step.length,
                dim,
                step.sign,
            )
        else:
            spectrum = exact_dft(spectrum, dim, step.sign)
            spectrum = np.take(spectrum, np.arange(step.target.size), dim)
        spectrum = spectrum / (step.divisor.whole * np.sqrt(np.longdouble(step.divisor.root)))
        if step.twiddle is None:
            continue
        last = len(axis.groups) - 1
        rest = brute_index(
            axis,
            block[step.axis],
            step.target.stage - 1,
            last,
        )
        phase = np.multiply.outer(rest, np.arange(step.target.size)) % step.twiddle
        factor = np.exp(step.sign * 2j * np.pi * phase / np.longdouble(step.twiddle))
        first = dim - last
        shape = [1] * spectrum.ndim
        shape[first : dim + 1] = spectrum.shape[first : dim + 1]
        spectrum = spectrum * factor.reshape(shape)
    return spectrum


def check(
    round_,
    kinds,
    dtype,
    seed=0,
):
    real = np.dtype(dtype).type(0).real.dtype
    before = real if "r2c" in kinds else np.dtype(dtype)
    after = real if "c2r" in kinds else np.dtype(dtype)
    ordered = sorted(round_.steps, key=lambda s: ("r2c", "c2c", "c2r").index(s.kind))
    for block in round_.source.indices():
        values = random_array(round_.source.shape(block), before, seed)
        expected = expected_round(
            values,
            round_,
            block,
            ordered,
        )
        assert expected.shape == round_.target.shape(block)
        for library in LIBRARIES:
            own = values.copy()
            view = BlockView.of(own, owned=True)
            transformed = run_round(
                round_,
                block,
                view,
                library,
                after,
            )
            assert (transformed is own) == (kinds == {"c2c"})  # complex blocks in place
            assert transformed.dtype == after
            assert relative_l2(transformed, expected) < TOLERANCE[np.dtype(dtype)]
            room = np.full([2 * n + 1 for n in expected.shape], np.nan, after)
            place = room[(slice(1, None, 2),) * room.ndim]
            readonly = values.copy()
            readonly.flags.writeable = False
            view = BlockView.of(readonly, target=place)
            assert run_round(round_, block, view, library, after) is place
            assert relative_l2(place, expected) < TOLERANCE[np.dtype(dtype)]
            assert np.isnan(room).sum() == room.size - place.size
            np.testing.assert_array_equal(readonly, values)


@given(data=st.data(), dtype=st.sampled_from(["c16", "c8"]), tile=st.sampled_from([64, 500, 2**19]))
def test_a_round_over_one_axis(
    monkeypatch,
    data,
    dtype,
    tile,
):
    small_tiles(monkeypatch, tile)
    kind = data.draw(st.sampled_from(["c2c", "c2c", "r2c", "c2r"]))
    step, axis = data.draw(split_axes(0, kind))
    batch = data.draw(st.integers(0, 2))
    axes = [axis, plain(3, (2, 0, 1)), plain(2, (2,))][: 1 + batch]  # some blocks are empty
    layout = Layout(tuple(axes))
    check(Round((step,), layout, transformed(layout, (step,))), {kind}, dtype)


@given(data=st.data(), tile=st.sampled_from([64, 500, 2**19]))
def test_a_round_over_several_axes(monkeypatch, data, tile):
    """Digits of two or three axes at a time, of which one may be real, batch axes between."""
    small_tiles(monkeypatch, tile)
    kind = data.draw(st.sampled_from(["c2c", "r2c", "c2r"]))
    real = data.draw(st.integers(0, 2))
    steps_and_axes = [
        data.draw(split_axes(a, kind if a == real else "c2c").filter(lambda f: f[1].size <= 36))
        for a in range(3)
    ]
    some = data.draw(st.integers(0, 2))
    sign = data.draw(st.sampled_from([-1, 1]))
    steps = []
    axes = []
    for a, (step, axis) in enumerate(steps_and_axes):
        if a == some and a != real:
            axes.append(plain(2, (1, 1)))
            continue
        steps.append(replace(step, sign=sign))
        axes.append(axis)
    layout = Layout(tuple(axes))
    check(Round(tuple(steps), layout, transformed(layout, tuple(steps))), {kind}, "c16")


def test_a_chirp_before_and_after_a_whole_axis():
    """Chirp, FFT, chirp on one axis, and a real axis that is made real in the same round."""
    n = 5
    m = 12
    first = Digit(0, 1, m, m)
    step = Step(
        0,
        first,
        Digit(1, 1, m, m),
        chirp_in=Chirp(n, -1),
        chirp_out=Chirp(n, 1),
        sign=-1,
        divisor=Divisor(n),
    )
    halved = Step(
        1,
        Digit(0, 1, 3, 4),
        Digit(1, 1, 4, 4),
        kind="c2r",
        sign=1,
    )
    layout = Layout((AxisLayout((whole(first),)), AxisLayout((whole(halved.source),))))
    for steps, dtype in [((step,), "c16"), ((step, halved), "f8")]:
        values = random_array((m, 3), "c16", 4)
        places = np.arange(m)
        chirp = np.where(places < n, np.exp(-1j * np.pi * places**2 / n), 0)[:, None]
        expected = np.fft.fft(values * chirp, axis=0) * chirp.conj() / n
        if len(steps) == 2:
            expected = np.fft.irfft(
                expected,
                4,
                axis=1,
                norm="forward",
            )
        round_ = Round(steps, layout, transformed(layout, steps))
        view = BlockView.of(values.copy(), owned=True)
        chirped = run_round(
            round_,
            (0, 0),
            view,
            SCIPY,
            np.dtype(dtype),
        )
        assert relative_l2(chirped, expected) < 1e-14

"""Scaling: which step divides by the N (or its root) of a whole transform.

A factor that is rounded costs an error each time it is applied, so it is applied once, where that
is free: with a chirp or a twiddle, or by the FFT library if one round does the whole transform.
Division by powers of two is exact; there every axis may divide for itself.

Pure: imports only this room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import AxisProgram, Divisor, Step

Scale = Literal["none", "ortho", "full"]


def divisor_of(scale: Scale, length: int) -> Divisor:
    """Return what a scale divides by, over `length` points.

    >>> divisor_of("ortho", 12)
    Divisor(whole=1, root=12)
    """
    return {"none": Divisor(), "ortho": Divisor(1, length), "full": Divisor(length)}[scale]


def divided_steps(
    programs: Sequence[AxisProgram], rounds: Sequence[Round], scale: Scale
) -> Mapping[Step, Step]:
    """Return the steps that bear the scale of a transform, by what they replace.

    Parameters
    ----------
    programs : sequence of AxisProgram
        Of every transformed axis.
    rounds : sequence of Round
        The steps in the order in which they happen.
    scale : {"none", "ortho", "full"}
        Factor 1, 1/sqrt(N) or 1/N with N the product of all lengths.
    """
    if scale == "none" or not programs:
        return {}
    whole = {program: divisor_of(scale, program.length) for program in programs}
    exact = scale == "full" and all(p.length & (p.length - 1) == 0 for p in programs)
    together = len(rounds) == 1 and all(step.kind == "c2c" for step in rounds[0].steps)
    if exact or together:
        return {_bearer(p): replace(_bearer(p), divisor=found) for p, found in whole.items()}
    best = min(programs, key=lambda p: (not _is_free(_bearer(p)), _last_round(p, rounds)))
    total = math.prod(program.length for program in programs)
    step = _bearer(best)
    return {step: replace(step, divisor=divisor_of(scale, total))}


def _is_free(step: Step) -> bool:
    """Whether a step multiplies anyway."""
    return step.chirp_out is not None or step.twiddle is not None


def _bearer(program: AxisProgram) -> Step:
    """The step of an axis that had best divide: its last chirp, its first twiddle, its last FFT."""
    last = program.steps[-1]
    if last.chirp_out is not None:
        return last
    return next((step for step in program.steps if step.twiddle is not None), last)


def _last_round(program: AxisProgram, rounds: Sequence[Round]) -> int:
    """Number of rounds that follow the one in which an axis divides."""
    bearer = _bearer(program)
    return next(n for n, round_ in enumerate(reversed(rounds)) if bearer in round_.steps)


def divided(
    programs: tuple[AxisProgram, ...], rounds: tuple[Round, ...], scale: Scale
) -> tuple[tuple[AxisProgram, ...], tuple[Round, ...]]:
    """Return programs and rounds whose steps divide by what the scale asks for."""
    new = divided_steps(programs, rounds, scale)
    return (
        tuple(replace(p, steps=tuple(new.get(s, s) for s in p.steps)) for p in programs),
        tuple(replace(r, steps=tuple(new.get(s, s) for s in r.steps)) for r in rounds),
    )

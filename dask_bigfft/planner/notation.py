"""Names of axes, steps and rounds in short, such as ``{Y1} {Y2, X}``.

Pure: imports `transforms` and `decomposition`.
"""

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import AxisProgram, Step
from dask_bigfft.transforms.spec import TransformSpec

_LETTERS = "XYZWVU"


def axis_letter(axis: int, ndim: int) -> str:
    """Name of an axis as the papers have it: X is the last, Y the one before.

    >>> axis_letter(1, 2), axis_letter(0, 3), axis_letter(0, 9)
    ('X', 'Z', 'A0')
    """
    place = ndim - 1 - axis
    return _LETTERS[place] if place < len(_LETTERS) else f"A{axis}"


def step_name(spec: TransformSpec, program: AxisProgram, step: Step) -> str:
    """Name of a step, such as ``Y1`` (first digit of Y), or ``X`` where the axis is whole."""
    letter = axis_letter(step.axis, len(spec.shape))
    if len(program.steps) == 1:
        return letter
    number = program.steps.index(step) + 1
    return f"{letter}{number}" + ("*" if step.convolve is not None else "")


def notation(
    spec: TransformSpec, programs: tuple[AxisProgram, ...], rounds: tuple[Round, ...]
) -> str:
    """Rounds in short."""
    by_axis = {program.axis: program for program in programs}
    return " ".join(
        "{" + ", ".join(step_name(spec, by_axis[s.axis], s) for s in round_.steps) + "}"
        for round_ in rounds
    )

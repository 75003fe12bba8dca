"""Variants: in which order the digits of an axis lie while they are transformed.

All variants replace n1 by k1, then n2 by k2, and so on; they differ in where the digits lie,
and so in what moves between rounds (Marichal-Hernandez, Rosa, Rodriguez-Ramos 2006, fig. 1).
For three digits, outermost first, from the input to after the last round::

    dif        n1 n2 n3    k1 n2 n3    k1 k2 n3    k1 k2 k3    reversal at the output
    dit        n3 n2 n1    n3 n2 k1    n3 k2 k1    k3 k2 k1    reversal at the input
    stockham   n1 n2 n3    n2 n3 k1    n3 k2 k1    k3 k2 k1    self-sorting: no reversal
    pease      n1 n2 n3    n2 n3 k1    n3 k1 k2    k1 k2 k3    the same move every time

Blocks are cut along the outermost digit that is not being transformed. ``auto`` lets the planner
choose the cuts, and stores digits as ``dif`` for a result in transposed order, else as
``stockham``.

Pure: imports `layout` only.
"""

from collections.abc import Sequence

from dask_bigfft.decomposition.layout import Digit

#: The variants by name.
VARIANTS = ("auto", "dif", "dit", "stockham", "pease")


def stored_order(digits: Sequence[Digit], variant: str, order: str) -> list[Digit]:
    """The digits of an axis, outermost first, as a variant stores them.

    Parameters
    ----------
    digits : sequence of Digit
        Digits that are not being transformed.
    variant : str
        One of `VARIANTS`.
    order : {"natural", "transposed"}
        Order of the result, for ``auto``.

    Examples
    --------
    >>> n2, n3, k1 = Digit(0, 4, 4, 4), Digit(0, 1, 4, 4), Digit(1, 1, 4, 4)
    >>> stored_order([k1, n2, n3], "pease", "natural") == [n2, n3, k1]
    True
    >>> stored_order([k1, n2, n3], "dit", "natural") == [n3, n2, k1]
    True
    """
    first = min((digit.stage for digit in digits), default=0)
    inputs = [digit for digit in digits if digit.stage == first]
    outputs = [digit for digit in digits if digit.stage != first]
    if len({digit.stage for digit in digits}) == 1 and first > 0:
        inputs, outputs = [], inputs
    inputs.sort(key=lambda digit: -digit.stride)
    outputs.sort(key=lambda digit: (digit.stage, digit.stride))
    if variant == "auto":
        variant = "dif" if order == "transposed" else "stockham"
    if variant == "dif":
        return [*outputs, *inputs]
    if variant == "dit":
        return [*reversed(inputs), *reversed(outputs)]
    if variant == "stockham":
        return [*inputs, *reversed(outputs)]
    return [*inputs, *outputs]

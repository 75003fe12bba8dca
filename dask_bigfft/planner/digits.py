"""Lengths of the digits of a split axis that are worth trying.

Pure: imports `transforms` and `decomposition`.
"""

import math

from dask_bigfft.decomposition.factors import balanced_split, divisors, transposed_digits
from dask_bigfft.transforms.spec import TransformSpec

Factors = tuple[int, ...]


def nearest_divisors(n: int, ideal: float) -> list[int]:
    """The divisors of n next to `ideal` on either side, 1 and n left out."""
    inner = [d for d in divisors(n) if 1 < d < n]
    below = [d for d in inner if d <= ideal][-1:]
    above = [d for d in inner if d > ideal][:1]
    return below + above


def factor_choices(
    spec: TransformSpec, axis: int, places: tuple[int, ...], whole: dict[int, int], variant: str
) -> list[Factors]:
    """Lengths of the digits of a split axis worth trying.

    The digits of the order that is asked for come first. `whole` is the product of the lengths
    of the unsplit axes in each round: digits are chosen so that rounds are of like size (Gu,
    Siegel, Li 2011, section 6.2).
    """
    n = spec.lengths[spec.axes.index(axis)]
    count = len(places)
    found: list[Factors] = []
    i = spec.axes.index(axis)
    for order, backwards in ((spec.orders_in[i], True), (spec.orders_out[i], False)):
        digits = spec.digits_of(axis) or transposed_digits(n)
        if order == "transposed" and len(digits) == count:
            found.append(digits[::-1] if backwards else digits)
    if count == 2:
        ideal = math.sqrt(n * whole.get(places[1], 1) / whole.get(places[0], 1))
        found += [(d, n // d) for d in nearest_divisors(n, ideal)]
    split = balanced_split(n, count)
    if split is not None:
        found += [split, split[::-1]]
        if count > 2:
            found.append((*split[: count // 2], split[-1], *split[count // 2 : -1]))
    if variant == "pease":
        found = [f for f in found if len(set(f)) == 1]
    return list(dict.fromkeys(found))


def few_source_factors(n: int, most: int) -> list[Factors]:
    """Return three digits of an axis in very many chunks, for blocks of few source blocks each.

    A block of the first round is gathered from at least as many chunks as its digit is long. The
    second digit is short, too: a chunk of the first round has many of its values, and much of the
    third digit.

    Parameters
    ----------
    n : int
        Length of the axis.
    most : int
        Blocks that a block may be gathered from.

    Examples
    --------
    >>> few_source_factors(2**39, 4096)[0], few_source_factors(7, 4096)
    ((4096, 512, 262144), [])
    """
    first = max((d for d in divisors(n) if d <= most), default=1)
    seconds = {d for ideal in (512, 1536) for d in nearest_divisors(n // first, ideal)}
    return [(first, d, n // first // d) for d in sorted(seconds) if first > 1]


def wide_factors(n: int, room: int, blocks: int) -> list[Factors]:
    """Return two digits of an axis that leave rows wide: the first as short as it can be.

    A piece of the first round, and one that puts the result into its order, has rows of what fits
    it beside the whole first digit. Every block has some of the first digit in the second round,
    whose digit has to fit a piece.

    Parameters
    ----------
    n : int
        Length of the axis.
    room : int
        Elements of a piece of a device.
    blocks : int
        Blocks along the axis.

    Examples
    --------
    >>> wide_factors(2**30, 2**24, 64), wide_factors(2**30, 2**24, 1024), wide_factors(7, 4, 2)
    ([(256, 4194304)], [(1024, 1048576)], [])
    >>> wide_factors(11, 2**24, 1)
    []
    """
    least = max(2, blocks, -(-n // max(1, room)), math.isqrt(math.isqrt(n)))
    found = next((d for d in divisors(n) if least <= d < n), None)
    return [] if found is None else [(found, n // found)]

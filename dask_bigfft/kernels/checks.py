"""Verification of rounds by Parseval's theorem and by linear checksums.

::

    energy      sum |y|^2 = gain * sum |x|^2, gain = product of the lengths / divisor^2
    checksum    beside that, for every tile:  sum r*FFT(x) = sum FFT(r)*x

with seeded random weights r (`weights_of`), after twiddles are undone. Values of half a spectrum
count twice, except entries 0 and N/2. An inverse real transform uses only the real parts of these
two. Squares of very small values underflow, and the tolerance includes this error.

Tiles are summed before and after the round while they are in cache, and stored after the check. A
tile that does not match is loaded and transformed once more. A second mismatch is an error. Rounds
with chirps (Bluestein's algorithm), or with twiddles before real results, do not conserve energy,
so each of their tiles is transformed twice and compared. The results must be equal. NaN and
infinity cannot be checked, and a warning reports them.

A product with a transfer function does not conserve energy, either. The FFTs before it and those
after it are summed apart, and the product is computed twice and compared::

    tile -> sums -> FFTs -> copy -> sums -> product ----------------> sums, == -> FFTs -> sums
                              `-> product of the copy ----------------------^

The copy is multiplied before the spectrum is summed, and the product is summed before it is
compared, so that no value is without a check in between. Two products do not show an error of both,
such as a wrong value of a transfer function.

A GPU does a whole round twice where energy is not conserved, products included, and results must be
equal within rounding errors, because CPU threads may have shared the work. So an error at a
frequency that is then multiplied by 0 is not noticed there; it does not change the result.

A tile is always loaded from an intact source: the round reads a copy, whoever owns the block, and
the result takes its place only after the check.

===================================  ======  ========
what goes wrong inside a round       energy  checksum
===================================  ======  ========
an exponent, a high mantissa bit     finds   finds
a sign, a conjugate, a permutation           finds
a missing twiddle                            finds
a bit below the rounding error
===================================  ======  ========

In checksum mode, packed shards carry a checksum (`exchange.packing`) that finds changes of memory
between rounds. Blocks in shared memory are not checked between rounds.

Sources: Parseval's theorem; for linear checksums Jou and Abraham, Proc. IEEE 74, 1986, and Wang
and Jha, IEEE Trans. Computers 43, 1994.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from operator import mul
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.fft

from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.errors import VerificationError
from dask_bigfft.events import emit
from dask_bigfft.kernels.compiled import FAST, added, compiled, squares_of_line
from dask_bigfft.kernels.copies import may_compile, pays
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.loop import (
    BoundFactor,
    CPUExecutor,
    Filters,
    bound_factor,
    run_round,
    transform_tile,
)
from dask_bigfft.kernels.transfer import BoundTransfer
from dask_bigfft.kernels.twiddle import phase_table, twiddle
from dask_bigfft.kernels.views import BlockView, intervals
from dask_bigfft.tiles.program import program_of
from dask_bigfft.transforms.layout import half
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Divisor, Step

#: Length of the stretches of a line whose weights differ only by one factor.
WIDTH = 128

#: Minimum length of a line, if the tile allows it.
LINE = 16


class Weights(NamedTuple):
    """Weights of a tile as a set of lines: a factor for each line and one for each place in it.

    Real and imaginary parts are interleaved like those of the values, so that both parts of a sum
    are sums of real products.
    """

    #: Weights of the lines, and of the places in a line, real or complex.
    rows: Array
    line: Array
    #: Weight of a place in the real part of the sum, and in the imaginary part.
    for_real: Array
    for_imag: Array
    #: Factors of the weights of places: that of place i * `WIDTH` + j is outer[i] * inner[j].
    outer: Array
    inner: Array


@lru_cache(maxsize=256)
def _signed(dim: int, length: int, size: int) -> Array:
    """Return seeded real weights of the first `size` of `length` places."""
    rng = np.random.default_rng([dim, length, size])
    weights: Array = rng.uniform(0.5, 1.5, size)
    weights *= rng.choice([-1.0, 1.0], size)
    return weights


@lru_cache(maxsize=64)
def _products(length: int, size: int) -> Array:
    """Return seeded complex weights that are products of two factors."""
    rng = np.random.default_rng([length, size])
    outer = np.exp(2j * np.pi * rng.random(-(-size // WIDTH)))
    inner = np.exp(2j * np.pi * rng.random(WIDTH))
    weights: Array = np.outer(outer, inner).ravel()[:size]
    return weights


def _after(step: Step, dim: int) -> Array:
    """Return the weights of a step's output."""
    if step.twiddle is None:
        return _signed(dim, step.length, step.target.size)
    return _products(step.length, step.target.size)


@lru_cache(maxsize=64)
def _before(step: Step, dim: int) -> Array:
    """Return the weights of a step's input: those of its output times the matrix of the FFT."""
    n = step.length
    weights_after = np.zeros(n, complex)
    size = n if step.kind == "c2r" else step.target.size
    weights_after[:size] = _after(step, dim)
    weights: Array = scipy.fft.fft(weights_after)
    if step.sign > 0:
        weights = n * scipy.fft.ifft(weights_after)
    if step.kind != "c2r":
        return weights
    # Entries of half a spectrum count twice, but for those without a mirror image.
    weights = 2 * weights[: half(n)]
    weights[0] /= 2
    if n % 2 == 0:
        weights[n // 2] /= 2
    return weights


def first_dim_of_lines(shape: tuple[int, ...], twiddled: frozenset[int]) -> int:
    """Return the first of the dimensions that form the lines of a tile.

    Lines take in dimensions from the last one on until they have `LINE` values. A dimension with
    twiddles is the first of the lines if they have one place otherwise, and is none of them else,
    since twiddles are multiplied with the weights of lines, or of places for the last dimension.

    >>> first_dim_of_lines((4, 256, 256), frozenset()), first_dim_of_lines((4, 100, 8), frozenset())
    (2, 1)
    >>> first_dim_of_lines((4, 256, 2), frozenset({1})), first_dim_of_lines((9, 8), frozenset({1}))
    (2, 1)
    """
    first = len(shape)
    while first > 0:
        outer = first - 1
        if outer in twiddled and math.prod(shape[first:]) > 1:
            break
        first = outer
        if outer in twiddled or math.prod(shape[first:]) >= LINE:
            break
    return first


@lru_cache(maxsize=32)
def weights_of(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    first: int,
    steps: tuple[tuple[int, Step], ...],
    inward: bool,
) -> Weights:
    """Return the weights of a tile, without twiddles.

    Parameters
    ----------
    shape, dtype
        Shape and dtype of the tile.
    first : int
        First of the dimensions that form lines.
    steps : tuple of (int, Step)
        Steps with their dimensions.
    inward : bool
        True for the input of the steps, False for their output.
    """
    step_of = dict(steps)
    along = []
    for dim, size in enumerate(shape):
        step = step_of.get(dim)
        if step is None:
            along.append(_signed(dim, 0, size))
        else:
            along.append(_before(step, dim) if inward else _after(step, dim))
    rows = _outer_product(along[:first])
    line = _outer_product(along[first:])
    line = line.astype(np.result_type(line, np.complex128))
    for_real = line.real
    for_imag = line.imag
    if dtype.kind == "c":
        for_real = line.conj().view(float)
        for_imag = (1j * line.conj()).view(float)
    real_dtype = np.empty(0, dtype).real.dtype
    return Weights(
        rows,
        line,
        np.ascontiguousarray(for_real, real_dtype),
        np.ascontiguousarray(for_imag, real_dtype),
        line[::WIDTH].copy(),
        line[:WIDTH] / line[0] if len(line) else line,
    )


def _outer_product(factors: Sequence[Array]) -> Array:
    """Return the flattened outer product of some arrays."""
    product: Array = np.ones(1)
    for factor in factors:
        product = np.outer(product, factor).ravel()
    return product


#: Number of places per strip, so that both parts of their weights stay in L1.
STRIP = 1024

#: Bytes that NumPy copies in the time in which it sums one byte with weights.
SUM_COST = 8

#: Dtypes of values that compiled loops sum.
_SUMMED = "FDfd"


class PhaseFactors(NamedTuple):
    """Twiddles ``exp(sign*2j*pi*rest[l]*f/modulus)`` of rows l and places f.

    If `rest` has fewer entries than there are rows, it is repeated.
    """

    rest: Ints
    modulus: int
    sign: int


@partial(compiled, fastmath=FAST)
def _weighed_dot(x, a, b):  # type: ignore[no-untyped-def]
    """Return the sums of a line with two sets of weights, and its energy."""
    s = x.dtype.type(0)
    t = x.dtype.type(0)
    e = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        s += a[i] * v
        t += b[i] * v
        e += v * v
    return s, t, e


@compiled
def _sum_of_rows(  # type: ignore[no-untyped-def]
    x,
    rows,
    for_real,
    for_imag,
    out,
):
    """Write both parts of the weighted sum of all lines, and their energy, to `out`."""
    width = len(for_real)
    squares = 0.0
    squares_lost = 0.0
    total = 0j
    total_lost = 0j
    for low in range(0, width, STRIP):
        high = min(width, low + STRIP)
        for j in range(len(rows)):
            s, t, e = _weighed_dot(x[j, low:high], for_real[low:high], for_imag[low:high])
            total, total_lost = added(total, total_lost, rows[j] * complex(s, t))
            squares, squares_lost = added(squares, squares_lost, float(e))
    out[0] = total.real
    out[1] = total.imag
    out[2] = squares


@compiled
def _sum_of_twiddled(  # type: ignore[no-untyped-def]
    x,
    a,
    outer,
    inner,
    rest,
    coarse,
    fine,
    shift,
    mask,
    work,
    out,
):
    """Write both parts of the weighted sum of twiddled lines, and their energy, to `out`.

    `x` has the real and imaginary parts of a line in each row, by turns. Rows have the weights `a`.
    The twiddles of row o have the other index rest[o % len(rest)], and
    are looked up in two tables, `coarse` and `fine`, with `shift` and `mask` (`PhaseTable`). `work`
    has memory for weights of both parts.

    The weight of place i * len(inner) + j is outer[i] * inner[j], and so is the twiddle a product:
    so a line is summed in stretches with equal weights, whose sums are then combined.
    """
    n = x.shape[1] // 2
    width = len(inner)
    squares = 0.0
    squares_lost = 0.0
    total = 0j
    total_lost = 0j
    for_real = work[0]
    for_imag = work[1]
    for o in range(x.shape[0]):
        r = rest[o % len(rest)]
        along = 0j
        for j in range(min(width, n)):
            w = inner[j] * coarse[(r * j) >> shift] * fine[(r * j) & mask]
            for_real[2 * j] = w.real
            for_real[2 * j + 1] = -w.imag
            for_imag[2 * j] = w.imag
            for_imag[2 * j + 1] = w.real
        for i in range(len(outer)):
            start = 2 * i * width
            stop = min(2 * (i + 1) * width, 2 * n)
            s, t, e = _weighed_dot(x[o, start:stop], for_real, for_imag)
            place = r * i * width
            along += outer[i] * coarse[place >> shift] * fine[place & mask] * complex(s, t)
            squares, squares_lost = added(squares, squares_lost, float(e))
        total, total_lost = added(total, total_lost, a[o] * along)
    out[0] = total.real
    out[1] = total.imag
    out[2] = squares


def weighted_sum(
    values: Array, weights: Weights, factors: PhaseFactors | None = None
) -> tuple[complex, float]:
    """Return the sum of all values with weights, and their energy.

    Parameters
    ----------
    values : ndarray, contiguous
        Real or complex.
    weights : Weights
        For values of this shape and dtype.
    factors : PhaseFactors, optional
        Twiddles that the weights of places, which are products, are multiplied with, for complex
        values.
    """
    rows = values.reshape(len(weights.rows), -1)
    if values.dtype.char not in _SUMMED:
        return _wide_sum(rows, weights, factors), energy(values)
    x = rows.view(rows.real.dtype)
    sums = np.empty(3)
    if factors is None:
        arguments: tuple[Any, ...] = (
            x,
            weights.rows,
            weights.for_real,
            weights.for_imag,
            sums,
        )
        loop = _sum_of_rows
    else:
        table = phase_table(factors.modulus, factors.sign)
        arguments = (
            x,
            weights.rows,
            weights.outer,
            weights.inner,
            factors.rest,
            *table,
            np.empty((2, 2 * len(weights.inner)), x.dtype),
            sums,
        )
        loop = _sum_of_twiddled
    if not (_sums_pay(values) and loop.call(arguments, may_compile())):
        return _wide_sum(rows, weights, factors), energy(values)
    real, imag, squares = sums.tolist()
    return complex(real, imag), squares


def _sums_pay(values: Array) -> bool:
    """Return True if compiled sums of values have reached the JIT threshold, see `pays`."""
    return pays((values.dtype, values.dtype), 1, SUM_COST * values.nbytes)


def _wide_sum(rows: Array, weights: Weights, factors: PhaseFactors | None) -> complex:
    """Return the weighted sum of values by NumPy."""
    line_weights = weights.line
    if factors is not None:
        line_weights = np.tile(weights.line, (len(rows), 1))
        rest = np.tile(factors.rest, len(rows) // len(factors.rest))
        twiddle(
            line_weights[:, :, None],
            rest,
            factors.modulus,
            factors.sign,
        )
    with np.errstate(over="ignore", invalid="ignore"):
        line_sums = (rows * line_weights).sum(axis=1)
        return complex((line_sums * weights.rows).sum())


def energy(values: Array) -> float:
    """Return the sum of squared magnitudes of an array.

    >>> energy(np.array([[3 + 4j, 0], [0, 1j]]))
    26.0
    """
    if values.dtype.char in _SUMMED:
        line = np.ascontiguousarray(values).reshape(-1)
        total = np.empty(1)
        arguments = (line.view(line.real.dtype), total)
        if _sums_pay(values) and squares_of_line.call(arguments, may_compile()):
            return float(total[0])
    wide = values.astype(np.result_type(values.dtype, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return float((wide.real**2 + wide.imag**2).sum())


def _energy_of_whole(values: Array, half: tuple[Step, int] | None, total: float | None) -> float:
    """Return the energy of all values, or of the full spectrum if `half` names a step of one.

    `total` is the energy of `values`, if it is known. Entry 0 and, for even n, entry n/2 of half a
    spectrum have no mirror image.
    """
    if total is None:
        total = energy(values)
    if half is None:
        return total
    step, dim = half
    unmirrored = [0] if step.length % 2 else [0, step.length // 2]
    entries = [values[(slice(None),) * dim + (i,)] for i in unmirrored]
    return 2 * total - sum(map(energy, entries))


#: Maximum number of squares per value: two parts, twice for half a spectrum.
SQUARES = 4


class TileSums(NamedTuple):
    """Sums over a tile before its round."""

    #: Energy of the tile.
    energy: float
    #: Energy that the FFTs use: without the imaginary parts that real results ignore.
    used_energy: float
    #: Largest possible loss of energy by underflow.
    lost: float
    #: Weighted sum, if there are checksums.
    checksum: complex | None


@lru_cache(maxsize=8)
def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the rounding error and the least normal number of sums, at best of double ones."""
    own = np.finfo(dtype)
    double = np.finfo(np.float64)
    return max(float(own.eps), float(double.eps)), max(float(own.tiny), float(double.tiny))


def _lost(values: Array) -> float:
    """Return the largest possible error of the energy by underflow of squares."""
    return SQUARES * values.size * _limits(values.dtype)[1]


class Unmatched(Exception):
    """Mismatch of sums before and after a round."""


class Facts:
    """Properties of a round that its checks need, the same for all blocks and both modes."""

    def __init__(self, round_: Round) -> None:
        #: Pairs of dimension and step.
        self.steps = tuple((round_.dim(step), step) for step in round_.steps)
        steps = [step for _, step in self.steps]
        #: Product of the lengths, and the divisor of the round.
        self.length = math.prod(step.length for step in steps)
        self.divisor = reduce(mul, (step.divisor for step in steps), Divisor()).value
        #: Factor of the energy, and the tolerance of a sum in units of the rounding error.
        self.gain = self.length / self.divisor**2
        self.digits = 16 + 4 * math.log2(self.length)
        #: Dimensions of steps with twiddles.
        self.twiddled = frozenset(dim for dim, step in self.steps if step.twiddle is not None)
        of_kind = {step.kind: (step, dim) for dim, step in self.steps if step.kind != "c2c"}
        #: The step with half a spectrum as output, if there is one, and its dimension.
        self.half_output = of_kind.get("r2c")
        #: The step with half a spectrum as input, if there is one, and its dimension.
        self.half_input = of_kind.get("c2r")
        #: True if the values after the round are real.
        self.real = self.half_input is not None


facts_of = lru_cache(maxsize=256)(Facts)


@dataclass(eq=False)
class RoundSums:
    """Sums over tiles of a block before and after the FFTs of a round that conserves energy.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Sums to compare.
    round, block, library
        See `run_round`.
    """

    mode: str
    round: Round
    block: Block
    library: FFTLibrary
    #: True if some values could not be checked.
    undecided: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.facts = facts_of(self.round)
        #: Twiddles of the block, by dimension of their steps.
        self._twiddles: dict[int, BoundFactor] = {}
        #: First dimension of the lines, and weights, by shape and dtype of a tile and direction.
        self._weights_of: dict[Any, tuple[int, Weights]] = {}

    def before(self, tile: Array) -> TileSums:
        """Return the energy of a tile before the FFTs, and its checksum."""
        checksum: complex | None = None
        total: float | None = None
        if self.mode == "checksum":
            checksum, total = self._summed(tile, inward=True)
            if self.facts.real:
                checksum = checksum.real
            checksum /= self.facts.divisor
        half_input = self.facts.half_input
        tile_energy = _energy_of_whole(tile, half_input, total)
        used_energy = tile_energy
        if half_input is not None and math.isfinite(tile_energy):
            step, dim = half_input
            used_energy -= self._ignored_energy(tile, step, dim)
        return TileSums(
            tile_energy,
            used_energy,
            _lost(tile),
            checksum,
        )

    def after(
        self,
        result: Array,
        before: TileSums,
        dim: int,
        part: slice | None,
    ) -> None:
        """Compare a tile's result, cut along `dim`, with the sums of its input.

        Sums that are not finite, or would overflow, leave it `undecided`.

        Raises
        ------
        Unmatched
            If they differ by more than rounding errors.
        """
        facts = self.facts
        if not math.isfinite(facts.gain * before.energy * facts.length):
            self.undecided = True
            return
        checksum: complex | None = None
        total: float | None = None
        if before.checksum is not None:
            checksum, total = self._summed(
                result,
                inward=False,
                dim=dim,
                part=part,
            )
        rounding_error = _limits(result.dtype)[0] * facts.digits
        energy_after = _energy_of_whole(result, facts.half_output, total)
        expected_energy = facts.gain * before.used_energy
        lost = _lost(result)
        tolerance = rounding_error * facts.gain * before.energy + facts.gain * before.lost + lost
        energies_match = abs(energy_after - expected_energy) <= tolerance  # False for NaN
        if not energies_match:
            raise Unmatched(f"the energy is {energy_after!r} and should be {expected_energy!r}")
        if checksum is None or before.checksum is None:
            return
        largest = (max(energy_after, 0) + lost) * facts.length
        difference = abs(checksum - before.checksum)
        allowed = rounding_error * math.sqrt(largest)
        checksums_match = difference <= allowed  # False for NaN
        if not checksums_match:
            text = f"a linear checksum is off by {difference:.3g}, more than {allowed:.3g}"
            raise Unmatched(text)

    # --- energy ---

    def _ignored_energy(self, tile: Array, step: Step, dim: int) -> float:
        """Return the energy that c2r ignores: that of the imaginary parts of real entries."""
        real_entries = [0] if step.length % 2 else [0, step.length // 2]
        planes = np.ascontiguousarray(tile.take(real_entries, axis=dim))
        scale = 1
        for along, other in self.facts.steps:
            if other is not step:
                planes = self.library.c2c(planes, (along,), other.sign)
                scale *= other.length
        return energy(np.ascontiguousarray(planes.imag)) / scale

    # --- linear checksums ---

    def _summed(
        self,
        values: Array,
        inward: bool,
        dim: int = 0,
        part: slice | None = None,
    ) -> tuple[complex, float]:
        """Return the weighted sum of a tile without its twiddles, and its energy."""
        values = np.ascontiguousarray(values)
        first, weights = self._weights(values, inward)
        if inward:
            return weighted_sum(values, weights)
        factors: PhaseFactors | None = None
        for along, step in self.facts.steps:
            if step.twiddle is None:
                continue
            others = self._other_index(along, dim, part)
            if along >= first:
                factors = PhaseFactors(others, step.twiddle, -step.sign)
            else:
                shape = values.shape[:first]
                rows = _untwiddled(
                    weights.rows,
                    shape,
                    along,
                    step,
                    others,
                )
                weights = weights._replace(rows=rows)
        return weighted_sum(values, weights, factors)

    def _weights(self, values: Array, inward: bool) -> tuple[int, Weights]:
        """Return the first dimension of the lines of a tile, and its weights without twiddles."""
        key = (values.shape, values.dtype, inward)
        if key not in self._weights_of:
            twiddled = frozenset[int]() if inward else self.facts.twiddled
            first = first_dim_of_lines(values.shape, twiddled)
            weights = weights_of(
                values.shape,
                values.dtype,
                first,
                self.facts.steps,
                inward,
            )
            self._weights_of[key] = (first, weights)
        return self._weights_of[key]

    def _other_index(self, along: int, dim: int, part: slice | None) -> Array:
        """Return the index of the other digits of a step's axis, for each row of a tile.

        Parameters
        ----------
        along : int
            Dimension of the step.
        dim, part : int and slice or None
            Dimension along which tiles are cut, and the tile.
        """
        bound_twiddle = self._twiddles.get(along)
        if bound_twiddle is None:
            step_twiddle = program_of(self.round).twiddle_of(along)
            assert step_twiddle is not None
            bound_twiddle = bound_factor(step_twiddle, self.round, self.block)
            self._twiddles[along] = bound_twiddle
        if part is not None:
            bound_twiddle = bound_twiddle.within(dim, part)
        return bound_twiddle.table.ravel()


def _untwiddled(
    rows: Array,
    shape: tuple[int, ...],
    along: int,
    step: Step,
    others: Array,
) -> Array:
    """Return weights of lines (a tile of `shape`) times the inverse of a step's twiddles.

    `others` has the index of the other digits for each row.
    """
    assert step.twiddle is not None
    outer = math.prod(shape[:along])
    inner = math.prod(shape[along + 1 :])
    weights = rows.astype(complex).reshape(outer, shape[along], inner)
    twiddle(
        weights,
        np.tile(others, outer // len(others)),
        step.twiddle,
        -step.sign,
    )
    return weights.reshape(-1)


#: Tolerance between two computations of a round, in rounding errors times the logarithm of its
#: size.
NEAR = 16

#: Number of values compared at a time.
COMPARED = 1 << 16


def near_values(values: Array, others: Array) -> bool:
    """Return True if values agree within the rounding errors of different FFT libraries.

    Rounding errors scale with the largest values of a line, so the tolerance is relative to the
    root mean square of all values. Values that are not finite must be so in both arrays; their
    kinds and signs are not compared.
    """
    rounding = NEAR * math.log2(max(2, values.size)) * float(np.finfo(values.dtype).eps)
    values = values.reshape(-1)
    others = others.reshape(-1)
    finite = np.isfinite(values)
    if not np.array_equal(finite, np.isfinite(others)):
        return False
    if not finite.all():
        values = values[finite]
        others = others[finite]
    parts = list(intervals(values.size, COMPARED))
    # Squares of values up to 1 do not overflow; 1 also stands for the largest of zeros.
    largest = max((np.abs(values[part]).max() for part in parts), default=0) or 1
    squares = sum(energy(values[part] / largest) for part in parts)
    mean = largest * math.sqrt(squares / max(1, values.size))
    tolerance = rounding * mean
    return all(
        np.allclose(
            values[part],
            others[part],
            rtol=rounding,
            atol=tolerance,
        )
        for part in parts
    )


#: Function that runs a round of a block on a GPU, or returns None if it cannot.
Runner = Callable[[BlockView], Array | None]

Result = TypeVar("Result")


@dataclass(eq=False)
class Verification:
    """One round of one block with its checks.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Sums to compare.
    round, block, library, out_dtype, filters
        See `run_round`.
    number : int
        Number of the round from 1, for error messages.
    """

    mode: str
    round: Round
    block: Block
    library: FFTLibrary
    out_dtype: np.dtype[Any]
    filters: Filters
    number: int = 0

    def __post_init__(self) -> None:
        parts: tuple[Round, ...] = (self.round,)
        if self.round.multiplies:
            parts = self.round.without_windows.halves
        #: Sums of the round, or of the FFTs before its product and of those after it.
        self.sums: list[RoundSums] = []
        for part in parts:
            self.sums.append(
                RoundSums(
                    self.mode,
                    part,
                    self.block,
                    self.library,
                )
            )

    # --- rounds ---

    def run(self, view_of: Callable[[], BlockView]) -> Array:
        """Return the block after the round on the CPU; `view_of` returns a view of its input."""
        executor = partial(CheckedExecutor, check=self)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._reported(self._on_cpu(view_of(), executor))

    def run_elsewhere(self, view_of: Callable[[], BlockView], runner: Runner) -> Array | None:
        """Return the block after the round on a GPU, checked as a whole; None like the runner."""
        if not self.round.keeps_energy:
            return self.repeated(partial(self._compared, view_of, runner))
        block = self.repeated(partial(self._checked, view_of, runner))
        return None if block is None else self._reported(block)

    def _compared(self, view_of: Callable[[], BlockView], runner: Runner) -> Array:
        """Return the block after two equal runs of a round on a GPU, or else on the CPU."""
        blocks = []
        for _ in range(2):
            block = runner(view_of())
            blocks.append(self._on_cpu_intact(view_of()) if block is None else block)
        first, second = blocks
        if not near_values(first, second):
            raise Unmatched("two runs differ")
        return first

    def _checked(self, view_of: Callable[[], BlockView], runner: Runner) -> Array | None:
        """Return the block after a round on a GPU whose sums match; None like the runner.

        The round keeps energy and multiplies by no operand, so it has one kind of sums. If they do
        not match, `Unmatched` is raised.
        """
        values = view_of().gather()
        with np.errstate(over="ignore", invalid="ignore"):
            (sums,) = self.sums
            before = sums.before(values)
            block = runner(BlockView.of(values, owned=True))
            if block is not None:
                sums.after(
                    block,
                    before,
                    0,
                    None,
                )
        return block

    def _on_cpu(self, view: BlockView, executor: Callable[..., CPUExecutor] = CPUExecutor) -> Array:
        """Return the block after the round on the CPU."""
        return run_round(
            self.round,
            self.block,
            view,
            self.library,
            self.out_dtype,
            self.filters,
            executor,
        )

    def _on_cpu_intact(self, view: BlockView) -> Array:
        """Return the block after the round, without overwriting its input."""
        return self._on_cpu(
            BlockView(
                view.shape,
                view.dtype,
                view.array,
                view.tables,
                new_table=view.new_table,
            )
        )

    def repeated(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of an attempt, which is repeated once after a mismatch.

        A second mismatch is a `VerificationError`. Other errors are not repeated.
        """
        mismatches: list[str] = []
        while len(mismatches) < 2:
            try:
                return attempt()
            except Unmatched as error:
                emit("mismatch", index=self.number)
                mismatches.append(str(error))
        text = "; done once more: ".join(mismatches)
        raise VerificationError(f"round {self.number}, block {self.block}: {text}")

    def _reported(self, result: Array) -> Array:
        """Return a result after a warning if its values could not be checked."""
        if any(sums.undecided for sums in self.sums):
            emit("unverified", nbytes=result.nbytes)
            warnings.warn(
                f"block {self.block} holds NaN, infinity or values too large to be squared: "
                "it is transformed, but cannot be verified",
                RuntimeWarning,
                stacklevel=2,
            )
        return result


class CheckedExecutor(CPUExecutor):
    """CPU executor that checks each tile, and repeats a tile that does not match.

    Parameters
    ----------
    round_, block, source, out, library, filters
        See `CPUExecutor`. The source is not overwritten before a tile has been checked.
    check : Verification
        The sums.
    """

    checked = True

    def __init__(
        self,
        round_: Round,
        block: Block,
        source: BlockView,
        out: Array,
        library: FFTLibrary,
        filters: Filters,
        check: Verification,
    ) -> None:
        self.check = check
        super().__init__(
            round_,
            block,
            source.borrowed(),
            out,
            library,
            filters,
        )

    def run(self, cuts: Iterable[slice] | None = None) -> None:
        """Transform all tiles, or those of some cuts."""
        if self.round.multiplies:
            checked = self._summed_around_product
        elif self.round.keeps_energy:
            checked = self._summed
        else:
            checked = self._compared
        for part, tile in self.take(cuts):
            copies = self._copies(tile, part)
            del tile  # or a repeat would hold it beside the next copy
            self.store(self.check.repeated(partial(checked, copies, part)), part)

    def _copies(self, tile: Array, part: slice | None) -> Iterator[Array]:
        """Yield a tile, and then further copies of its values, loaded from the source."""
        yield tile
        del tile
        while True:
            yield next(self.take(None if part is None else [part]))[1]

    def _summed(self, copies: Iterator[Array], part: slice | None) -> Array:
        """Return the result of a tile whose sums match."""
        tile = next(copies)
        (sums,) = self.check.sums
        before = sums.before(tile)
        result = self.transform(tile, part)
        sums.after(
            result,
            before,
            self._cut_dim,
            part,
        )
        return result

    @property
    def _cut_dim(self) -> int:
        """Dimension along which tiles are cut; 0 for a tile that is the block."""
        return 0 if self.way.tiling is None else self.way.tiling[0]

    def _compared(self, copies: Iterator[Array], part: slice | None) -> Array:
        """Return the result of a tile that is the same twice."""
        result = self.transform(next(copies), part)
        _require_equal(result, self.transform(next(copies), part))
        return result

    def _summed_around_product(self, copies: Iterator[Array], part: slice | None) -> Array:
        """Return the result of a tile whose sums match around a product that is the same twice."""
        operations = self.operations_of(part)
        number = [isinstance(operation, BoundTransfer) for operation in operations].index(True)
        transfer = operations[number]
        assert isinstance(transfer, BoundTransfer)
        sums, sums_back = self.check.sums
        tile = next(copies)
        before = sums.before(tile)
        spectrum = transform_tile(tile, operations[:number], self.library)
        del tile
        same_product = spectrum.copy()
        transfer.apply(same_product)
        sums.after(
            spectrum,
            before,
            self._cut_dim,
            part,
        )
        transfer.apply(spectrum)
        before_way_back = sums_back.before(spectrum)
        _require_equal(spectrum, same_product)
        del same_product
        result = transform_tile(spectrum, operations[number + 1 :], self.library)
        sums_back.after(
            result,
            before_way_back,
            self._cut_dim,
            part,
        )
        return result


def _require_equal(values: Array, others: Array) -> None:
    """Raise `Unmatched` if the values of two runs are not the same."""
    if not np.array_equal(values, others, equal_nan=True):
        raise Unmatched("two runs differ")


_MODULUS = 1 << 64

#: Constant of the checksum, twice an odd number.
FACTOR = 2 * 0x5851F42D4C957F2D % _MODULUS

#: Weight of the length in bytes, so that trailing zeros change the checksum.
LENGTH = 0x9E3779B97F4A7C15

#: Number of words that NumPy sums at a time.
_PART = 1 << 14


@compiled
def _weighted(words, factor, out):  # type: ignore[no-untyped-def]
    """Write the sum of words times weights that grow by a factor to `out`, modulo 2**64."""
    total = np.uint64(0)
    weight = np.uint64(1)
    for i in range(len(words)):
        total += np.uint64(words[i]) * (weight + np.uint64(i + 1) * np.uint64(factor))
    out[0] = total


def _weighted_by_numpy(words: Array) -> int:
    """Return the sum like `_weighted`, modulo 2**64, in parts that stay in a cache."""
    total = 0
    for first in range(0, len(words), _PART):
        part = words[first : first + _PART].astype(np.uint64)
        numbers = np.arange(first + 1, first + len(part) + 1, dtype=np.uint64)
        weights = 1 + numbers * np.uint64(FACTOR)  # wraps, like the products and their sum
        total += int((part * weights).sum())
    return total % _MODULUS


def checksum(values: Array) -> int:
    """Return a checksum of an array's bytes, of 64 bits.

    Parameters
    ----------
    values : ndarray, contiguous
        Values; their dtype and shape do not matter.

    Examples
    --------
    >>> values, swapped = np.array([1, 2], np.uint32), np.array([2, 1], np.uint32)
    >>> checksum(values) == checksum(swapped)
    False
    >>> checksum(values) == (1 * (1 + FACTOR) + 2 * (1 + 2 * FACTOR) + 8 * LENGTH) % 2**64
    True
    """
    data = values.reshape(-1).view(np.uint8)
    if data.ctypes.data % 4 or len(data) % 4:
        padded = np.zeros(-(-len(data) // 4) * 4, np.uint8)
        padded[: len(data)] = data
        data = padded
    words = data.view(np.uint32)
    out = np.empty(1, np.uint64)
    loop_pays = pays((words.dtype, words.dtype), 1, SUM_COST * words.nbytes)
    is_summed = loop_pays and _weighted.call((words, FACTOR, out), may_compile())
    words_sum = int(out[0]) if is_summed else _weighted_by_numpy(words)
    return (words_sum + values.nbytes * LENGTH) % _MODULUS

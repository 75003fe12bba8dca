"""Rounds that are checked while they work: Parseval's energy, and a linear checksum.

A round is watched from both ends of its tiles: what comes in is weighed when a tile is handed over,
what goes out when the next one is asked for, both still in cache::

    energy      sum |y|^2 = gain * sum |x|^2, gain = product of the lengths / divisor^2
    checksum    beside that, for every line:  sum r*FFT(x) = sum FFT(r)*x

with seeded random weights r; twiddles are taken back before. Half a spectrum counts twice but for
its entries 0 and N/2, of which an inverse real transform uses the real part only. Rounds with
chirps (Bluestein's algorithm) keep no energy: they are done twice and compared.

A tile that holds NaN or infinity cannot be checked, and that is said. What does not match is done
once more from the start; if it does not match again, that is an error.

===================================  ======  ========
what goes wrong inside a round       energy  checksum
===================================  ======  ========
an exponent, a high mantissa bit     finds   finds
a sign, a conjugate, a permutation           finds
a twiddle that is left out                   finds
a bit below the rounding error
===================================  ======  ========

Memory that changes between rounds is found by the checksum of a packed shard (`exchange.packing`),
with this mode and where shards travel: blocks that processes share are not looked at in between.

Sources: Parseval's theorem; for linear checksums Jou and Abraham, Proc. IEEE 74, 1986, and Wang
and Jha, IEEE Trans. Computers 43, 1994.

May import `decomposition`, `memory` and this room.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import scipy.fft

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step, half
from dask_bigfft.errors import VerificationError
from dask_bigfft.events import emit
from dask_bigfft.kernels.cpu import axis_index, run_round
from dask_bigfft.kernels.incoming import Incoming
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.twiddle import twiddle
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Values that are summed in their own precision before the sum is added to the others in double.
STRETCH = 4096

#: Width of the strips in which lines are added up: both sums stay in L1.
STRIP = 512

#: What the compiler may do with sums; not that it may take NaN for impossible.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _squares(x):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        total += v * v
    return total


@numba.njit(nogil=True, cache=True)
def _squares_of_lines(x):  # type: ignore[no-untyped-def]
    """Sum of squares of all lines, in double precision."""
    total = 0.0
    for i in range(x.shape[0]):
        for start in range(0, x.shape[1], STRETCH):
            total += _squares(x[i, start : start + STRETCH])
    return total


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _dots(x, a, b, out):  # type: ignore[no-untyped-def]
    """Sums of each line with two sets of weights."""
    for o in range(x.shape[0]):
        line = x[o]
        s, t = x.dtype.type(0), x.dtype.type(0)
        for i in range(len(line)):
            v = line[i]
            s += a[i] * v
            t += b[i] * v
        out[o, 0], out[o, 1] = s, t


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _line_sums(x, a, b, one, other):  # type: ignore[no-untyped-def]
    """Sums over the lines of each plane with two sets of weights."""
    width = x.shape[2]
    for o in range(x.shape[0]):
        for low in range(0, width, STRIP):
            high = min(width, low + STRIP)
            p, q = one[o, low:high], other[o, low:high]
            for j in range(x.shape[1]):
                line = x[o, j, low:high]
                for i in range(high - low):
                    p[i] += a[j] * line[i]
                    q[i] += b[j] * line[i]


def _contracted_once(values: Array, dim: int, weights: Array) -> Array:
    """The values summed with weights along one dimension; single and double precision."""
    shape, kept = values.shape, values.real.dtype
    outer, n, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    re, im = weights.real.astype(kept), weights.imag.astype(kept)
    lines = values.reshape(outer, n, inner)
    is_complex = values.dtype.kind == "c"
    if inner == 1:
        if is_complex:
            along = weights.astype(values.dtype)
            re, im = along.conj().view(kept), (1j * along.conj()).view(kept)
        sums = np.empty((outer, 2), kept)
        _dots(lines.view(kept).reshape(outer, -1), re, im, sums)
        found = sums.view(np.result_type(kept, np.complex64))
    else:
        one, other = (np.zeros((outer, inner * (1 + is_complex)), kept) for _ in range(2))
        _line_sums(lines.view(kept), re, im, one, other)
        if is_complex:
            one, other = one.view(values.dtype), other.view(values.dtype)
        found = one + 1j * other
    return found.reshape(shape[:dim] + shape[dim + 1 :])


def energy(values: Array, dim: int = 0) -> float:
    """Return the sum of squared magnitudes of an array that is contiguous from `dim` on.

    >>> energy(np.array([[3 + 4j, 0], [0, 1j]]))
    26.0
    """
    lines = values.reshape(math.prod(values.shape[:dim]), math.prod(values.shape[dim:]))
    if values.dtype.char in "FDfd" and lines.size and lines.strides[1] == lines.itemsize:
        return float(_squares_of_lines(lines.view(lines.real.dtype)))
    wide = lines.astype(np.result_type(lines.dtype, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return float((wide.real**2 + wide.imag**2).sum())


@lru_cache(maxsize=64)
def _weights(length: int, size: int, real: bool) -> Array:
    """Seeded weights of the first `size` of `length` outputs: of modulus one, or near one."""
    rng = np.random.default_rng([length, size, real])
    if real:
        return rng.uniform(0.5, 1.5, size)
    found: Array = np.exp(2j * np.pi * rng.random(size))
    return found


@lru_cache(maxsize=64)
def _returned(step: Step, real: bool) -> Array:
    """What the inputs of a step count if its outputs count as `_weights` says."""
    n = step.length
    weights = _weights(n, step.target.size, real)
    found: Array
    if step.kind == "c2r":
        found = scipy.fft.fft(weights) if step.sign < 0 else n * scipy.fft.ifft(weights)
        found = 2 * found[: half(n)]
        found[0] /= 2
        if n % 2 == 0:
            found[n // 2] /= 2
        return found
    padded = np.zeros(n, complex)
    padded[: step.target.size] = weights
    return scipy.fft.fft(padded) if step.sign < 0 else n * scipy.fft.ifft(padded)


def _contracted(values: Array, dims: list[int], weights: list[Array]) -> Array:
    """The values, contiguous, summed with weights along some dimensions."""
    for dim, along in sorted(zip(dims, weights, strict=True), key=lambda pair: -pair[0]):
        if values.dtype.char in "FDfd":
            values = _contracted_once(np.ascontiguousarray(values), dim, along)
        else:
            values = np.moveaxis(values, dim, -1) @ along
    return values


class Unmatched(Exception):
    """What a check has found."""


class Check:
    """The checks of one round on one block.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Which.
    round_ : Round
        What is done.
    block : tuple of int
        Which block.
    library : FFTLibrary
        Makes the FFTs.
    """

    def __init__(self, mode: str, round_: Round, block: Block, library: FFTLibrary) -> None:
        self.mode, self.round, self.block, self.library = mode, round_, block, library
        self.dims = [round_.dim(step) for step in round_.steps]
        self.length = math.prod(step.length for step in round_.steps)
        divisor = reduce(mul, (step.divisor for step in round_.steps), Divisor())
        self.divisor = divisor.whole * math.sqrt(divisor.root)
        self.real = any(step.kind == "c2r" for step in round_.steps)
        #: Whether something could not be checked.
        self.undecided = False

    def of_kind(self, kind: str) -> tuple[Step, int] | None:
        """The step of a real kind and its dimension."""
        found = zip(self.round.steps, self.dims, strict=True)
        return next(((step, dim) for step, dim in found if step.kind == kind), None)

    # --- what comes in, what goes out ---

    def before(self, tile: Array) -> tuple[float, float, Array | None]:
        """Energy of a tile (its weight, and what of it will come out), and its checksums."""
        whole = seen = self._weighed(tile, "c2r", 0)
        found = self.of_kind("c2r")
        if found is not None and math.isfinite(whole):
            seen -= self._unseen(tile, *found)
        sums = None
        if self.mode == "checksum" and math.isfinite(whole):
            weights = [_returned(step, self.real) for step in self.round.steps]
            sums = _contracted(tile, self.dims, weights) / self.divisor
            sums = sums.real if self.real else sums
        return whole, seen, sums

    def after(
        self, result: Array, before: tuple[float, float, Array | None], dim: int, part: slice | None
    ) -> None:
        """Compare a tile's result, cut along `dim`, with what was found before."""
        (whole, seen, sums), cut = before, dim
        if not math.isfinite(whole):
            self.undecided = True
            return
        for along, first in self.round.rolls:  # stored from another element on
            result, dim = np.roll(result, first, axis=along), 0
        found = self._weighed(result, "r2c", dim)
        gain = self.length / self.divisor**2
        eps = self._eps(result.dtype)
        allowed = eps * (16 + 4 * math.log2(self.length)) * gain * whole
        if not abs(found - gain * seen) <= allowed:
            raise Unmatched(f"the energy is {found!r} and should be {gain * seen!r}")
        if sums is None:
            return
        out = _contracted(self._untwiddled(result, cut, part), self.dims, [
            _weights(step.length, step.target.size, self.real) for step in self.round.steps
        ])
        allowed = eps * (16 + 4 * math.log2(self.length)) * math.sqrt(max(found, 0) * self.length)
        worst = float(np.abs(out - sums).max(initial=0.0))
        if not worst <= allowed:
            raise Unmatched(f"a linear checksum is off by {worst:.3g}, more than {allowed:.3g}")

    # --- energy ---

    def _eps(self, dtype: np.dtype[Any]) -> float:
        return max(float(np.finfo(dtype).eps), float(np.finfo(np.float64).eps))

    def _weighed(self, values: Array, kind: str, dim: int) -> float:
        """Energy of all values, with half a spectrum (of the step of a kind) counted in full."""
        total = energy(values, dim)
        found = self.of_kind(kind)
        if found is None:
            return total
        return 2 * total - energy(self._single(values, *found))

    def _single(self, values: Array, step: Step, dim: int) -> Array:
        """Copy of the entries 0 and N/2 of half a spectrum, which have no mirror image."""
        places = [0, step.length // 2] if step.length % 2 == 0 else [0]
        return np.ascontiguousarray(values.take(places, axis=dim))

    def _unseen(self, tile: Array, step: Step, dim: int) -> float:
        """Energy that an inverse real transform ignores: of imaginary parts of real entries."""
        planes, scale = self._single(tile, step, dim), 1
        for other, along in zip(self.round.steps, self.dims, strict=True):
            if other is not step:
                planes = self.library.c2c(planes, (along,), other.sign)
                scale *= other.length
        return energy(np.ascontiguousarray(planes.imag)) / scale

    # --- twiddles ---

    def _untwiddled(self, result: Array, dim: int, part: slice | None) -> Array:
        """The result before its twiddles, contiguous."""
        steps = [s for s in zip(self.round.steps, self.dims, strict=True) if s[0].twiddle]
        if not steps:
            return np.ascontiguousarray(result)
        copy = lend(result.shape, result.dtype)
        np.copyto(copy, result)
        for step, along in steps:
            assert step.twiddle is not None
            shape = copy.shape
            rows = copy.reshape(math.prod(shape[:along]), shape[along], -1)
            rest = self._rest(step, along, dim, part)
            twiddle(rows, np.tile(rest, len(rows) // len(rest)), step.twiddle, -step.sign)
        return copy

    def _rest(self, step: Step, along: int, dim: int, part: slice | None) -> Array:
        """Index made of the digits still to come of a step's axis, for each row of a tile."""
        after, i = self.round.target.axes[step.axis], self.block[step.axis]
        last = len(after.groups) - 1
        index = axis_index(after, i, step.target.stage - 1, last)
        if part is None or not along - last <= dim < along:
            return index
        kept = index.reshape(after.shape(i)[:last])
        return kept[(slice(None),) * (dim - along + last) + (part,)].ravel()


class _Watched:
    """A block on its way in that is weighed before its round, and its result after it."""

    #: What is read where it lies would not be weighed.
    as_is: Array | None = None

    def __init__(self, incoming: Incoming, check: Check) -> None:
        self.incoming, self.check = incoming, check
        self.shape, self.dtype = incoming.shape, incoming.dtype
        self._before: Any = None

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        return self.incoming.place(shape, dtype)

    def composite(self) -> None:
        """What is read where it lies would not be weighed."""
        return None

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block."""
        values = self.incoming.whole(out, threads=threads)
        self._before = self.check.before(values)
        return values

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Its tiles; each one's result lies in `out` when the next is asked for."""
        for part, tile in self.incoming.tiles(dim, width, out):
            before = self.check.before(tile)
            yield part, tile
            self.check.after(out[(slice(None),) * dim + (part,)], before, dim, part)

    def finish(self, result: Array) -> None:
        """Compare the result of a block that went through in one."""
        if self._before is not None:
            self.check.after(result, self._before, 0, None)


Runner = Callable[..., Array]


def verified_round(
    mode: str,
    round_: Round,
    block: Block,
    incoming_of: Callable[[], Incoming],
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
    *,
    number: int = 0,
    run: Runner = run_round,
) -> Array:
    """Return a block after a round, checked, and done once more where the check failed.

    Parameters
    ----------
    mode : {"energy", "checksum"}
        Which check.
    round_, block, library, out_dtype, filters
        As `run_round` takes them.
    incoming_of : callable
        Returns the block as the round's source layout has it, anew each time.
    number : int
        Of the round, from 1, for errors.
    run : callable
        Does the round.

    Raises
    ------
    VerificationError
        If the round does not come out right twice.
    """
    checkable = _keeps_energy(round_)
    found = []
    for _ in range(2):
        arguments = (library, out_dtype, filters)
        try:
            if checkable:
                return _checked(mode, round_, block, incoming_of(), *arguments, run)
            return _done_twice(round_, block, incoming_of, *arguments, run)
        except Unmatched as error:
            found.append(str(error))
            emit("mismatch", index=number)
    raise VerificationError(
        f"round {number}, block {block}: {found[0]}; done once more: {found[1]}"
    )


def _keeps_energy(round_: Round) -> bool:
    """Whether a round only permutes and scales energy, in a way that its ends show."""
    plain = all(
        (step.chirp_in, step.chirp_out, step.convolve) == (None,) * 3 for step in round_.steps
    )
    inverse_real = any(step.kind == "c2r" for step in round_.steps)
    return plain and not (inverse_real and any(step.twiddle for step in round_.steps))


def _checked(
    mode: str, round_: Round, block: Block, incoming: Incoming, library: FFTLibrary,
    out_dtype: np.dtype[Any], filters: Mapping[int, Array] | None, run: Runner
) -> Array:
    check = Check(mode, round_, block, library)
    watched = _Watched(incoming, check)
    with np.errstate(over="ignore", invalid="ignore"):
        result = run(round_, block, watched, library, out_dtype, filters)
        watched.finish(result)
    if check.undecided:
        emit("unverified", nbytes=result.nbytes)
        warnings.warn(
            f"block {block} holds NaN, infinity or values too large to be squared: "
            "it is transformed, but cannot be verified",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def _done_twice(
    round_: Round, block: Block, incoming_of: Callable[[], Incoming], library: FFTLibrary,
    out_dtype: np.dtype[Any], filters: Mapping[int, Array] | None, run: Runner
) -> Array:
    one, other = (
        run(round_, block, incoming_of(), library, out_dtype, filters) for _ in range(2)
    )
    if not np.array_equal(_bytes(one), _bytes(other)):
        raise Unmatched("two runs differ")
    return one


def _bytes(values: Array) -> Array:
    return values.reshape(-1).view(np.uint8)

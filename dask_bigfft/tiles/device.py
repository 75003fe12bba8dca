"""Programs in the form that devices run: FFTs without divisors, and passes over memory.

::

    Program --for_device--> FFT | MemoryPass | Product | Transfer

FFT libraries of devices do not divide, and have one sign for real values. All divisors of a program
become one scale, therefore, and another sign becomes a conjugation. A pass over memory is slower
than its arithmetic, so that scale, conjugation, factors and a transpose share one.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from dask_bigfft.tiles.program import (
    FFT,
    ONE,
    ChirpFactor,
    Multiply,
    Operation,
    Product,
    Program,
    Shape,
    Transfer,
    Twiddle,
)


@dataclass(frozen=True)
class MemoryPass:
    """Pass over the memory of a tile: values or their conjugates times a scale and factors.

    Parameters
    ----------
    factors : tuple of Twiddle or ChirpFactor
        Factors; their divisors are part of the scale.
    scale : float
        A common factor.
    conjugate : bool
        True if the values are conjugated first.
    order : tuple of int
        Dimensions in the order of a transpose; empty for a pass in place.
    """

    factors: tuple[Twiddle | ChirpFactor, ...] = ()
    scale: float = 1.0
    conjugate: bool = False
    order: Shape = ()


#: Pass that changes nothing.
NO_PASS = MemoryPass()

#: Operation of a device.
DeviceOperation = FFT | MemoryPass | Product | Transfer


@lru_cache(maxsize=256)
def for_device(
    program: Program,
    order: Shape = (),
    joins: bool = False,
) -> tuple[DeviceOperation, ...]:
    """Return the operations of a program for a device.

    Parameters
    ----------
    program : Program
        The program.
    order : tuple of int
        Dimensions in the order of storage; empty if that is the order of the tile.
    joins : bool
        True to do an FFT of real values and the complex one beside it at once, where the complex
        dimensions come first.
    """
    real_ffts, complex_operations, inverse_ffts = _parts(program)
    # FFTs of real values with the other sign are conjugates, and so are those to real values of
    # conjugates.
    first = MemoryPass(
        _popped_factors(complex_operations, 0),
        conjugate=any(fft.sign > 0 for fft in real_ffts),
    )
    last_factors = _popped_factors(complex_operations, -1)
    middle, scale = _without_factors(complex_operations, scale=1.0 / program.divisor.value)
    last = MemoryPass(
        last_factors,
        scale=scale,
        conjugate=any(fft.sign < 0 for fft in inverse_ffts),
    )
    before, after = _passes(first, last, has_middle=bool(middle))
    transpose = MemoryPass(order=order)
    if not inverse_ffts:
        after = replace(after, order=order)
        transpose = NO_PASS
    real_ffts = _with_sign(real_ffts, -1)
    inverse_ffts = _with_sign(inverse_ffts, 1)
    if joins:
        if before == NO_PASS:
            _join_first(real_ffts, middle)
        only_scales = after == MemoryPass(scale=last.scale)
        if only_scales:
            _join_last(middle, inverse_ffts)
    operations = [*real_ffts, before, *middle, after, *inverse_ffts, transpose]
    return tuple(operation for operation in operations if operation != NO_PASS)


def _with_sign(ffts: list[FFT], sign: int) -> list[FFT]:
    """Return FFTs with the sign that libraries of devices have."""
    return [replace(fft, sign=sign) for fft in ffts]


def _passes(
    first: MemoryPass,
    last: MemoryPass,
    has_middle: bool,
) -> tuple[MemoryPass, MemoryPass]:
    """Return the passes before and after the operations on complex values.

    One pass does for both if nothing is between them.

    Parameters
    ----------
    first : MemoryPass
        First factors, and whether the values before them are conjugated.
    last : MemoryPass
        Last factors and the scale, and whether the product with them is conjugated.
    has_middle : bool
        True if there are operations between both.
    """
    if last.conjugate:
        # The pass conjugates before it multiplies, so the signs of the factors change.
        return first, replace(last, factors=tuple(map(_conjugated, last.factors)))
    if has_middle:
        return first, last
    both = replace(last, factors=first.factors + last.factors, conjugate=first.conjugate)
    return NO_PASS, both


def _parts(program: Program) -> tuple[list[FFT], list[Operation], list[FFT]]:
    """Return FFTs of real values, operations on complex values, and FFTs to real values.

    FFTs divide by nothing, and their dimensions ascend.
    """
    real_ffts: list[FFT] = []
    complex_operations: list[Operation] = []
    inverse_ffts: list[FFT] = []
    for operation in program.operations:
        if not isinstance(operation, FFT):
            complex_operations.append(operation)
            continue
        complex_count = len(operation.dims)
        if operation.kind != "c2c":
            complex_count -= 1
            real_fft = replace(
                operation,
                dims=operation.dims[complex_count:],
                lengths=operation.lengths[complex_count:],
                divisor=ONE,
            )
            if operation.kind == "r2c":
                real_ffts.append(real_fft)
            else:
                inverse_ffts.append(real_fft)
        if complex_count:
            complex_operations.append(_complex_fft(operation, complex_count))
    return real_ffts, complex_operations, inverse_ffts


def _popped_factors(
    operations: list[Operation],
    position: int,
) -> tuple[Twiddle | ChirpFactor, ...]:
    """Remove the first or the last operation if it has factors, and return these."""
    operation = operations[position] if operations else None
    if not isinstance(operation, Multiply):
        return ()
    del operations[position]
    return operation.factors


def _without_factors(
    operations: list[Operation],
    scale: float,
) -> tuple[list[DeviceOperation], float]:
    """Return FFTs and products between both passes over memory, and the scale for the last pass.

    A product with a transfer function multiplies by the scale itself, and leaves 1.0.
    """
    middle: list[DeviceOperation] = []
    for operation in operations:
        assert not isinstance(operation, Multiply)  # factors stand first and last
        if isinstance(operation, Transfer):
            middle.append(replace(operation, scale=scale))
            scale = 1.0
        else:
            middle.append(operation)
    return middle, scale


def _complex_fft(fft: FFT, count: int) -> FFT:
    """Return the FFT over the first dimensions of an operation, which are complex."""
    pairs = sorted(zip(fft.dims[:count], fft.lengths[:count], strict=True))
    return FFT(
        "c2c",
        dims=tuple(dim for dim, _ in pairs),
        lengths=tuple(length for _, length in pairs),
        sign=fft.sign,
    )


def _conjugated(factor: Twiddle | ChirpFactor) -> Twiddle | ChirpFactor:
    """Return the conjugate of a factor."""
    if isinstance(factor, Twiddle):
        return replace(factor, sign=-factor.sign)
    chirp = replace(factor.chirp, sign=-factor.chirp.sign, turns=-factor.chirp.turns)
    return replace(factor, chirp=chirp)


def _join_first(real_ffts: list[FFT], middle: list[DeviceOperation]) -> None:
    """Join the last FFT of real values with the complex one that follows, if a library can."""
    complex_fft = middle[0] if middle else None
    if real_ffts and isinstance(complex_fft, FFT) and _may_join(complex_fft, real_ffts[-1]):
        real_ffts[-1] = real_ffts[-1].with_complex(complex_fft)
        del middle[0]


def _join_last(middle: list[DeviceOperation], inverse_ffts: list[FFT]) -> None:
    """Join the first FFT to real values with the complex one before it, if a library can."""
    complex_fft = middle[-1] if middle else None
    if inverse_ffts and isinstance(complex_fft, FFT) and _may_join(complex_fft, inverse_ffts[0]):
        inverse_ffts[0] = inverse_ffts[0].with_complex(complex_fft)
        del middle[-1]


def _may_join(complex_fft: FFT, real_fft: FFT) -> bool:
    """Return whether a library does both at once: the complex dimensions come first."""
    return complex_fft.sign == real_fft.sign and complex_fft.dims[-1] < real_fft.dims[0]

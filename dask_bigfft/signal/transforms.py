"""Forward and inverse transforms around an operation on spectra, and the axes of spectra."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras, inner_extras
from dask_bigfft.api.plans import make_plan
from dask_bigfft.events import emit
from dask_bigfft.graph.layer import plan_token
from dask_bigfft.kernels.transfer import AxisOnTile
from dask_bigfft.kernels.twiddle import index_of_places
from dask_bigfft.planner.plan import Plan
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.transforms.factors import transposed_digits
from dask_bigfft.transforms.layout import Order, flat_digits, size_of


@dataclass(frozen=True)
class Transforms:
    """Forward and inverse transforms with their lengths and the order of the spectra.

    Parameters
    ----------
    axes, lengths : tuple of int
        Axes, with the halved one last, and the length of the transform along each.
    real : bool
        True if the inputs are real.
    transposed : int, optional
        Axis along which the spectra are in transposed order.
    bands : tuple of (int, (int, int))
        Axes along which the spectra have a band, and its places in ascending order.
    """

    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    real: bool
    transposed: int | None = None
    bands: tuple[tuple[int, tuple[int, int]], ...] = ()

    @property
    def orders(self) -> tuple[Order, ...]:
        """Order of the spectra along each axis."""
        return tuple("transposed" if axis == self.transposed else "natural" for axis in self.axes)

    def _extras(self, options: SignalOptions, chunks: Any) -> Extras:
        """Return the keywords of both transforms."""
        bands = {"band_index": dict(self.bands)} if self.bands else {}
        return inner_extras(
            options,
            order=self.orders,
            chunks=chunks,
            **bands,
        )

    def forward(self, a: da.Array, options: SignalOptions, chunks: Any = "auto") -> Plan:
        """Return the plan of the forward transform of an input."""
        extras = self._extras(options, chunks)
        name = "rfftn" if self.real else "fftn"
        return make_plan(
            a,
            name,
            self.lengths,
            self.axes,
            **extras,
        )

    def inverse(
        self,
        a: da.Array,
        options: SignalOptions,
        windows: dict[int, tuple[int, int]],
    ) -> Plan:
        """Return the plan of the inverse transform of a spectrum, cropped to windows."""
        extras = self._extras(options, options.get("chunks"))
        lengths = dict(zip(self.axes, self.lengths, strict=True))
        crops = {axis: w for axis, w in windows.items() if w != (0, lengths[axis])}
        name = "irfftn" if self.real else "ifftn"
        return make_plan(
            a,
            name,
            self.lengths,
            self.axes,
            windows=crops,
            **extras,
        )


def planned(
    a: da.Array,
    natural: Transforms,
    options: SignalOptions,
    *,
    with_inverse: bool = True,
    movable: tuple[int, ...] | None = None,
) -> tuple[Transforms, Plan]:
    """Return the transforms with the fewest exchanges, and the plan of the forward transform.

    Exchanges of the inverse count if `with_inverse`. Transposed order is considered along split
    axes of the transforms in `natural` order, if they are in `movable`: all by default. Plans are
    measured when the order is known.
    """
    estimated = without_measuring(options)
    best = natural
    best_plan = natural.forward(a, estimated)
    split = [
        program.axis
        for program in best_plan.programs
        if len(program.steps) > 1 and (movable is None or program.axis in movable)
    ]
    best_price = (0, 0.0)
    if split:
        best_price = _price(
            a,
            natural,
            best_plan,
            estimated,
            with_inverse,
        )
    for axis in split:
        transposed = replace(natural, transposed=axis)
        plan = transposed.forward(a, estimated)
        price = _price(
            a,
            transposed,
            plan,
            estimated,
            with_inverse,
        )
        if price < best_price:
            best = transposed
            best_plan = plan
            best_price = price
    if is_measured(options):
        best_plan = best.forward(a, options)
    return best, best_plan


def is_measured(options: SignalOptions) -> bool:
    """Return True if plans are to be measured."""
    return bool(config.argument("planner", options.get("planner")) == "measure")


def without_measuring(options: SignalOptions) -> SignalOptions:
    """Return options for plans that are only compared."""
    return {**options, "planner": "estimate"}


def _price(
    a: da.Array,
    transforms: Transforms,
    forward: Plan,
    options: SignalOptions,
    with_inverse: bool,
) -> tuple[int, float]:
    """Return the number of exchanges of both transforms, and their forecast seconds."""
    plans = [forward]
    spec = forward.spec
    if with_inverse:
        spectrum = da.zeros_like(
            a,
            spec.out_dtype,
            chunks=forward.chunks,
            shape=spec.out_shape,
        )
        plans.append(transforms.inverse(spectrum, {**options, "chunks": "auto"}, {}))
    return sum(len(p.travelling) for p in plans), sum(p.expected.seconds for p in plans)


@dataclass(frozen=True)
class ProductTimer:
    """Timer of the work on the spectrum of a plan, which events and reports call *product*.

    Parameters
    ----------
    token : str
        Token of the plan in task names.
    index : int
        Number of the plan's last round, from 1.
    """

    token: str
    index: int

    @contextmanager
    def measured(self, nbytes: int) -> Iterator[None]:
        """Context manager that emits the time of work on a block of `nbytes` bytes."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        emit(
            "product",
            plan=self.token,
            index=self.index,
            nbytes=nbytes,
            seconds=seconds,
        )


def product_timer(spectrum: da.Array, plan: Plan) -> ProductTimer:
    """Return the timer of the work on a spectrum that a plan made."""
    return ProductTimer(plan_token(spectrum), len(plan.rounds))


@dataclass(frozen=True)
class SpectrumAxis:
    """Axis of a spectrum, with the bounds of its chunks.

    Parameters
    ----------
    axis, length : int
        Axis, and the length N of the transform.
    order : {"natural", "transposed"}
        Order of the spectrum.
    half : bool
        True if only half of the spectrum is stored.
    bounds : tuple of int
        Start of each chunk along the axis, and the end of the last one.
    first : int
        First place of a band in natural order, which follows it cyclically.
    """

    axis: int
    length: int
    order: Order
    half: bool
    bounds: tuple[int, ...]
    first: int = 0

    @property
    def digits(self) -> tuple[int, ...]:
        """(N1, N2, ..) in transposed order, (N,) in natural order."""
        return transposed_digits(self.length) if self.order == "transposed" else (self.length,)

    @property
    def whole(self) -> bool:
        """True if the axis has one chunk."""
        return len(self.bounds) == 2

    def places(self, block: tuple[int, ...]) -> tuple[int, int]:
        """Return the first place of a block along the axis, and its end."""
        return self.bounds[block[self.axis]], self.bounds[block[self.axis] + 1]

    def index(self, block: tuple[int, ...], like: Any) -> Any:
        """Return the frequencies of a block, -(N - 1)//2 to N//2, in a shape that broadcasts.

        The array is on the current GPU if `like` is on a GPU.
        """
        digits = flat_digits(
            0,
            self.length,
            self.order,
            real=self.half,
        )
        size = size_of(digits)
        places = np.arange(*self.places(block)) + self.first
        index = index_of_places(digits, places % size)
        index = np.where(index > self.length // 2, index - self.length, index)
        index = index.reshape([-1 if a == self.axis else 1 for a in range(len(block))])
        return np.asarray(index, like=like)

    def on_tile(self, block: tuple[int, ...], like: Any) -> AxisOnTile:
        """Return the frequencies of a block, on the device of an array, for a transfer function."""
        index = self.index(block, np.empty(0))
        middles = np.flatnonzero(2 * np.abs(index.ravel()) == self.length)
        middle = int(middles[0]) if middles.size else None
        values = np.asarray(index % self.length, like=like)
        return AxisOnTile(values.shape, middle, values)

    def weights(self, block: tuple[int, ...], like: Any) -> Any:
        """Return the multiplicity of each frequency of `index` in the full spectrum."""
        index = self.index(block, like)
        if not self.half:
            return np.ones_like(index, float)
        first = flat_digits(
            0,
            self.length,
            self.order,
            real=False,
        )[0].radix
        return np.where(2 * index % first == 0, 1.0, 2.0)


def spectrum_axes(plan: Plan) -> tuple[SpectrumAxis, ...]:
    """Return the transformed axes of the spectrum that a plan makes."""
    spec = plan.spec
    axes = []
    for axis, length, order in zip(
        spec.axes,
        spec.lengths,
        spec.orders_out,
        strict=True,
    ):
        bounds = (0, *itertools.accumulate(plan.chunks[axis]))
        axes.append(
            SpectrumAxis(
                axis,
                length,
                order,
                axis == spec.real_axis,
                bounds,
                first=plan.result.axes[axis].groups[0].offset,
            )
        )
    return tuple(axes)

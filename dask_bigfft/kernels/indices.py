"""Indices of digits at the places of a block, from the terms of programs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.tiles.program import Index, Term, axis_terms
from dask_bigfft.transforms.layout import AxisLayout


@dataclass(frozen=True)
class PlaceIndex:
    """Index at the places of some consecutive dimensions of a block or a tile.

    Parameters
    ----------
    terms : tuple of Term
        The index: a sum of terms of these dimensions.
    first_dim : int
        The first of the dimensions.
    origin : sequence of int
        Position of the first place along each dimension.
    shape : sequence of int
        Number of places along each dimension.

    Examples
    --------
    >>> from dask_bigfft.tiles.program import NO_MODULUS, Term
    >>> terms = (Term(0, 1, NO_MODULUS, stride=1), Term(1, 1, NO_MODULUS, stride=3))
    >>> index = PlaceIndex(terms, first_dim=0, origin=(0, 1), shape=(3, 3))
    >>> index.table().tolist(), index.place_of(7)
    ([[3, 6, 9], [4, 7, 10], [5, 8, 11]], 4)
    """

    terms: Index
    first_dim: int
    origin: Sequence[int]
    shape: Sequence[int]

    def table(self, like: Array | None = None) -> Array:
        """Return the index at all places; it is read-only.

        Parameters
        ----------
        like : array, optional
            Array on the device of the result, by default a NumPy array.
        """
        table = None
        for term in self.terms:
            dim = term.dim - self.first_dim
            first = self.origin[dim]
            end = first + self.shape[dim]
            values = np.arange(first, end, dtype=np.int64, like=like)
            if term.offset:
                values += term.offset
                values %= term.size
                end = term.size
            if term.divisor > 1:
                values //= term.divisor
            if end > term.divisor * term.modulus:
                values %= term.modulus
            if term.stride != 1:
                values *= term.stride
            broadcast = [1] * len(self.shape)
            broadcast[dim] = -1
            values = values.reshape(broadcast)
            table = values if table is None else table + values
        if table is None:
            table = np.zeros((1,) * len(self.shape), np.int64, like=like)
        return np.broadcast_to(table, self.shape)

    def first_value(self) -> int:
        """Return the index at the first place."""
        first_place = replace(self, shape=(1,) * len(self.shape))
        return int(first_place.table().item())

    def has_terms_of(self, other: "PlaceIndex") -> bool:
        """Return whether the terms of another index are the same, so that all values are equal.

        Equal values may also come from other terms, of which this does not tell.
        """
        return (
            tuple(self.shape) == tuple(other.shape)
            and tuple(self.origin) == tuple(other.origin)
            and self._terms_from_0() == other._terms_from_0()
        )

    def _terms_from_0(self) -> set[Term]:
        """Return the terms with dimensions that are counted from 0."""
        return {replace(term, dim=term.dim - self.first_dim) for term in self.terms}

    def place_of(self, value: int) -> int | None:
        """Return the place, in C order, with a value of the index; None if no place has it.

        The terms have to be digits of the index: those with smaller strides than a term add up to
        less than its stride. Dimensions without a term have a single place.
        """
        positions = [0] * len(self.shape)
        remainder = value
        for term in sorted(self.terms, key=lambda term: -term.stride):
            digit = min(remainder // term.stride, term.modulus - 1)
            remainder -= digit * term.stride
            positions[term.dim - self.first_dim] += digit * term.divisor
        if remainder:
            return None
        for term in {term.dim: term for term in self.terms if term.offset}.values():
            dim = term.dim - self.first_dim
            positions[dim] = (positions[dim] - term.offset) % term.size
        place = 0
        for position, first, count in zip(
            positions,
            self.origin,
            self.shape,
            strict=True,
        ):
            if not first <= position < first + count:
                return None
            place = place * count + position - first
        return place

    def rows(self, place: int, size: int) -> "PlaceIndex | None":
        """Return the index at some consecutive places in C order, if they are whole rows.

        Rows are counted along the first dimension that has several places.

        Parameters
        ----------
        place : int
            The first place.
        size : int
            Number of places.
        """
        several = [dim for dim, count in enumerate(self.shape) if count > 1]
        row_dim = several[0] if several else 0
        row_size = math.prod(self.shape[row_dim + 1 :])
        if place % row_size or size % row_size:
            return None
        origin = list(self.origin)
        shape = list(self.shape)
        origin[row_dim] += place // row_size
        shape[row_dim] = size // row_size
        return PlaceIndex(
            self.terms,
            self.first_dim,
            origin,
            shape,
        )


def axis_index(axis: AxisLayout, block: int, stage: int) -> PlaceIndex:
    """Return the index of an axis' digits of one stage at the places of a block as stored.

    Digits of other stages are ignored.
    """
    return PlaceIndex(
        axis_terms(axis, stage, first_dim=0),
        first_dim=0,
        origin=axis.origin(block),
        shape=axis.shape(block),
    )

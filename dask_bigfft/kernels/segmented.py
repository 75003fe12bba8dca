"""`SegmentedView`: a read-only block made of strided views of source blocks.

A GPU copies a block tile by tile, so the block need not be gathered first. Every tile is a few
strided views of source blocks::

    block (n1, n2 of one chunk)       tile: all n1, some n2
      rows n1 = 0..7   in source 0      view of source 0: 8 rows apart, n2 side by side
      rows n1 = 8..15  in source 1      view of source 1
      ...

The block is a product of digits, and the sources have boxes of the digits (`tiles.digits`). A
source block that begins and ends within a digit has up to three boxes: a first row, the complete
rows, and a last row. Values outside all boxes are padding, and zero.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.kernels.copies import strided_view
from dask_bigfft.tiles.digits import BlockDigits
from dask_bigfft.tiles.pieces import Pieces

#: Boxes of each axis, and whether their values are conjugated.
Image = tuple[tuple[Pieces, ...], bool]


@dataclass(frozen=True, eq=False)
class ShardView:
    """Shards of one shape and one set of strides, each a view of a source block.

    Parameters
    ----------
    block : SegmentedView
        Block that contains them.
    part : tuple of slice
        Part of the block that contains them, one slice per digit.
    shape, strides : tuple of int
        Shape and strides of each view, one number per digit; strides in bytes, never negative.
    numbers : ndarray, (shards,)
        Number of the source block of each shard.
    starts : ndarray, (shards,)
        Bytes from the source block's first element to the first element of each shard.
    places : ndarray, (shards, digits)
        Place of each shard in the part.
    conjugate : bool
        Whether the values of the block are the conjugates of the stored ones.
    flipped : tuple of int
        Digits whose values are stored in reverse.
    """

    block: "SegmentedView"
    part: tuple[slice, ...]
    shape: Block
    strides: Block
    numbers: Ints
    starts: Ints
    places: Ints
    conjugate: bool
    flipped: Block

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of all values."""
        return self.block.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return len(self.numbers) * math.prod(self.shape) * self.dtype.itemsize

    @property
    def addresses(self) -> Ints:
        """Memory address of the first element of each."""
        return self.block.addresses[self.numbers] + self.starts

    def views(self) -> Iterator[tuple[Block, Array]]:
        """Yield all views, each with its place in the part."""
        sources = self.block.source_list
        for place, number, start in zip(
            self.places.tolist(),
            self.numbers.tolist(),
            self.starts.tolist(),
            strict=True,
        ):
            view = strided_view(
                sources[number],
                start,
                self.shape,
                self.strides,
            )
            yield tuple(place), view


@dataclass(frozen=True, eq=False)
class SegmentedView:
    """Block made of shards of source blocks; see the module.

    Parameters
    ----------
    form : BlockDigits
        Digits of the block's dimensions. If the block has a part of their values, those outside all
        sources are undefined.
    images : tuple of Image
        Boxes of the block, and those of the conjugated mirror image of half a spectrum, if there is
        one. Their only side is the source blocks.
    digits : tuple of tuple of int
        Number in the block of each digit of the boxes of each axis.
    sources : mapping of block index to ndarray
        The source blocks, all of one dtype.
    """

    form: BlockDigits
    images: tuple[Image, ...]
    digits: tuple[Block, ...]
    sources: Mapping[Block, Array]

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of all values."""
        return next(iter(self.sources.values())).dtype

    @property
    def sizes(self) -> Block:
        """Number of values of each digit."""
        return self.form.sizes

    @property
    def shape(self) -> Block:
        """Shape of the block with whole digits."""
        return self.form.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the block with whole digits."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @property
    def count(self) -> int:
        """Number of shards of the whole block."""
        return sum(math.prod(map(len, axes)) for axes, _ in self.images)

    @property
    def is_mirrored(self) -> bool:
        """True if some values are those of a conjugated mirror image."""
        return any(conjugate for _, conjugate in self.images)

    @cached_property
    def full(self) -> bool:
        """True if shards cover the block, so that it has no padding."""
        sizes = [math.prod(boxes.size for boxes in axes) for axes, _ in self.images]
        return math.prod(self.sizes) == sum(sizes)

    # --- shards -----------------------------------------------------------------------------

    def shards(self, part: tuple[slice, ...]) -> Iterator[ShardView]:
        """Yield the shards of a part, grouped by shape and strides.

        The part has a slice of each digit, with start and stop as numbers and without a step.
        """
        lows = np.array([cut.start for cut in part], np.int64)
        highs = np.array([cut.stop for cut in part], np.int64)
        for (axes, conjugate), memory in zip(self.images, self._memory, strict=True):
            cuts = []
            for boxes, axis_memory in zip(axes, memory, strict=True):
                digits = axis_memory.digits
                if all(part[digit] == axis_memory.whole[digit] for digit in digits):
                    # All boxes are in a part that has the whole axis: none has to be cut.
                    cuts.append(axis_memory.all_rows)
                else:
                    cuts.append(boxes.rows_within(lows[digits], highs[digits]))
            if all(len(rows) for rows, _, _ in cuts):
                yield from self._shards_of_boxes(
                    part,
                    lows,
                    memory,
                    cuts,
                    conjugate,
                )

    def _shards_of_boxes(
        self,
        part: tuple[slice, ...],
        first_values: Ints,
        memory: Sequence["_AxisMemory"],
        cuts: Sequence[tuple[Ints, Ints, Ints]],
        conjugate: bool,
    ) -> Iterator[ShardView]:
        """Yield the shards of a part with these first values: combinations of one box per axis.

        `cuts` are the rows of the boxes of each axis, and their first and end values in the part.
        """
        sizes = [len(rows) for rows, _, _ in cuts]
        count = math.prod(sizes)
        choices = np.unravel_index(np.arange(count), sizes)
        chosen = []  # the box of each axis, for every combination
        combination = np.zeros(count, np.int64)
        for axis_memory, cut, choice in zip(memory, cuts, choices, strict=True):
            rows, low, high = (column[choice] for column in cut)
            chosen.append((axis_memory, rows, low, high))
            combination += axis_memory.combinations[rows]
        numbers = self._number_of_combination[combination]
        form = self._stride_form[numbers]
        lows, counts, steps = np.zeros((3, count, len(part)), np.int64)
        starts = np.zeros(count, np.int64)
        for axis_memory, rows, low, high in chosen:
            own_steps = axis_memory.steps[form, rows]
            starts += axis_memory.starts[form, rows]
            starts += np.einsum("ij,ij->i", low - axis_memory.lows[rows], own_steps)
            lows[:, axis_memory.digits] = low
            counts[:, axis_memory.digits] = high - low
            steps[:, axis_memory.digits] = own_steps
        steps[counts == 1] = 0  # strides of single values have no effect
        if conjugate:  # some are negative
            starts += np.einsum("ij,ij->i", counts - 1, np.minimum(steps, 0))
        places = lows - first_values
        for rows in _equal_rows(counts, steps):
            own_steps = steps[rows[0]].tolist()
            yield ShardView(
                block=self,
                part=part,
                shape=tuple(counts[rows[0]].tolist()),
                strides=tuple(map(abs, own_steps)),
                numbers=numbers[rows],
                starts=starts[rows],
                places=places[rows],
                conjugate=conjugate,
                flipped=tuple(digit for digit, step in enumerate(own_steps) if step < 0),
            )

    def views(self) -> Iterator[tuple[Block, Array]]:
        """Yield all views of source blocks, each with its place in the block by digits."""
        for shards in self.shards(tuple(slice(0, size) for size in self.sizes)):
            yield from shards.views()

    @cached_property
    def source_list(self) -> list[Array]:
        """Source blocks by number."""
        return list(self.sources.values())

    @cached_property
    def _stride_forms(self) -> list[Block]:
        """Different strides of source blocks."""
        return list(dict.fromkeys(source.strides for source in self.source_list))

    @cached_property
    def _stride_form(self) -> Ints:
        """Number of the strides of each source block."""
        forms = self._stride_forms
        return np.array([forms.index(source.strides) for source in self.source_list], np.int64)

    @cached_property
    def _block_numbers(self) -> list[Ints]:
        """Numbers of the source blocks along each axis, in ascending order."""
        return [np.unique(numbers) for numbers in zip(*self.sources, strict=True)]

    @cached_property
    def _number_of_combination(self) -> Ints:
        """Number of the source block of each combination of numbers along the axes."""
        table = np.zeros([len(numbers) for numbers in self._block_numbers], np.int64)
        columns = zip(self._block_numbers, zip(*self.sources, strict=True), strict=True)
        places = tuple(np.searchsorted(ascending, numbers) for ascending, numbers in columns)
        table[places] = np.arange(len(self.sources))
        return table.reshape(-1)

    @cached_property
    def _memory(self) -> list[list["_AxisMemory"]]:
        """Boxes of each image and axis in the memory of the sources."""
        strides = np.array(self._stride_forms, np.int64).reshape(len(self._stride_forms), -1)
        images = []
        for axes, _ in self.images:
            memory = []
            first_dim = 0
            weight = len(self._number_of_combination)
            for boxes, digits, numbers in zip(
                axes,
                self.digits,
                self._block_numbers,
                strict=True,
            ):
                side = boxes.sides[0]
                weight //= len(numbers)
                own_strides = strides[:, first_dim : first_dim + side.starts.shape[1]]
                first_dim += side.starts.shape[1]
                axis_memory = _AxisMemory(
                    digits=list(digits),
                    whole={digit: slice(0, self.sizes[digit]) for digit in digits},
                    all_rows=(np.arange(len(boxes)), boxes.lows, boxes.highs),
                    combinations=np.searchsorted(numbers, side.blocks) * weight,
                    starts=own_strides @ side.starts.T,
                    steps=own_strides[:, None, list(side.dims)] * side.steps,
                )
                memory.append(axis_memory)
            images.append(memory)
        return images

    @cached_property
    def addresses(self) -> Ints:
        """Memory address of each source block."""
        addresses = [source.__array_interface__["data"][0] for source in self.source_list]
        return np.array(addresses, np.int64)

    # --- other digits and orders ------------------------------------------------------------

    @property
    def order(self) -> Block | None:
        """Digits by decreasing stride in the sources; None if the sources differ in this order."""
        orders = set(map(self._falling, self._stride_forms))
        return orders.pop() if len(orders) == 1 else None

    def _falling(self, strides: Block) -> Block | None:
        """Return the digits by decreasing stride in a source; single values keep their places."""
        steps: dict[int, int] = {}
        for axes, _ in self.images:
            first_dim = 0
            for boxes, digits in zip(axes, self.digits, strict=True):
                side = boxes.sides[0]
                for column, digit in enumerate(digits):
                    distances = np.abs(side.steps[boxes.counts[:, column] > 1, column])
                    if not len(distances):
                        continue
                    step = int(distances[0]) * strides[first_dim + side.dims[column]]
                    differs = (distances != distances[0]).any() or steps.get(digit, step) != step
                    if step <= 0 or differs:
                        return None
                    steps[digit] = step
                first_dim += side.starts.shape[1]
        falling = iter(sorted(steps, key=lambda digit: (-steps[digit], digit)))
        return tuple(next(falling) if digit in steps else digit for digit in range(len(self.sizes)))

    @property
    def falls(self) -> bool:
        """True if the sources store values in the order of the block's dimensions."""
        return self.order == tuple(range(len(self.sizes)))

    def turned(self, order: Block) -> "SegmentedView":
        """Return the block with its digits in another order, each as a dimension."""
        sizes = tuple(self.sizes[digit] for digit in order)
        return SegmentedView(
            form=BlockDigits.of(sizes),
            images=self.images,
            digits=tuple(tuple(map(order.index, digits)) for digits in self.digits),
            sources=self.sources,
        )

    def split(self, factors: tuple[Block, ...]) -> "SegmentedView | None":
        """Return the block with its dimensions split into factors, each as a dimension.

        The result is None if a dimension of several digits would be split. The block must not end
        within a digit.
        """
        if all(len(factors_of_dim) == 1 for factors_of_dim in factors):
            return self
        split_radices = _split_radices(self.form.radices, factors)
        if split_radices is None:
            return None
        radices, factors_of_digits = split_radices
        bounds_of_digits = itertools.accumulate(map(len, factors_of_digits), initial=0)
        new_digits = [tuple(range(low, high)) for low, high in itertools.pairwise(bounds_of_digits)]
        images = []
        for axes, conjugate in self.images:
            pairs = zip(axes, self.digits, strict=True)
            split_axes = tuple(_split(boxes, digits, factors_of_digits) for boxes, digits in pairs)
            images.append((split_axes, conjugate))
        axis_digits = []
        for digits in self.digits:
            split_digits = map(new_digits.__getitem__, digits)
            axis_digits.append(tuple(itertools.chain.from_iterable(split_digits)))
        bounds = tuple((0, math.prod(own_radices)) for own_radices in radices)
        return SegmentedView(
            form=BlockDigits(tuple(radices), bounds),
            images=tuple(images),
            digits=tuple(axis_digits),
            sources=self.sources,
        )

    def part(self, cuts: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """Return slices of the digits from slices of the dimensions.

        The result is None if a slice cuts a dimension of several digits.
        """
        slices: list[slice] = []
        for own_radices, cut in zip(self.form.radices, cuts, strict=True):
            if len(own_radices) == 1:
                slices.append(cut)
            elif (cut.start, cut.stop) == (0, math.prod(own_radices)):
                slices += [slice(0, radix) for radix in own_radices]
            else:
                return None
        return tuple(slices)


@dataclass(frozen=True, eq=False)
class _AxisMemory:
    """Boxes of an axis in the memory of source blocks, with a row for each box.

    Parameters
    ----------
    digits : list of int
        Numbers of the axis' digits in the block.
    whole : mapping of int to slice
        All values of each of these digits.
    all_rows : tuple of ndarray
        Numbers of all boxes, and first and end value of each digit in them.
    combinations : ndarray, (boxes,)
        What each box adds to the number of a combination of source blocks.
    starts : ndarray, (forms, boxes)
        Bytes from the first element of a source block to the box, for each form of strides.
    steps : ndarray, (forms, boxes, digits)
        Distance of two values of a digit in bytes.
    """

    digits: list[int]
    whole: Mapping[int, slice]
    all_rows: tuple[Ints, Ints, Ints]
    combinations: Ints
    starts: Ints
    steps: Ints

    @property
    def lows(self) -> Ints:
        """First value of each digit in each box."""
        return self.all_rows[1]


def _split_radices(
    radices: Sequence[Block],
    factors: Sequence[Block],
) -> tuple[list[Block], list[Block]] | None:
    """Return the radices of dimensions that are split into factors, and the factors of each digit.

    The result is None if a dimension of several digits would be split.

    >>> _split_radices([(3, 4), (6,)], [(12,), (2, 3)])
    ([(3, 4), (2,), (3,)], [(3,), (4,), (2, 3)])
    """
    new_radices: list[Block] = []
    factors_of_digits: list[Block] = []
    for radices_of_dim, factors_of_dim in zip(radices, factors, strict=True):
        if len(factors_of_dim) == 1:
            new_radices.append(radices_of_dim)
            factors_of_digits += [(radix,) for radix in radices_of_dim]
        elif len(radices_of_dim) == 1:
            new_radices += [(factor,) for factor in factors_of_dim]
            factors_of_digits.append(factors_of_dim)
        else:
            return None
    return new_radices, factors_of_digits


def _split(boxes: Pieces, digits: Block, radices: Sequence[Block]) -> Pieces:
    """Return the boxes of an axis in finer digits, given those of each digit of the block."""
    column = 0
    for digit in digits:
        boxes = boxes.split(column, radices[digit])
        column += len(radices[digit])
    return boxes


def _equal_rows(counts: Ints, steps: Ints) -> Iterator[Ints]:
    """Yield the numbers of rows that are equal in two tables, in the order of their first row."""
    if len(counts) == 1:
        yield np.zeros(1, np.int64)
        return
    table = np.concatenate([counts, steps], axis=1)
    if (table == table[:1]).all():
        yield np.arange(len(table))
        return
    rows_of_key: dict[bytes, list[int]] = {}
    for row, key in enumerate(table):
        rows_of_key.setdefault(key.tobytes(), []).append(row)
    for rows in rows_of_key.values():
        yield np.array(rows, np.int64)

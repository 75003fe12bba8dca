"""Places of segments in blocks, and the memory that their spectra take.

Most segments lie inside a block, which the task that reads it sums. The others lie across an edge
between two blocks. They are made of copies of the last samples before the edge and of the first
after it, so that no block waits for its neighbour::

    blocks     |a-------------b|c-------------d|
    inside      |----|               |----|
                   |----|       |----|
    edge of b and c        |--|-|
                              |-|--|
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import ClassVar

import numpy as np
from dask.utils import format_bytes

from dask_bigfft.errors import MemoryLimitError, parse_flag, raise_invalid
from dask_bigfft.memory.pages import round_up
from dask_bigfft.planner.explain import budget_text, counted, enough_bytes
from dask_bigfft.planner.overview import short_text
from dask_bigfft.planner.plan import PublicNames
from dask_bigfft.planner.request import Machine
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import even_chunks

#: Temporary memory for a sample of a tile, in complex numbers, with one array and with two.
#: Measured for all dtypes with two halves of a spectrum: 2.8 to 3.1, and 4.3 to 4.6.
TILE_COPIES = {1: 3.5, 2: 5.0}

#: The same for one half of a spectrum, measured 1.5 to 2.1, and 2.1 to 2.9.
HALF_TILE_COPIES = {1: 2.25, 2: 3.25}

#: Temporary arrays of a window's length, in double precision.
WINDOW_COPIES = 3

#: Complex lines of an FFT's length in a thread, and cached in the process, as in
#: `planner.library_memory` for SciPy: without and with large prime factors.
FFT_LINES = {False: (2, 1), True: (8, 6)}

#: Copies of a block of the source that is cut: while it is decoded it is there as it is stored,
#: decoded and returned. Later its parts wait for those of its neighbour.
CUT_COPIES = 3

#: Sums that dask adds at a time.
SUMMED_AT_A_TIME = 4

#: Bytes of dask's tasks for a block. Measured with 2,048 blocks: 29 KiB.
TASKS_NBYTES = 32 << 10

#: The result is not stored by the tasks that compute it.
NOT_STORED = ResultWriting(0, 0, 0)


@dataclass(frozen=True)
class SegmentForecast:
    """Forecast peak memory of averages and short-time transforms, in bytes per process.

    Parameters
    ----------
    blocks : int
        Blocks of the input in running tasks. What else the input's own tasks take is not known.
    edges : int
        Copies of samples around edges between blocks.
    tiles : int
        Temporary memory of SciPy, and of medians.
    tasks : int
        Dask's tasks.
    spectra : int
        Sums of spectra that wait for others; for a median, the spectra of all segments of the rows
        that threads work on, and a block of them for each thread; for short-time transforms, blocks
        of the result that are computed and written.
    result : int
        The result of an average.
    writing : int
        Copies of the blocks that are encoded for a file.
    """

    blocks: int
    edges: int
    tiles: int
    tasks: int
    spectra: int
    result: int
    writing: int = 0

    @property
    def peak_host(self) -> int:
        """Sum of all parts."""
        waiting = self.edges + self.spectra
        return self.blocks + waiting + self.tiles + self.tasks + self.result + self.writing


def _refuse_above_limit(
    function: str,
    peak: int,
    machine: Machine,
) -> None:
    """Raise an error if the forecast of a function exceeds the memory limit of a process."""
    limit = machine.memory_limit
    if limit is None or peak <= limit:
        return
    text = f"at least {enough_bytes(peak)} per process for {function} of these chunks "
    text += f"with {machine.threads} threads, or smaller chunks, or fewer threads"
    raise_invalid(
        "memory_limit",
        format_bytes(limit),
        text,
        kind=MemoryLimitError,
    )


class BlockwisePlan(PublicNames):
    """Base of plans that work block by block: their texts."""

    chunks: tuple[tuple[int, ...], ...]
    machine: Machine
    is_stored: bool

    _public_names: ClassVar[tuple[str, ...]] = (
        "chunks",
        "notation",
        "machine",
        "expected",
        "explain",
    )

    @property
    def expected(self) -> SegmentForecast:
        """Forecast of the memory."""
        raise NotImplementedError

    @property
    def blocks_behind(self) -> int:
        """Blocks of the result that are written while all threads compute others."""
        is_behind = self.is_stored and self.machine.shared
        return min(self.machine.threads, math.prod(map(len, self.chunks))) if is_behind else 0

    def refuse_above_limit(self) -> None:
        """Raise an error if the forecast exceeds the memory limit of a process."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return tuple(map(sum, self.chunks))

    @property
    def notation(self) -> str:
        """Number and length of the segments or slices, as text."""
        raise NotImplementedError

    def _title(self) -> str:
        """Return the function and its input as text."""
        raise NotImplementedError

    def _steps(self) -> Iterator[str]:
        """Yield the steps from the chunks of the input to the result."""
        raise NotImplementedError

    def _reason(self) -> str:
        """Return the reason for the blocks."""
        raise NotImplementedError

    def _blocks(self) -> str:
        """Return the number and shape of the blocks."""
        count = counted(math.prod(map(len, self.chunks)), "block")
        return f"{count} of at most {tuple(map(max, self.chunks))}"

    def _memory(self) -> str:
        """Return the forecast peak memory beside the limit."""
        budget = budget_text(self.expected.peak_host, self.machine.memory_limit)
        return f"{budget}, per process of {counted(self.machine.threads, 'thread')}"

    def explain(self, details: bool = False) -> str:
        """Return the steps of the plan, its memory, and the reason for it as text.

        Parameters
        ----------
        details : bool
            True for the parts of the memory. The default is False.
        """
        is_detailed = parse_flag("details", details)
        rows = [("memory", self._memory())]
        if is_detailed:
            parts = vars(self.expected).items()
            rows += [(f"  {name}", format_bytes(nbytes)) for name, nbytes in parts if nbytes]
        rows.append(("why", self._reason()))
        if not is_detailed:
            rows.append(("more", "explain(details=True) adds the parts of the memory"))
        return short_text(self._title(), self._steps(), rows)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        peak = format_bytes(self.expected.peak_host)
        return f"<{type(self).__name__} {self._title()}: {self.notation}, {peak} per process>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.explain(details=True))}</pre>"


@dataclass(frozen=True, repr=False)
class SegmentPlan(BlockwisePlan):
    """Segments and blocks of averages and short-time transforms, with a forecast of their memory.

    Parameters
    ----------
    function : {"welch", "csd", "stft", "spectrogram"}
        The function.
    average : {"mean", "median", "all"}
        Average over segments; "all" for the spectrum of each.
    axis : int
        Axis of the samples.
    chunks : tuple of tuple of int
        Blocks of the input, at least `nperseg` - 1 samples long.
    joined : bool
        True if the blocks are made of shorter ones.
    dtypes : tuple of str
        Dtypes of the inputs, one or two.
    out_dtype : str
        Dtype of the result.
    nperseg, noverlap, nfft : int
        Samples of a segment, samples that it shares with the next one, and length of its FFT.
    frequencies : int
        Number of frequencies.
    tile_samples : int
        Samples of the segments that are transformed at a time, at least one segment.
    machine : Machine
        Memory limit and threads of a process.
    overlapping : bool
        True if each block is read with all samples of the segments that begin in it.
    cut_nbytes : int
        Bytes of a block of the source, if such blocks are cut into those of the plan; 0 otherwise.
    writing : ResultWriting
        Memory of tasks that store a block of the result.
    is_stored : bool
        True if tasks store the blocks of the result.
    """

    function: str
    average: str
    axis: int
    chunks: tuple[tuple[int, ...], ...]
    joined: bool
    dtypes: tuple[str, ...]
    out_dtype: str
    nperseg: int
    noverlap: int
    nfft: int
    frequencies: int
    tile_samples: int
    machine: Machine
    overlapping: bool = False
    cut_nbytes: int = 0
    writing: ResultWriting = NOT_STORED
    is_stored: bool = False

    _public_names = ("count", *BlockwisePlan._public_names)

    @property
    def notation(self) -> str:
        """Number and length of the segments, as text."""
        return f"{self.count} segments of {self.nperseg} samples"

    @property
    def step(self) -> int:
        """Samples from the start of a segment to that of the next one."""
        return self.nperseg - self.noverlap

    @property
    def edge(self) -> int:
        """Samples on each side of an edge between blocks that segments across it may have."""
        return self.nperseg - 1

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """First sample of each block along the axis, and the number of all samples."""
        return (0, *itertools.accumulate(self.chunks[self.axis]))

    def _starts(self, first: int, last: int, origin: int) -> range:
        """Return starts of segments from sample `first` to `last`, counted from `origin`.

        >>> segments = {"nperseg": 4, "noverlap": 1, "nfft": 4, "frequencies": 3}
        >>> kind = {"function": "welch", "average": "mean", "dtypes": ("f8",), "out_dtype": "f8"}
        >>> blocks = {"axis": 0, "chunks": ((5, 4),), "joined": False, "tile_samples": 8}
        >>> plan = SegmentPlan(**kind, **blocks, **segments, machine=Machine())
        >>> plan.inside, plan.across
        ([range(0, 2, 3), range(1, 1, 3)], [range(1, 3, 3)])
        """
        start = -(-max(first, 0) // self.step) * self.step
        stop = min(last, self.shape[self.axis] - self.nperseg) + 1
        return range(start - origin, max(start, stop) - origin, self.step)

    @cached_property
    def inside(self) -> list[range]:
        """Starts of the segments that lie inside each block as it is read, within the block."""
        last = 1 if self.overlapping else self.nperseg  # samples from the last start to the end
        return [
            self._starts(low, high - last, low) for low, high in itertools.pairwise(self.bounds)
        ]

    @property
    def read_lengths(self) -> tuple[int, ...]:
        """Samples of the segments that lie inside each block."""
        return tuple(starts[-1] + self.nperseg for starts in self.inside)

    @cached_property
    def across(self) -> list[range]:
        """Starts of the segments that lie across each edge, within the samples around it."""
        if self.overlapping:
            return [range(0) for _ in self.bounds[1:-1]]
        return [
            self._starts(edge - self.edge, edge - 1, edge - self.edge) for edge in self.bounds[1:-1]
        ]

    @property
    def across_ends(self) -> list[range]:
        """Starts of `across` for the end of each block; none lie across that of the last block."""
        return [*self.across, range(0)]

    @property
    def block_counts(self) -> tuple[int, ...]:
        """Number of the segments of each block: inside it, and across its end."""
        pairs = zip(self.inside, self.across_ends, strict=True)
        return tuple(len(inside) + len(across) for inside, across in pairs)

    @property
    def has_smaller_end(self) -> bool:
        """True if the last block is smaller than the others, so that it reuses no memory."""
        return self.overlapping and len(self.inside[-1]) < len(self.inside[0])

    @property
    def count(self) -> int:
        """Number of segments."""
        return sum(map(len, self.inside)) + sum(map(len, self.across))

    @cached_property
    def expected(self) -> SegmentForecast:
        """Forecast of the memory."""
        blocks = math.prod(map(len, self.chunks))
        threads = min(self.machine.threads, blocks)
        other_chunks = self._other_chunks
        rows = math.prod(map(max, other_chunks))  # of a block
        all_rows = math.prod(map(sum, other_chunks))
        sample_nbytes = sum(np.dtype(dtype).itemsize for dtype in self.dtypes)
        lengths = self.read_lengths if self.overlapping else self.chunks[self.axis]
        block_nbytes = rows * max(lengths) * sample_nbytes
        last_nbytes = rows * lengths[-1] * sample_nbytes if self.has_smaller_end else 0
        has_edges = any(self.across)
        edge_nbytes = 2 * self.edge * rows * sample_nbytes if has_edges else 0
        is_average = self.average != "all"
        blocks_held = threads
        if self.joined:
            blocks_held += threads
        if has_edges and not is_average:  # a block waits for the first samples of the next one
            blocks_held += threads + 1
        cut_nbytes = CUT_COPIES * threads * self.cut_nbytes
        writing = 0
        if not is_average:
            writing = threads * self.writing.nbytes(self._result_block_nbytes(rows), has_ends=True)
        return SegmentForecast(
            blocks=blocks_held * block_nbytes + last_nbytes + cut_nbytes,
            edges=2 * (threads + 1) * edge_nbytes,
            tiles=self._tile_nbytes(rows, threads),
            tasks=TASKS_NBYTES * blocks,
            spectra=self._spectra_nbytes(rows, threads),
            result=all_rows * self._spectrum_nbytes if is_average else 0,
            writing=writing,
        )

    @property
    def _other_chunks(self) -> list[tuple[int, ...]]:
        """Chunks of the axes other than that of the samples."""
        return [chunks for axis, chunks in enumerate(self.chunks) if axis != self.axis]

    @property
    def _spectrum_nbytes(self) -> int:
        """Bytes of the spectrum of a segment of one row."""
        return self.frequencies * np.dtype(self.out_dtype).itemsize

    def _result_block_nbytes(self, rows: int) -> int:
        """Return the bytes of the largest block of spectra that are not averaged."""
        return rows * max(self.block_counts) * self._spectrum_nbytes

    def _spectra_nbytes(self, rows: int, threads: int) -> int:
        """Return the bytes of spectra, or of their sums, that are in memory at a time.

        Parameters
        ----------
        rows : int
            Rows of a block.
        threads : int
            Threads that work on blocks.
        """
        if self.average == "all":
            last_nbytes = 0
            if self.has_smaller_end:
                last_nbytes = rows * len(self.inside[-1]) * self._spectrum_nbytes
            block_nbytes = self._result_block_nbytes(rows)
            if self.is_stored:  # a run keeps buffers, whose last huge page is touched as a whole
                block_nbytes = round_up(block_nbytes)
            return (threads + self.blocks_behind) * block_nbytes + last_nbytes
        if self.average == "median":
            return self._collected_nbytes(rows, threads)
        sums = 2 * len(self.chunks[self.axis])
        levels = math.ceil(math.log(sums, SUMMED_AT_A_TIME))
        waiting = min(sums, threads + SUMMED_AT_A_TIME * levels)
        return (waiting + 2 * threads) * rows * self._spectrum_nbytes

    def _collected_nbytes(self, rows: int, threads: int) -> int:
        """Return the bytes of spectra that are collected for medians.

        All spectra of a row of blocks wait until the last of its medians is computed. Each thread
        works on one row of blocks, and has one more block: spectra before dask cuts them by
        frequency, or spectra of some frequencies that it has joined.
        """
        groups = min(threads, math.prod(map(len, self._other_chunks)))
        parts = even_chunks(self.frequencies, len(self.chunks[self.axis]))
        segment_nbytes = rows * self._spectrum_nbytes
        cut_nbytes = max(map(len, self.inside)) * segment_nbytes
        itemsize = np.dtype(self.out_dtype).itemsize
        joined_nbytes = self.count * rows * max(parts) * itemsize
        return groups * self.count * segment_nbytes + threads * max(cut_nbytes, joined_nbytes)

    def _tile_nbytes(self, rows: int, threads: int) -> int:
        """Return the bytes of temporary memory in `threads` threads for blocks of `rows` rows.

        A row of a block is its line along the axis at one place of the other axes. A thread has a
        tile of SciPy, or for a median a copy of the numbers that it sorts.
        """
        width = max(self.nperseg, self.nfft)
        most = max(map(len, (*self.inside, *self.across)), default=0) * rows * width
        samples = max(width, min(self.tile_samples, most))
        # Segments of integers have their mean subtracted in double precision.
        common = np.result_type(*self.dtypes)
        wide = np.result_type(common, np.complex64 if common.kind in "fc" else np.complex128)
        half = self.frequencies < self.nfft
        copies = (HALF_TILE_COPIES if half else TILE_COPIES)[len(self.dtypes)] * samples
        is_chirp = max(factorize(self.nfft), default=1) ** 2 > self.nfft > 64
        lines, cached = FFT_LINES[is_chirp]
        # A real FFT works on half a line.
        line_length = self.nfft / 2 if half and not is_chirp else self.nfft
        window = WINDOW_COPIES * 8 * self.nperseg
        own = (copies + lines * line_length) * wide.itemsize + window
        if self.average == "median":
            own = max(own, max(self.tile_samples, self.count) * wide.itemsize)
        return math.ceil(threads * own + cached * line_length * wide.itemsize)

    def refuse_above_limit(self) -> None:
        """Raise an error if the forecast exceeds the memory limit of a process."""
        limit = self.machine.memory_limit
        peak = self.expected.peak_host
        if limit is None or peak <= limit:
            return
        frequencies = self.nperseg if self.frequencies == self.nfft else self.nperseg // 2 + 1
        without_padding = replace(self, nfft=self.nperseg, frequencies=frequencies)
        if without_padding.expected.peak_host <= limit:
            text = f"a smaller one, or a memory_limit of at least {enough_bytes(peak)} per process "
            text += f"(it is {format_bytes(limit)})"
            raise_invalid(
                "nfft",
                self.nfft,
                text,
                kind=MemoryLimitError,
            )
        _refuse_above_limit(self.function, peak, self.machine)

    def _title(self) -> str:
        dtypes = " and ".join(np.dtype(dtype).name for dtype in self.dtypes)
        return f"{self.function} of {self.shape} {dtypes} along axis {self.axis}"

    def _steps(self) -> Iterator[str]:
        if self.joined:
            yield f"rechunk into {self._blocks()}"
        crossing = sum(map(len, self.across))
        if crossing:
            segments = counted(crossing, "segment")
            yield f"copy the samples beside edges of blocks, which {segments} cross"
        work = f"FFTs of length {self.nfft} of {self.notation}, one every {self.step}"
        yield f"{work}, in {self._blocks()}"
        if self.average != "all":
            yield f"{self.average} over all segments"

    def _reason(self) -> str:
        blocks = "blocks are the chunks of the input"
        if self.overlapping:
            blocks = "each block is read with all samples of its segments, so that none waits for "
            blocks += "another"
        elif self.joined:
            blocks = "blocks are as long as a segment at least, and the same for all arrays"
        rows = math.prod(map(max, self._other_chunks))
        sample_nbytes = sum(np.dtype(dtype).itemsize for dtype in self.dtypes)
        whole = format_bytes(rows * self.shape[self.axis] * sample_nbytes)
        return f"{blocks}; chunks of the whole axis would have {whole} each"


#: Temporary memory for a sample of a tile of an inverse, in complex numbers: the spectra, their
#: FFTs, the slices and their pieces. Real ones take half of it.
INVERSE_TILE_COPIES = 5.0


@dataclass(frozen=True, repr=False)
class OverlapAddPlan(BlockwisePlan):
    """Blocks of an inverse short-time transform, with a forecast of their memory.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Blocks of the spectra: rows, frequencies, and slices last. Slices of two blocks may overlap
        if `overlapping` is true.
    slices : int
        Number of slices.
    lengths : tuple of int
        Samples that are made of each block of slices.
    overlap : int
        Most slices of a block that reach into the samples of the next one.
    joined : bool
        True if the blocks are made of others.
    dtype, out_dtype : str
        Dtypes of the spectra that are transformed, and of the samples.
    nperseg, hop, nfft : int
        Samples of a slice, samples from a slice to the next one, and length of its FFT.
    tile_samples : int
        Samples of the slices that are computed at a time, at least one slice.
    machine : Machine
        Memory limit and threads of a process.
    overlapping : bool
        True if each block is read with all slices that reach into its samples.
    cut_nbytes : int
        Bytes of a block of the source, if such blocks are cut into those of the plan; 0 otherwise.
    read_nbytes : int
        Bytes of a stored chunk that a thread reads, before it copies them into a block.
    writing : ResultWriting
        Memory of tasks that store a block of the result.
    is_stored : bool
        True if tasks store the blocks of the result.
    """

    chunks: tuple[tuple[int, ...], ...]
    slices: int
    lengths: tuple[int, ...]
    overlap: int
    joined: bool
    dtype: str
    out_dtype: str
    nperseg: int
    hop: int
    nfft: int
    tile_samples: int
    machine: Machine
    overlapping: bool = False
    cut_nbytes: int = 0
    read_nbytes: int = 0
    writing: ResultWriting = NOT_STORED
    is_stored: bool = False

    @property
    def function(self) -> str:
        """Name of the function."""
        return "istft"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return (*map(sum, self.chunks[:-1]), self.slices)

    @property
    def notation(self) -> str:
        """Number and length of the slices, as text."""
        return f"{self.slices} slices of {self.nperseg} samples"

    @property
    def waits(self) -> bool:
        """True if a block waits for the last slices of the one before."""
        return self.overlap > 0 and not self.overlapping

    @cached_property
    def expected(self) -> SegmentForecast:
        """Forecast of the memory."""
        blocks = math.prod(map(len, self.chunks))
        threads = min(self.machine.threads, blocks)
        *row_chunks, frequency_chunks, slice_chunks = self.chunks
        rows = math.prod(map(max, row_chunks))
        most = max(slice_chunks)
        column = rows * max(frequency_chunks) * np.dtype(self.dtype).itemsize
        tile = min(max(self.nfft, self.tile_samples), rows * most * self.nfft)
        # Pieces are padded to whole hops, and one slice may be shorter than a hop.
        pieces = -(-self.nperseg // self.hop)
        width = max(self.nfft, pieces * self.hop) / self.nfft
        own_tile = INVERSE_TILE_COPIES * tile * width * np.dtype(self.out_dtype).itemsize
        is_chirp = max(factorize(self.nfft), default=1) ** 2 > self.nfft > 64
        lines, cached = FFT_LINES[is_chirp]
        line = self.nfft * np.dtype(self.dtype).itemsize
        columns = threads * most
        if self.joined or self.waits:
            columns += (threads + 1) * most
        if self.overlapping:  # memory of blocks at the ends, which have fewer slices, is not reused
            columns += sum({*slice_chunks} - {most})
        edges = 2 * (threads + 1) * self.overlap * column if self.waits else 0
        result = rows * max(self.lengths) * np.dtype(self.out_dtype).itemsize
        return SegmentForecast(
            blocks=columns * column + threads * (CUT_COPIES * self.cut_nbytes + self.read_nbytes),
            edges=edges,
            tiles=math.ceil(threads * (own_tile + lines * line) + cached * line),
            tasks=TASKS_NBYTES * blocks,
            spectra=self._samples_nbytes(rows, threads),
            result=0,
            writing=threads * self.writing.nbytes(result, has_ends=True),
        )

    def _samples_nbytes(self, rows: int, threads: int) -> int:
        """Return the bytes of samples, and of the hops that they are added up in.

        Parameters
        ----------
        rows : int
            Rows of a block.
        threads : int
            Threads that work on blocks.
        """
        itemsize = np.dtype(self.out_dtype).itemsize
        slices = max(self.chunks[-1]) + (self.overlap if self.waits else 0)
        hops = slices + -(-self.nperseg // self.hop)
        row_nbytes = hops * self.hop * itemsize
        blocks = threads + (self.blocks_behind if self.is_stored else threads)
        if rows == 1:  # samples are a view of the hops
            return blocks * row_nbytes
        result = rows * max(self.lengths) * itemsize
        tile = min(rows * row_nbytes, max(row_nbytes, self.tile_samples * itemsize))
        return blocks * result + threads * tile

    def refuse_above_limit(self) -> None:
        """Raise an error if the forecast exceeds the memory limit of a process."""
        _refuse_above_limit("istft", self.expected.peak_host, self.machine)

    def _title(self) -> str:
        return f"istft of {self.shape} {np.dtype(self.dtype).name}, slices along the last axis"

    def _steps(self) -> Iterator[str]:
        if self.joined:
            yield f"copy into {self._blocks()}, {np.dtype(self.dtype).name}"
        work = f"inverse FFTs of length {self.nfft} of {self.notation}, one every {self.hop}"
        yield f"{work}, in {self._blocks()}"
        if self.waits:
            yield "add the samples that slices of two blocks share"

    def _reason(self) -> str:
        blocks = "each block has whole spectra"
        if self.overlapping:
            blocks += ", and is read with all slices that reach into its samples"
        column = math.prod(map(max, self.chunks[:-1])) * np.dtype(self.dtype).itemsize
        whole = format_bytes(column * self.slices)
        return f"{blocks}; chunks of all slices would have {whole} each"

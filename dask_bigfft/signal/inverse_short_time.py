"""Inverse short-time transforms: samples that overlapping slices add up to.

A task has the slices of its block, and those at the end of the block before that reach into it::

    spectra     |p----------------q|r------------------s|
    slices       |------|            |------|
                     |------|            |------|
                         |---+--|
    result      |a----------------b|c------------------d|
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block, note_plan
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.arrays import Array
from dask_bigfft.errors import parse_count, raise_invalid
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.request import Machine
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.signal.arguments import (
    SignalOptions,
    in_chunks,
    long_enough,
    parse_signal_options,
    refuse_unsupported,
    without_empty,
)
from dask_bigfft.signal.segment_plan import NOT_STORED, OverlapAddPlan
from dask_bigfft.signal.segment_tasks import GPU_TILE_SAMPLES, TILE_SAMPLES
from dask_bigfft.signal.segments import machine_of
from dask_bigfft.signal.short_time import (
    FFTMode,
    Scaling,
    WindowArguments,
    least_samples,
    parse_window,
    slice_fft,
)
from dask_bigfft.signal.short_time_tasks import SamplesOfSpectra, last_slices, samples_of_block
from dask_bigfft.signal.spectra_reading import SampleBlocks, SpectraBlocks
from dask_bigfft.storage.sources import Reader
from dask_bigfft.transforms.spec import parse_axes, work_dtype

__all__ = ["istft"]


@keeps_kind
def istft(
    S: Any,
    win: Any,
    hop: int,
    fs: float,
    *,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    dual_win: Any = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    k0: int = 0,
    k1: int | None = None,
    f_axis: int = -2,
    t_axis: int = -1,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the inverse of a short-time Fourier transform.

    Parameters
    ----------
    S : dask array or array-like
        Spectra of slices, of any chunking; only read.
    win, hop, fs, fft_mode, mfft, scale_to, phase_shift
        Arguments of the `stft` that has made them.
    dual_win : array-like, optional
        Window that slices are multiplied by before they are added, by default the canonical one.
    k0, k1 : int, optional
        First sample of the result, and the end of the samples. By default they are those from
        sample 0 to the end of the last slice: give the length of the original record as `k1`.
    f_axis, t_axis : int
        Axes of the frequencies and of the slices. The first slice is the first one that `stft`
        makes by default.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result.
    memory_limit, ..., planner
        See `stft`.

    Returns
    -------
    dask.array.Array
        Lazy: samples along the axis of the frequencies, or along that of the slices if the
        frequencies are along the last axis, as
        ``ShortTimeFFT(win, hop, fs, dual_win=dual_win, ...).istft(S, k0, k1)`` returns them; real
        for a half of the frequencies. A block has the samples from the first slice of a block of
        `S` to that of the next block.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, for a memory limit that is too small, and where windows leave gaps,
        so that there is no inverse.

    See Also
    --------
    plan_segments : Forecast of the memory.

    Examples
    --------
    >>> from dask_bigfft.signal import stft
    >>> x = da.arange(100, chunks=30) * 1.0
    >>> spectra = stft(x, np.hanning(20), 5, 1.0)
    >>> istft(spectra, np.hanning(20), 5, 1.0, k1=100).compute().round(6)[-3:]
    array([97., 98., 99.])
    """
    call = parse_inverse(
        parse_array(S, "fft"),
        WindowArguments(
            win,
            hop,
            fs,
            fft_mode,
            mfft,
            scale_to,
            phase_shift,
            dual_win,
        ),
        SampleArguments(
            k0,
            k1,
            f_axis,
            t_axis,
        ),
        options,
    )
    return in_chunks(call.samples(), options.get("chunks"))


@dataclass(frozen=True)
class SampleArguments:
    """Arguments of an inverse that choose its axes and samples, as `istft` has them."""

    k0: Any
    k1: Any
    f_axis: Any
    t_axis: Any


@dataclass(frozen=True)
class InverseCall:
    """A validated call of `istft`.

    Parameters
    ----------
    spectra : dask.array.Array
        Slices that are added, in the blocks of the plan: frequencies along the second-last axis and
        slices along the last.
    plan : OverlapAddPlan
        Slices and blocks.
    work : SamplesOfSpectra
        What is computed of the slices of a block.
    extents : tuple of range
        Samples that are made of each block of slices, counted from the start of the first slice
        that the task gets. If blocks get slices from the block before, the samples of the first
        block are counted as if it got them, too: from `overlap` slices before its own first one.
    axis : int
        Axis of the result along which samples run.
    """

    spectra: da.Array
    plan: OverlapAddPlan
    work: SamplesOfSpectra
    extents: tuple[range, ...]
    axis: int

    def samples(self) -> da.Array:
        """Return the samples of all blocks."""
        self.plan.refuse_above_limit()
        note_plan(self.plan)
        added = _added(self)
        order = [*range(added.ndim - 1)]
        order.insert(self.axis, added.ndim - 1)
        in_order: da.Array = added.transpose(order)
        return in_order


@dataclass(frozen=True)
class ParsedInverse:
    """Arguments of `istft` that are valid for an array.

    Parameters
    ----------
    array : dask.array.Array
        The spectra.
    transform : scipy.signal.ShortTimeFFT
        SciPy's description of the transform.
    dual_window : ndarray
        Window by which slices are multiplied.
    f_axis, t_axis : int
        Axes of the frequencies and of the slices, not negative.
    start, stop : int
        First sample of the result, and the end of the samples, counted from the start of the first
        slice of the array.
    slices : range
        Slices that are added.
    machine : Machine
        Memory limit and threads of a process.
    """

    array: da.Array
    transform: "scipy.signal.ShortTimeFFT"
    dual_window: Array
    f_axis: int
    t_axis: int
    start: int
    stop: int
    slices: range
    machine: Machine

    @property
    def axis(self) -> int:
        """Axis of the result along which samples run."""
        return self.f_axis if self.f_axis < self.array.ndim - 1 else self.t_axis

    def in_order(self, spectra: da.Array) -> da.Array:
        """Return spectra with frequencies along the second-last axis and slices along the last."""
        both = (self.f_axis, self.t_axis)
        rows = [axis for axis in range(spectra.ndim) if axis not in both]
        ordered: da.Array = spectra.transpose([*rows, *both])
        return ordered

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """Dtype of the spectra that are transformed."""
        return work_dtype(self.array.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the samples."""
        if self.transform.onesided_fft:
            return np.empty(0, self.work_dtype).real.dtype
        return self.work_dtype

    def work(self) -> SamplesOfSpectra:
        """Return what is computed of the slices of a block."""
        is_gpu = is_on_gpu(self.array._meta)
        return SamplesOfSpectra(
            fft=slice_fft(self.transform, self.dual_window),
            dtype=self.dtype,
            tile_samples=GPU_TILE_SAMPLES if is_gpu else TILE_SAMPLES,
        )

    def blocks_of(self, bounds: tuple[int, ...]) -> SampleBlocks:
        """Return blocks of samples."""
        return SampleBlocks(
            nperseg=int(self.transform.m_num),
            hop=int(self.transform.hop),
            slices=self.slices.stop,
            bounds=bounds,
        )

    def plan(
        self,
        chunks: tuple[tuple[int, ...], ...],
        blocks: SampleBlocks,
        **more: Any,
    ) -> OverlapAddPlan:
        """Return the plan for blocks of spectra and of samples."""
        return OverlapAddPlan(
            chunks=chunks,
            slices=blocks.reaching[-1].stop - blocks.reaching[0].start,
            lengths=blocks.lengths,
            overlap=blocks.overlap,
            dtype=self.work_dtype.str,
            out_dtype=self.dtype.str,
            nperseg=blocks.nperseg,
            hop=blocks.hop,
            nfft=int(self.transform.mfft),
            tile_samples=self.work().tile_samples,
            machine=self.machine,
            **more,
        )


def parse_arguments(
    array: da.Array,
    arguments: WindowArguments,
    choice: SampleArguments,
    options: SignalOptions,
) -> ParsedInverse:
    """Return the arguments of `istft` that are valid for an array."""
    parse_signal_options(options)
    refuse_unsupported(
        options,
        array,
        "istft",
        forecast=True,
    )
    transform = parse_window(arguments)
    if array.ndim < 2:
        raise_invalid("S", f"{array.ndim} axes", "an axis of frequencies and one of slices")
    (f_axis,) = parse_axes("f_axis", (choice.f_axis,), array.ndim)
    (t_axis,) = parse_axes("t_axis", (choice.t_axis,), array.ndim)
    if f_axis == t_axis:
        raise_invalid("t_axis", choice.t_axis, f"another axis than f_axis={choice.f_axis}")
    dual_window = _parse_dual(transform)
    first, end, start, stop = _parse_samples(
        array.shape[f_axis],
        array.shape[t_axis],
        transform,
        choice,
    )
    origin = transform.p_min * transform.hop - transform.m_num_mid
    return ParsedInverse(
        array,
        transform,
        dual_window,
        f_axis,
        t_axis,
        start=int(start - origin),
        stop=int(stop - origin),
        slices=range(int(first - transform.p_min), int(end - transform.p_min)),
        machine=machine_of(options, is_on_gpu(array._meta)),
    )


def parse_inverse(
    array: da.Array,
    arguments: WindowArguments,
    choice: SampleArguments,
    options: SignalOptions,
) -> InverseCall:
    """Return the validated call of `istft` on an array, in the blocks of the array."""
    parsed = parse_arguments(
        array,
        arguments,
        choice,
        options,
    )
    used = parsed.slices
    chosen = without_empty(parsed.in_order(array)[..., used.start : used.stop])
    hop = int(parsed.transform.hop)
    reach = -(-int(parsed.transform.m_num) // hop) - 1
    slice_chunks = long_enough(chosen.chunks[-1], reach)
    # A block has the samples from its first slice to that of the next block.
    starts = [hop * (used.start + count) for count in itertools.accumulate(slice_chunks)]
    inner = [start for start in starts[:-1] if parsed.start < start < parsed.stop]
    bounds = (parsed.start, *inner, parsed.stop)
    return _call_of_waiting_blocks(parsed, parsed.blocks_of(bounds))


def parse_stored_inverse(
    array: da.Array,
    arguments: WindowArguments,
    choice: SampleArguments,
    options: SignalOptions,
    *,
    samples_per_block: int,
    first_sample: int = 0,
    reader: Reader | None = None,
    writing: ResultWriting = NOT_STORED,
) -> InverseCall:
    """Return the validated call of `istft` for samples that its tasks store.

    They are the samples from `first_sample` on, in blocks of a given length.

    Parameters
    ----------
    array : dask.array.Array
        The spectra.
    arguments, choice, options
        Arguments of `istft`.
    samples_per_block : int
        Samples of each block of the result but the last one. Without a `reader` the last ones may
        be joined.
    first_sample : int
        Sample of the result at which the first block begins.
    reader : Reader, optional
        Reader of the spectra, which are read for each block with all slices that reach into it.
    writing : ResultWriting
        Memory of tasks that store a block.
    """
    parsed = parse_arguments(
        array,
        arguments,
        choice,
        options,
    )
    start = parsed.start + first_sample
    blocks = parsed.blocks_of((*range(start, parsed.stop, samples_per_block), parsed.stop))
    if reader is None:
        cut_nbytes = math.prod(map(max, array.chunks)) * array.dtype.itemsize
        return _call_of_waiting_blocks(
            parsed,
            blocks,
            cut_nbytes=cut_nbytes,
            writing=writing,
            is_stored=True,
        )
    read = SpectraBlocks(reader, parsed.t_axis, blocks.reaching)
    read_blocks = read.array(array.rechunk({parsed.f_axis: -1}).chunks)
    spectra = parsed.in_order(read_blocks)
    firsts = [slices.start for slices in blocks.reaching]
    read_nbytes = 0
    if reader.unit and max(map(len, blocks.reaching)) > reader.unit[parsed.t_axis]:
        # The values of a whole chunk are not contiguous in a block of more slices.
        values = min(math.prod(reader.unit), math.prod(map(max, spectra.chunks)))
        read_nbytes = values * reader.dtype.itemsize
    plan = parsed.plan(
        spectra.chunks,
        blocks,
        joined=spectra.dtype != parsed.work_dtype,
        overlapping=True,
        read_nbytes=read_nbytes,
        writing=writing,
        is_stored=True,
    )
    return InverseCall(
        spectra.astype(parsed.work_dtype),
        plan,
        parsed.work(),
        blocks.extents(firsts),
        parsed.axis,
    )


def _call_of_waiting_blocks(
    parsed: ParsedInverse,
    blocks: SampleBlocks,
    **more: Any,
) -> InverseCall:
    """Return a call in blocks that wait for the last slices of the one before.

    Further keywords are those of the plan.
    """
    blocks = blocks.joined()
    begun = blocks.begun
    used = slice(begun[0].start, begun[-1].stop)
    chosen = without_empty(parsed.in_order(parsed.array)[..., used])
    spectra = chosen.astype(parsed.work_dtype).rechunk({-2: -1, -1: tuple(map(len, begun))})
    plan = parsed.plan(
        spectra.chunks,
        blocks,
        joined=spectra.chunks != chosen.chunks or spectra.dtype != chosen.dtype,
        **more,
    )
    firsts = [slices.start - blocks.overlap for slices in begun]
    return InverseCall(
        spectra,
        plan,
        parsed.work(),
        blocks.extents(firsts),
        parsed.axis,
    )


def _parse_samples(
    frequencies: int,
    slices: int,
    transform: "scipy.signal.ShortTimeFFT",
    choice: SampleArguments,
) -> tuple[int, int, int, int]:
    """Return the first slice that is added, and the end of these; and the same of the samples."""
    hop = transform.hop
    points = transform.f_pts
    if frequencies != points:
        raise_invalid("S", f"{frequencies} frequencies", f"{points} for this window")
    least = least_samples(transform)
    if slices < transform.p_num(least):
        need = f"at least {transform.p_num(least)} for this window"
        raise_invalid("S", f"{slices} slices", need)
    end_slice = slices + transform.p_min
    k_max = (end_slice - 1) * hop + least
    start = parse_count("k0", choice.k0, transform.k_min, k_max - least)
    stop = k_max
    if choice.k1 is not None:
        stop = parse_count("k1", choice.k1, max(start + least, least), k_max)
    # The slices that SciPy adds. Those before the first one do not reach sample k0.
    first = start // hop + (transform.p_min if start >= 0 else 0)
    first = max(first, transform.p_min)
    end = min(transform.p_max(stop), end_slice)
    return int(first), int(end), int(start), int(stop)


def _parse_dual(transform: "scipy.signal.ShortTimeFFT") -> Array:
    """Return the dual window; refuse windows that have none."""
    try:
        return cast("Array", transform.dual_win)
    except ValueError:
        allowed = f"a window whose slices, one every hop={transform.hop} samples, leave no gap"
        raise_invalid("win", transform.win, allowed)


def _added(call: InverseCall) -> da.Array:
    """Return the samples that slices add up to, along the last axis."""
    spectra = call.spectra
    plan = call.plan
    sources = [spectra]
    count = plan.overlap
    slice_chunks = spectra.chunks[-1]
    if plan.waits:
        # The tail of a block goes to the next one. The first block gets its own, and ignores it.
        tails: Any = by_block(
            last_slices,
            spectra,
            dtype=spectra.dtype,
            chunks=(*spectra.chunks[:-1], (count,) * len(slice_chunks)),
            count=count,
        )
        sources.append(da.concatenate([tails[..., :count], tails[..., :-count]], axis=-1))
    added = by_block(  # `drop_axis` would make dask copy each block
        samples_of_block,
        *sources,
        dtype=call.work.dtype,
        chunks=(*spectra.chunks[:-2], (1,), plan.lengths),
        extents=call.extents,
        axis=call.axis,
        work=call.work,
    )
    samples: da.Array = added[..., 0, :]
    return samples

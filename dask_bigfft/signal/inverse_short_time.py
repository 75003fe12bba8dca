"""Inverse short-time transforms: samples that overlapping slices add up to.

A task has the slices of its block, and those at the end of the block before that reach into it::

    spectra     |p----------------q|r------------------s|
    slices       |------|            |------|
                     |------|            |------|
                         |---+--|
    result      |a----------------b|c------------------d|
"""

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
from dask_bigfft.signal.arguments import (
    SignalOptions,
    in_chunks,
    long_enough,
    parse_signal_options,
    refuse_unsupported,
    without_empty,
)
from dask_bigfft.signal.segment_plan import OverlapAddPlan
from dask_bigfft.signal.segment_tasks import GPU_TILE_SAMPLES, TILE_SAMPLES
from dask_bigfft.signal.segments import machine_of
from dask_bigfft.signal.short_time import (
    FFTMode,
    Scaling,
    WindowArguments,
    parse_window,
    slice_fft,
)
from dask_bigfft.signal.short_time_tasks import SamplesOfSpectra, last_slices, samples_of_block
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
    start, stop : int
        Samples of the result, counted from the start of the first slice.
    axis : int
        Axis of the result along which samples run.
    """

    spectra: da.Array
    plan: OverlapAddPlan
    work: SamplesOfSpectra
    start: int
    stop: int
    axis: int

    def samples(self) -> da.Array:
        """Return the samples."""
        self.plan.refuse_above_limit()
        note_plan(self.plan)
        added = _overlapped(self.spectra, self.plan, self.work)
        missing = self.stop - added.shape[-1]
        if missing > 0:  # samples behind the last slice
            zeros = da.zeros_like(added, shape=(*added.shape[:-1], missing))
            added = da.concatenate([added, zeros], axis=-1)
        samples: da.Array = added[..., self.start : self.stop]
        order = [*range(samples.ndim - 1)]
        order.insert(self.axis, samples.ndim - 1)
        in_order: da.Array = samples.transpose(order)
        return in_order


def parse_inverse(
    array: da.Array,
    arguments: WindowArguments,
    choice: SampleArguments,
    options: SignalOptions,
) -> InverseCall:
    """Return the validated call of `istft` on an array."""
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
    rows = [axis for axis in range(array.ndim) if axis not in (f_axis, t_axis)]
    spectra = array.transpose([*rows, f_axis, t_axis])
    dual_window = _parse_dual(transform)
    first, end, start, stop = _parse_samples(spectra, transform, choice)
    used = slice(first - transform.p_min, end - transform.p_min)
    chosen = without_empty(spectra[..., used])
    on_gpu = is_on_gpu(array._meta)
    complex_dtype = work_dtype(array.dtype)
    dtype = np.empty(0, complex_dtype).real.dtype if transform.onesided_fft else complex_dtype
    work = SamplesOfSpectra(
        fft=slice_fft(transform, dual_window),
        dtype=dtype,
        tile_samples=GPU_TILE_SAMPLES if on_gpu else TILE_SAMPLES,
    )
    slice_chunks = long_enough(chosen.chunks[-1], work.pieces - 1)
    blocks = chosen.astype(complex_dtype).rechunk({-2: -1, -1: slice_chunks})
    plan = OverlapAddPlan(
        chunks=blocks.chunks,
        joined=blocks.chunks != chosen.chunks or chosen.dtype != complex_dtype,
        dtype=complex_dtype.str,
        out_dtype=dtype.str,
        nperseg=int(transform.m_num),
        hop=int(transform.hop),
        nfft=int(transform.mfft),
        tile_samples=work.tile_samples,
        machine=machine_of(options, on_gpu),
    )
    origin = first * transform.hop - transform.m_num_mid
    return InverseCall(
        blocks,
        plan,
        work,
        start=start - origin,
        stop=stop - origin,
        axis=f_axis if f_axis < array.ndim - 1 else t_axis,
    )


def _parse_samples(
    spectra: da.Array,
    transform: "scipy.signal.ShortTimeFFT",
    choice: SampleArguments,
) -> tuple[int, int, int, int]:
    """Return the first slice that is added, and the end of these; and the same of the samples."""
    hop = transform.hop
    points = transform.f_pts
    if spectra.shape[-2] != points:
        raise_invalid("S", f"{spectra.shape[-2]} frequencies", f"{points} for this window")
    least = transform.m_num - transform.m_num_mid
    slices = spectra.shape[-1]
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


def _overlapped(
    blocks: da.Array,
    plan: OverlapAddPlan,
    work: SamplesOfSpectra,
) -> da.Array:
    """Return the sum of all slices, from the start of the first to the end of the last."""
    slice_chunks = plan.chunks[-1]
    reach = plan.reach
    sources = [blocks]
    if reach and len(slice_chunks) > 1:
        # The tail of a block goes to the next one. The first block gets its own, and ignores it.
        tails: Any = by_block(
            last_slices,
            blocks,
            dtype=blocks.dtype,
            chunks=(*blocks.chunks[:-1], (reach,) * len(slice_chunks)),
            count=reach,
        )
        sources.append(da.concatenate([tails[..., :reach], tails[..., :-reach]], axis=-1))
    *lengths, last = (count * plan.hop for count in slice_chunks)
    chunks = (*blocks.chunks[:-2], (1,), (*lengths, last + plan.nperseg - plan.hop))
    added = by_block(  # `drop_axis` would make dask copy each block
        samples_of_block,
        *sources,
        dtype=work.dtype,
        chunks=chunks,
        blocks=len(slice_chunks),
        work=work,
    )
    samples: da.Array = added[..., 0, :]
    return samples

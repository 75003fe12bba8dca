"""Peers of the GPU benchmark: the CPU's libraries, and the loops over a card that users write.

The loops know the budget: they take pieces that fit it with the copy that an FFT out of place
needs. The pinned one copies by the copy engines from pinned memory, step after step; the pageable
one is what the documentation of CuPy suggests.

Imports `devices`, `memory`, NumPy and SciPy.
"""

import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.cupy_device import Span
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST, runs
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Run = Callable[[Array, Array], object]


def cpu_libraries(ndim: int, best: bool = False) -> dict[str, Run]:
    """Return what transforms an array into another one with all cores, by name.

    SciPy runs a single axis on one core, which takes minutes here: it is left out then, and where
    only the `best` is wanted, which ducc0 is wherever it was measured.
    """
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Run] = {}
    if importlib.util.find_spec("ducc0") is not None:
        ducc = importlib.import_module("ducc0").fft

        def by_ducc(x: Array, out: Array) -> None:
            ducc.c2c(x, out=out, nthreads=cores, inorm=1)

        found["ducc0"] = by_ducc
    if (ndim > 1 and not best) or not found:
        found["scipy"] = lambda x, out: np.copyto(
            out, scipy.fft.fftn(x, norm="ortho", workers=cores)
        )
    return found


def _axes_in_turn(values: Array, budget: int) -> Iterator[tuple[Array, tuple[int, ...]]]:
    """Pieces of at most a quarter of the budget, and the axes along which each is transformed.

    An FFT of CuPy needs its input, a copy of it in another order, its output and a work area.
    """
    rest = tuple(range(1, values.ndim))
    for cut, axes in ((0, rest), (values.ndim - 1, (0,))):
        slices = max(1, values.shape[cut] * budget // (4 * values.nbytes))
        for low in range(0, values.shape[cut], slices):
            yield values[(slice(None),) * cut + (slice(low, low + slices),)], axes


def _copy(view: Array, card: Any, direction: int) -> None:
    """One strided copy between pinned memory and a dense array on the card."""
    runtime, (width, outer) = cupy().cuda.runtime, runs(view)
    host, device = int(view.ctypes.data), int(card.data.ptr)
    height, pitch = (outer[0].count, outer[0].stride) if outer else (1, width)
    if len(outer) > 1:  # the last axis is cut: all before it is one run of rows
        height, pitch = math.prod(run.count for run in outer), outer[-1].stride
    ends = (device, width, host, pitch) if direction == TO_DEVICE else (host, pitch, device, width)
    runtime.memcpy2DAsync(*ends, width, height, direction, 0)
    cupy().cuda.get_current_stream().synchronize()


def pinned_loop(values: Array, budget: int) -> None:
    """Copy in, FFT, copy out, one after the other, from pinned memory."""
    cp = cupy()
    for part, axes in _axes_in_turn(values, budget):
        card = cp.empty(part.shape, part.dtype)
        _copy(part, card, TO_DEVICE)
        for axis in axes:
            card = cp.fft.fft(card, axis=axis, norm="ortho")
        card = cp.ascontiguousarray(card)
        _copy(part, card, TO_HOST)
        del card
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


def pinned_long_loop(values: Array, budget: int) -> None:
    """The same for a single long axis: columns, factors, rows, in natural order in other memory."""
    cp, n = cupy(), values.size
    columns = 1 << (n.bit_length() // 2)
    x, out = values.reshape(-1, columns), lend((columns, n // columns), values.dtype)
    step = max(1, columns * budget // (6 * values.nbytes))
    first = cp.arange(len(x))[:, np.newaxis]
    for low in range(0, columns, step):
        part = x[:, low : low + step]
        card = cp.empty(part.shape, part.dtype)
        _copy(part, card, TO_DEVICE)
        card = cp.fft.fft(card, axis=0, norm="ortho")
        turns = first * cp.arange(low, low + part.shape[1])
        card *= cp.exp(turns * (-2j * math.pi / n)).astype(part.dtype)
        _copy(part, card, TO_HOST)
        del card, turns
    step = max(1, len(x) * budget // (6 * values.nbytes))
    for low in range(0, len(x), step):
        card = cp.empty((min(step, len(x) - low), columns), values.dtype)
        _copy(x[low : low + step], card, TO_DEVICE)
        card = cp.fft.fft(card, axis=1, norm="ortho")
        _copy(out[:, low : low + step], cp.ascontiguousarray(card.T), TO_HOST)
        del card
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


def pageable_loop(values: Array, budget: int) -> None:
    """What one writes first: ``x[part] = cupy.fft.fft(cupy.asarray(x[part])).get()``."""
    cp = cupy()
    for part, axes in _axes_in_turn(values, budget):
        card = cp.asarray(part)
        for axis in axes:
            card = cp.fft.fft(card, axis=axis, norm="ortho")
        part[...] = card.get()
        del card
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


LOOPS: dict[str, Callable[[Array, int], None]] = {
    "pinned loop": pinned_loop,
    "pageable loop": pageable_loop,
}
LONG_LOOPS: dict[str, Callable[[Array, int], None]] = {"pinned loop": pinned_long_loop}


def whole(x: Array, pinned: bool) -> None:
    """A problem that fits the card: copy in, transform, copy out."""
    cp = cupy()
    if pinned:
        card = cp.empty(x.shape, x.dtype)
        _copy(x, card, TO_DEVICE)
        _copy(x, cp.ascontiguousarray(cp.fft.fftn(card, norm="ortho")), TO_HOST)
    else:
        cp.fft.fftn(cp.asarray(x), norm="ortho").get()
    cp.fft.config.get_plan_cache().clear()
    cp.get_default_memory_pool().free_all_blocks()


def resident(peak: bool) -> int:
    """Return the bytes that the process has in memory, or had at most since it was asked before."""
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    if not peak:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def least_free(work: Callable[[], object]) -> int:
    """Least free memory of the card while something runs, by looking again and again."""
    runtime, seen = cupy().cuda.runtime, [int(cupy().cuda.runtime.memGetInfo()[0])]
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(int(runtime.memGetInfo()[0]))
            time.sleep(0.002)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        work()
    finally:
        stop.set()
        looker.join()
    return min(seen)


def overlap(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds in all, and the share of them in which one, two and three engines work.

    >>> a, b = Span("h2d", "h2d", 0.0, 2.0, 1), Span("d2h", "d2h", 1.0, 3.0, 1)
    >>> overlap([a, b])["two or more"]
    0.333...
    """
    marks = sorted([(s.start, 1, s.engine) for s in spans] + [(s.end, -1, s.engine) for s in spans])
    busy: dict[str, int] = {}
    shares, before = [0.0, 0.0, 0.0, 0.0], marks[0][0]
    for at, change, engine in marks:
        shares[sum(n > 0 for n in busy.values())] += at - before
        busy[engine], before = busy.get(engine, 0) + change, at
    total = sum(shares)
    names = ("nothing", "one or more", "two or more", "all three")
    later = [shares[0], sum(shares[1:]), sum(shares[2:]), shares[3]]
    return {"seconds": total, **dict(zip(names, (part / total for part in later), strict=True))}


def draw(spans: Sequence[Span], path: Path) -> None:
    """Draw when each engine works, as a picture; nothing without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(12, 2.6), layout="constrained")
    axes = figure.subplots()
    engines = ("h2d", "compute", "d2h")
    colours = {"h2d": "tab:blue", "fft": "tab:orange", "twiddle": "tab:red",
               "product": "tab:purple", "transpose": "tab:brown", "d2h": "tab:green"}
    first = min(span.start for span in spans)
    for operation, colour in colours.items():
        found = [span for span in spans if span.operation == operation]
        for row, engine in enumerate(engines):
            bars = [
                (1e3 * (s.start - first), 1e3 * (s.end - s.start))
                for s in found if s.engine == engine
            ]
            if bars:
                axes.broken_barh(bars, (row - 0.4, 0.8), color=colour, label=operation)
    axes.set_yticks(range(3), engines)
    axes.set_xlabel("milliseconds")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), loc="upper right", ncols=len(unique))
    figure.savefig(path, dpi=110)

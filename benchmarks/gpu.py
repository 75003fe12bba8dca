"""Data in host memory on a GPU: the bus, rounds, whole transforms, hybrid.

Data is larger than the device memory that may be used; an allocation holds the rest. *Of the bus*
is the time that all crossings need at the two-way speed of the bus over the seconds taken. A part
is one of `PARTS`; ``ci/gpu-session`` runs them in commands of at most ten minutes.
"""

import contextlib
import itertools
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import psutil

from benchmarks import core, operators
from benchmarks.problems import GIB, MIB, Problem, alternate, graph_of, plan_of, settings, worst
from benchmarks.rows import (
    ROUNDS,
    GpuData,
    device_held,
    even_shape,
    fill_memory,
    measured_on_gpu,
    power_of_two,
)
from dask_bigfft import plan, report, signal
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.cupy_gpu import CupyGPU


def cupy() -> Any:
    import cupy

    return cupy


def gpus() -> str:
    """Return number and name of the GPUs; exit without any."""
    try:
        properties = cupy().cuda.runtime.getDeviceProperties(0)
        count = cupy().cuda.runtime.getDeviceCount()
    except Exception as error:  # no CuPy, or no GPU
        raise SystemExit(f"no GPU: {error}") from None
    return f"{count} x {properties['name'].decode()}"


@dataclass
class Bench:
    """Arguments, results, sizes and the speed of the bus, which all parts share.

    Attributes
    ----------
    args : Namespace
        Arguments of the program.
    results : Results
        Rows so far.
    duplex : float
        Bytes per second of the bus both ways together, 0 before it is measured.
    up, down : float
        Bytes per second of the bus to the GPU alone and to the host alone.
    """

    args: Any
    results: core.Results
    duplex: float = 0.0
    up: float = 0.0
    down: float = 0.0

    def size(self, nbytes: float) -> int:
        """Return a size as the scale makes it, a power of two."""
        return power_of_two(nbytes * self.args.scale)

    @property
    def budget(self) -> int:
        return self.size(2 * GIB)

    def add(
        self,
        section: str,
        name: str,
        nbytes: int,
        y: Any,
        times: list[float],
        check: dict[str, Any],
    ) -> None:
        """Add a row with its part of the bus, given the lazy array that was computed."""
        seconds = statistics.median(times)
        run = report(y).runs[0]
        crossings = round(run.passes, 2)
        of_bus = None
        if self.duplex:
            of_bus = crossings * nbytes / self.duplex / seconds
        self.results.add(
            section,
            name,
            rounds=run.plan.notation,
            gib=nbytes / GIB,
            crossings=crossings,
            seconds=seconds,
            of_bus=of_bus,
            **core.outcome(check),
            n=len(times),
        )


#: Copies of a turn that measures the bus.
COPIES = 8

#: Directions of `cudaMemcpyAsync`.
HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2


def bus(bench: Bench) -> None:
    """Measure copies between pinned memory and the GPU, one way and both ways."""
    import cupyx

    cp = cupy()
    size = bench.size(GIB)
    host_source = cupyx.empty_pinned(size, np.uint8)
    host_target = cupyx.empty_pinned(size, np.uint8)
    device_memory = cp.cuda.Memory(2 * size)
    upload = cp.cuda.Stream(non_blocking=True)
    download = cp.cuda.Stream(non_blocking=True)
    memcpy = cp.cuda.runtime.memcpyAsync

    def copy(to_device: bool, to_host: bool) -> None:
        for _ in range(COPIES):
            if to_device:
                source = host_source.ctypes.data
                memcpy(device_memory.ptr, source, size, HOST_TO_DEVICE, upload.ptr)
            if to_host:
                target = host_target.ctypes.data
                memcpy(target, device_memory.ptr + size, size, DEVICE_TO_HOST, download.ptr)
        cp.cuda.runtime.deviceSynchronize()

    works = {
        "to the GPU": partial(copy, to_device=True, to_host=False),
        "to the host": partial(copy, to_device=False, to_host=True),
        "both ways": partial(copy, to_device=True, to_host=True),
    }
    works["both ways"]()
    speeds = {
        name: COPIES * size / statistics.median(times)
        for name, times in alternate(works, bench.args.repeat).items()
    }
    for name, speed in speeds.items():
        bench.results.add("bus", name, gb_per_second=speed / 1e9)
    bench.up = speeds["to the GPU"]
    bench.down = speeds["to the host"]
    bench.duplex = speeds["both ways"]


# --- rounds and whole transforms --------------------------------------------------------------


def rounds(bench: Bench, kind: str = "pinned", nbytes: float = 16 * GIB) -> None:
    """Measure each kind of round on blocks in their own memory."""
    for block in (4 * GIB, 256 * MIB):
        data = GpuData.of(bench.size(nbytes), bench.size(block), kind == "pinned", bench.budget)
        dtypes = ("c16", "c8") if kind == "pinned" else ("c16",)
        for name, dtype in itertools.product(ROUNDS, dtypes):
            label = f"{name}, {dtype}, {block // MIB} MiB, {kind}"
            if not bench.results.lacks("rounds", label):
                continue
            problem = data.round(name, dtype)
            with dask.config.set(settings(**{"pin-arrays": kind != "ring"})):
                times, check, y = measured_on_gpu(
                    data,
                    problem,
                    bench.args.repeat,
                    overwrite_x=True,
                )
            bench.add("rounds", label, data.nbytes, y, times, check)


#: Number of dimensions and dtype of the arrays of 16 GiB.
ALL_ARRAYS = ((1, "c16"), (1, "c8"), (2, "c16"), (3, "c16"), (2, "c8"), (3, "c8"))

#: Bytes in all and of a block, and the arrays of this size. "X" has rows larger than the GPU.
WHOLE = (
    (16 * GIB, 4 * GIB, (*ALL_ARRAYS, ("X", "c16"))),
    (16 * GIB, 256 * MIB, ALL_ARRAYS),
    (8 * GIB, 256 * MIB, ((2, "c8"),)),
)


def whole_label(ndim: Any, dtype: str, block: int, kind: str, nbytes: int) -> str:
    """Return the name of the row of a whole transform; 16 GiB are not named.

    >>> whole_label(2, "c8", 256 * MIB, "ring", 8 * GIB), whole_label("X", "c16", GIB, "ring", 0)
    ('2D, c8, 256 MiB, ring, 8 GiB', 'X, c16, 1024 MiB, ring, 0 GiB')
    """
    shape = "X" if ndim == "X" else f"{ndim}D"
    label = f"{shape}, {dtype}, {block // MIB} MiB, {kind}"
    if nbytes != 16 * GIB:
        label += f", {nbytes // GIB} GiB"
    return label


def transforms(
    bench: Bench,
    kind: str = "pinned",
    section: str = "transforms",
    overwrite_x: bool = False,
) -> None:
    """Measure whole transforms."""
    only_double = kind != "pinned" or overwrite_x
    for nbytes, block, arrays in WHOLE:
        data = GpuData.of(bench.size(nbytes), bench.size(block), kind == "pinned", bench.budget)
        for ndim, dtype in arrays:
            label = whole_label(ndim, dtype, block, kind, nbytes)
            if dtype == "c8" and only_double:
                continue
            if not bench.results.lacks(section, label):
                continue
            options: dict[str, Any] = {}
            if overwrite_x:
                # In natural order an axis in several blocks needs other memory.
                order = "transposed" if ndim == 1 else "natural"
                options = {"overwrite_x": True, "order": order}
            problem = data.whole(ndim, dtype)
            with dask.config.set(settings(**{"pin-arrays": kind != "ring"})):
                times, check, y = whole(bench, data, problem, options)
            bench.add(section, label, data.nbytes, y, times, check)


def whole(bench: Bench, data: GpuData, problem: Problem, options: dict[str, Any]) -> Any:
    """Return what `measured_on_gpu` does; transposed results are not checked here."""
    if options.get("order") == "transposed":
        fill_memory(data.memory, problem.dtype)
        y = data.graph(problem, norm="ortho", **options)
        with device_held(data.budget):
            y.persist()
            times = alternate({"seconds": y.persist}, bench.args.repeat)["seconds"]
        return times, {"samples": None, "ok": True}, y
    return measured_on_gpu(data, problem, bench.args.repeat, **options)


def unpinned(bench: Bench) -> None:
    """Measure whole transforms of data that is not pinned: pinned in place, and by the ring."""
    for kind in ("pageable", "ring"):
        transforms(bench, kind, "unpinned")


#: Number of dimensions, bytes in all, and number of blocks.
PEAKS = ((3, 32 * MIB, 1), (2, 8 * GIB, 32), (3, 16 * GIB, 8))


def peak(bench: Bench) -> None:
    """Measure memory of transforms in place on the GPU and beside the data."""
    for ndim, nbytes, blocks in PEAKS:
        size = bench.size(nbytes)
        data = GpuData.of(size, size // blocks, True, bench.budget)
        problem = data.whole(ndim, "c16")
        fill_memory(data.memory, "c16")
        truth = data.truth(problem)
        y = data.graph(problem, overwrite_x=True)
        dispatch.release()
        result, free, resident = watched(y.persist)
        forecast = report(y).runs[0].plan.expected.peak_host
        bench.results.add(
            "peak",
            f"{ndim}D, {nbytes // MIB} MiB, {blocks} blocks, in place",
            budget_gib=bench.budget / GIB,
            used_gib=(free[0] - min(free)) / GIB,
            host_mib=(max(resident) - resident[0]) / MIB,
            forecast_mib=(forecast - size) / MIB,
            **core.outcome(truth.check(result)),
        )


def watched(work: Callable[[], Any]) -> tuple[Any, list[int], list[int]]:
    """Return the result of a call, and free device and resident host memory every 2 ms."""
    process = psutil.Process()
    free: list[int] = []
    resident: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not free or not stop.wait(0.002):
            free.append(cupy().cuda.runtime.memGetInfo()[0])
            resident.append(process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    result = work()
    stop.set()
    thread.join()
    return result, free, resident


# --- data that fits ---------------------------------------------------------------------------

#: Number of dimensions, bytes, and number of blocks.
FITS = (
    (1, 4 * GIB, 1),
    (2, 4 * GIB, 1),
    (3, 4 * GIB, 1),
    (2, 256 * MIB, 1),
    *((ndim, 2 * GIB, blocks) for ndim in (1, 2, 3) for blocks in (1, 16)),
)


def fits(bench: Bench) -> None:
    """Measure data that fits the GPU, against plain CuPy."""
    for ndim, nbytes, blocks in FITS:
        label = f"{ndim}D, {nbytes // MIB} MiB"
        if blocks > 1:
            label += f", {blocks} blocks"
        if bench.results.lacks("fits", label):
            bench.results.add("fits", label, **fitting(bench, ndim, bench.size(nbytes), blocks))
            cupy().get_default_memory_pool().free_all_blocks()


def fitting(bench: Bench, ndim: int, nbytes: int, blocks: int) -> dict[str, Any]:
    """Return the seconds of ours and of CuPy for an array that fits the GPU."""
    cp = cupy()
    data = GpuData.of(nbytes, nbytes // blocks, True, 16 * GIB)
    target = GpuData.of(nbytes, nbytes, True, 16 * GIB)
    problem = data.whole(ndim, "c16")
    fill_memory(data.memory, "c16")
    truth = data.truth(problem)
    y = data.graph(problem)
    check = truth.check(y.persist())
    x = data.whole_array(problem)
    out = target.whole_array(problem)
    pageable = np.array(x)
    works: dict[str, Callable[[], Any]] = {
        "ours": y.persist,
        "CuPy, pinned": lambda: cp.fft.fftn(cp.asarray(x)).get(out=out),
        "CuPy, pageable": lambda: cp.fft.fftn(cp.asarray(pageable)).get(),
    }
    alternate(works, 1)
    times = alternate(works, bench.args.repeat)
    peers = [name for name in works if name != "ours"]
    return {
        "n": bench.args.repeat,
        **core.outcome(check),
        "seconds": {name: statistics.median(seconds) for name, seconds in times.items()},
        "peers": {name: core.ratio(times[name], times["ours"]) for name in peers},
    }


# --- filters ----------------------------------------------------------------------------------

#: Number of dimensions, kind of the forward transform, and dtype of arrays of 4 GiB.
FILTERED = ((3, "rfftn", "f4"), (2, "fftn", "c8"), (1, "fftn", "c8"))


def filters(bench: Bench) -> None:
    """Measure filters by one plan and by two, through a part of the GPU and through all of it.

    The floor of data larger than the device memory that may be used is three crossings both ways at
    once. Of data that fits it is one way and then the other, as no result is known before all of
    the input has arrived.
    """
    nbytes = bench.size(4 * GIB)
    for ndim, kind, dtype in FILTERED:
        for budget in (bench.budget, None):
            label = f"{ndim}D, {dtype}, " + ("fits" if budget is None else f"{budget // MIB} MiB")
            if bench.results.lacks("filters", label):
                figures = filtered(bench, GpuFilter(ndim, kind, dtype, budget), nbytes)
                floor = 3 * nbytes / bench.duplex
                if budget is None:
                    floor = nbytes / bench.up + nbytes / bench.down
                of_floor = floor / figures["one plan"]
                bench.results.add("filters", label, **figures, floor=floor, of_floor=of_floor)
    for budget in (bench.budget, None):
        where = "fits" if budget is None else f"{budget // MIB} MiB"
        label = f"3D, f4, kernel of {KERNEL}^3, {where}"
        if bench.results.lacks("convolutions", label):
            figures = convolved(bench, GpuFilter(3, "rfftn", "f4", budget), nbytes)
            bench.results.add("convolutions", label, **figures)


@dataclass(frozen=True)
class GpuFilter:
    """A filter of data in host memory.

    Attributes
    ----------
    ndim : int
        Number of dimensions.
    kind, dtype : str
        Kind of the forward transform, and data type.
    budget : int or None
        Bytes of the GPU that may be used; None for all.
    """

    ndim: int
    kind: str
    dtype: str
    budget: int | None


def filtered(bench: Bench, array: GpuFilter, nbytes: int) -> dict[str, Any]:
    """Return the seconds of a filter by one plan and by two, in turns, and a check."""
    budget = array.budget
    data = GpuData.of(nbytes, bench.size(256 * MIB), True, budget or 0)
    problem = replace(data.whole(array.ndim, array.dtype), kind=array.kind)
    fill_memory(data.memory, problem.dtype)
    x = data.array(problem.shape, problem.dtype)
    options = {"device": "gpu", "device_memory_limit": budget}
    one_plan = signal.fourier_filter(x, operators.cosines, **options)
    two_plans = operators.two_plans(problem, x, **options)
    whole_array = data.whole_array(problem)
    dispatch.release()  # the next engine sees the memory that is free then
    with device_held(budget) if budget else contextlib.nullcontext():
        checks = [operators.check(whole_array, y.persist()) for y in (one_plan, two_plans)]
        works = {"one plan": one_plan.persist, "two plans": two_plans.persist}
        times = alternate(works, bench.args.repeat)
    return {
        "rounds": report(one_plan).runs[0].plan.notation,
        "crossings": round(report(one_plan).runs[0].passes, 2),
        **{name: statistics.median(seconds) for name, seconds in times.items()},
        "gain": core.ratio(times["two plans"], times["one plan"]),
        **core.outcome(worst(checks)),
    }


#: Length of each axis of the kernel of a convolution.
KERNEL = 65


def convolved(bench: Bench, array: GpuFilter, nbytes: int) -> dict[str, Any]:
    """Return the seconds of a convolution with a small kernel, and a check."""
    data = GpuData.of(nbytes, bench.size(256 * MIB), True, array.budget or 0)
    problem = replace(data.whole(array.ndim, array.dtype), kind=array.kind)
    fill_memory(data.memory, problem.dtype)
    x = data.array(problem.shape, problem.dtype)
    kernel = np.random.default_rng(1).standard_normal((KERNEL,) * array.ndim).astype(problem.dtype)
    y = signal.fftconvolve(x, kernel, "same", device="gpu", device_memory_limit=array.budget)
    whole_array = data.whole_array(problem)
    dispatch.release()  # the next engine sees the memory that is free then
    with device_held(array.budget) if array.budget else contextlib.nullcontext():
        check = check_convolution(whole_array, kernel, y.persist())
        times = alternate({"one plan": y.persist}, bench.args.repeat)
    run = report(y).runs[0]
    return {
        "rounds": run.plan.notation,
        "crossings": round(run.passes, 2),
        "seconds": statistics.median(times["one plan"]),
        **core.outcome(check),
    }


def check_convolution(x: np.ndarray, kernel: np.ndarray, result: Any) -> dict[str, Any]:
    """Compare samples of a convolution in mode "same" with sums by its definition."""
    rng = np.random.default_rng(2)
    half = len(kernel) // 2
    reversed_kernel = kernel[(slice(None, None, -1),) * kernel.ndim].astype("f8")
    errors = []
    for _ in range(operators.SAMPLES):
        place = [int(rng.integers(n)) for n in x.shape]
        near = []
        inside = []
        for index, n in zip(place, x.shape, strict=True):
            first = max(index - half, 0)
            last = min(index + half + 1, n)
            near.append(slice(first, last))
            inside.append(slice(first - index + half, last - index + half))
        expected = np.sum(x[tuple(near)] * reversed_kernel[tuple(inside)])
        cell = tuple(slice(index, index + 1) for index in place)
        value = float(np.asarray(result[cell]).item())
        errors.append(abs(value - float(expected)))
    usual = math.sqrt(kernel.size) * float(np.std(x[:8]))
    tolerance = 64 * float(np.finfo(x.dtype).eps) * usual * math.log2(x.size)
    return {"samples": max(errors), "tolerance": tolerance, "ok": max(errors) <= tolerance}


# --- hybrid -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """An array that CPU threads and the GPU share.

    Attributes
    ----------
    ndim : int
        Number of dimensions.
    dtype : str
        Data type.
    mib, block_mib : int
        MiB in all and of a block.
    row : int
        Length of the rows that alone are transformed, 0 where all axes are.
    """

    ndim: int
    dtype: str
    mib: int
    block_mib: int
    row: int = 0

    @property
    def label(self) -> str:
        """Name of the row."""
        label = f"{self.ndim}D, {self.dtype}, {self.mib} MiB in {self.block_mib} MiB"
        if self.row:
            label += f", rows of {self.row}"
        return label


HYBRID = (
    Shared(2, "c16", mib=16384, block_mib=1024, row=256),
    Shared(2, "c16", mib=16384, block_mib=1024, row=64),
    Shared(2, "c8", mib=16384, block_mib=1024, row=64),
    Shared(2, "c16", mib=8192, block_mib=256, row=256),
    Shared(2, "c16", mib=4096, block_mib=256),
    Shared(3, "c16", mib=4096, block_mib=256),
    Shared(3, "c8", mib=4096, block_mib=256),
    Shared(1, "c16", mib=4096, block_mib=256),
    Shared(3, "c16", mib=8192, block_mib=1024),
)

#: Arrays with a slow bus and half of the threads.
HYBRID_SLOW = (
    Shared(2, "c16", mib=4096, block_mib=256),
    Shared(3, "c16", mib=4096, block_mib=256),
)

#: Bytes per second of a slow bus each way (PCIe 2): a kernel waits after each copy.
SLOW = 6.25e9
WAIT = """extern "C" __global__ void wait(long long ns) {
  long long begun, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < ns);
}"""


def hybrid(bench: Bench) -> None:
    """Measure CPU threads, the GPU and both together in turns; the model decides who takes part."""
    for array in HYBRID:
        together(bench, array, array.label)
    with slow_bus(bench.duplex):
        threads = max(1, bench.args.threads // 2)
        with dask.config.set(num_workers=threads):
            for array in HYBRID_SLOW:
                together(bench, array, f"{array.label}, slow bus")


@contextlib.contextmanager
def slow_bus(duplex: float) -> Iterator[None]:
    """Let copies take as long as on a slow bus, and the profile say so."""
    copy = CupyGPU._copy
    kernel = cupy().RawKernel(WAIT, "wait")
    profile = plan(da.zeros(8), "fft").machine.profile
    devices = tuple(replace(device, h2d=SLOW, d2h=SLOW) for device in profile.devices)

    def slow_copy(self: Any, stream: Any, host: Any, array: Any, direction: int) -> None:
        copy(self, stream, host, array, direction)
        seconds = array.nbytes * max(0.0, 1 / SLOW - 1 / duplex)
        with self._in(stream):
            kernel((1,), (1,), (np.int64(1e9 * seconds),))

    with tempfile.NamedTemporaryFile("w") as file, mock.patch.object(CupyGPU, "_copy", slow_copy):
        print(replace(profile, devices=devices).to_json(), file=file, flush=True)
        with dask.config.set({"bigfft.planner.profile": file.name}):
            yield


def together(bench: Bench, array: Shared, label: str) -> None:
    """Measure CPU threads, the GPU and both together on one array."""
    if not bench.results.lacks("hybrid", label):
        return
    block_nbytes = bench.size(array.block_mib * MIB)
    data = GpuData.of(bench.size(array.mib * MIB), block_nbytes, True, 64 * GIB)
    elements = data.nbytes // np.dtype(array.dtype).itemsize
    if array.row:
        shape: tuple[int, ...] = (elements // array.row, array.row)
        axes: tuple[int, ...] | None = (1,)
    else:
        shape = even_shape(elements, array.ndim)
        axes = None
    problem = Problem("fftn", shape, array.dtype, len(data.memory), axes)
    fill_memory(data.memory, array.dtype)
    truth = data.truth(problem)
    x = data.array(shape, array.dtype)
    devices = ("cpu", "gpu", "hybrid")
    graphs = {device: graph_of(problem, x, device=device) for device in devices}
    plans = {device: plan_of(problem, x, device=device) for device in devices}
    check = worst(truth.check(y.persist()) for y in graphs.values())
    works = {device: y.persist for device, y in graphs.items()}
    times = alternate(works, 2 * bench.args.repeat)
    medians = {device: statistics.median(seconds) for device, seconds in times.items()}
    faster = "cpu" if medians["cpu"] <= medians["gpu"] else "gpu"
    bench.results.add(
        "hybrid",
        label,
        **medians,
        faster=faster,
        n=len(times["hybrid"]),
        gain=core.ratio(times[faster], times["hybrid"]),
        gain_of_gpu=core.ratio(times["gpu"], times["hybrid"]),
        by=plans["hybrid"].device,
        forecast={device: plan.expected.seconds for device, plan in plans.items()},
        **core.outcome(check),
    )


def hand_settings() -> Iterator[dict[str, Any]]:
    """Yield what users choose by hand: tiles of a block, buffers, streams, and the CPU's share."""
    for streams, tiles in itertools.product(("role", "tile"), (4, 8, 16, 32, 64)):
        yield {"gpu.tiles": tiles, "gpu.streams": streams}
    for streams, buffers in itertools.product(("role", "tile"), (1, 2, 3, 4)):
        yield {"gpu.buffers": buffers, "gpu.streams": streams}
    for tenths in range(0, 11, 2):
        yield {"hybrid.cpu-share": tenths / 10}


def by_hand(bench: Bench) -> None:
    """Measure settings that are made by hand."""
    data = GpuData.of(bench.size(4 * GIB), bench.size(GIB), True, bench.budget)
    problem = data.whole(2, "c16")
    for chosen in hand_settings():
        label = ", ".join(f"{name} {value}" for name, value in chosen.items())
        if not bench.results.lacks("by_hand", label):
            continue
        device = "hybrid" if "hybrid.cpu-share" in chosen else "gpu"
        with dask.config.set({f"bigfft.{name}": value for name, value in chosen.items()}):
            times, check, y = measured_on_gpu(data, problem, 3, device=device)
        bench.add("by_hand", label, data.nbytes, y, times, check)


def ring(bench: Bench) -> None:
    """Measure rounds of data that is not pinned, through the ring of pinned buffers."""
    rounds(bench, "ring")


def in_place(bench: Bench) -> None:
    """Measure whole transforms that overwrite their input."""
    transforms(bench, "pinned", "in_place", overwrite_x=True)


PARTS: dict[str, Callable[[Bench], None]] = {
    "bus": bus,
    "rounds": rounds,
    "ring": ring,
    "transforms": transforms,
    "unpinned": unpinned,
    "in_place": in_place,
    "fits": fits,
    "peak": peak,
    "filters": filters,
    "hybrid": hybrid,
    "by_hand": by_hand,
}


def main(argv: Sequence[str]) -> int:
    args = core.arguments("gpu", __doc__, repeat=3, budget=540.0).parse_args(argv)
    results = core.Results(args, "gpu", gpu=gpus())
    bench = Bench(args, results)
    started = time.monotonic()
    chosen = core.chosen(PARTS, args.only)
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        bus(bench)
        for name in chosen:
            if name != "bus" and not results.over:
                PARTS[name](bench)
                print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return int(not results.ok)

"""Data in host memory on a GPU: the bus, rounds, whole transforms, hybrid.

Data is larger than the device memory that may be used; an allocation holds the rest. *Of the bus*
is the time that all crossings need at the two-way speed of the bus over the seconds taken. A part
is one of `PARTS`; ``ci/gpu-session`` runs them in commands of at most ten minutes.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import psutil

from benchmarks import core
from benchmarks.problems import GIB, MIB, Problem, alternate, graph_of, plan_of, settings, worst
from benchmarks.rows import ROUNDS, GpuData, device_held, even_shape, fill_memory, measured_on_gpu
from dask_bigfft import plan, report
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


class Bench:
    """What the parts share: arguments, results, sizes and the speed of the bus."""

    def __init__(self, args: Any, results: core.Results) -> None:
        self.args = args
        self.results = results
        self.duplex = 0.0

    def size(self, nbytes: float) -> int:
        """Return a size as the scale makes it, a power of two."""
        return 1 << (max(1 << 16, int(nbytes * self.args.scale)).bit_length() - 1)

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
        bus = crossings * nbytes / self.duplex / seconds if self.duplex else None
        self.results.add(
            section,
            name,
            rounds=run.plan.notation,
            gib=nbytes / GIB,
            crossings=crossings,
            seconds=seconds,
            of_bus=bus,
            **core.outcome(check),
            n=len(times),
        )


def bus(bench: Bench) -> None:
    """Measure copies between pinned memory and the GPU, one way and both ways."""
    cp = cupy()
    size = bench.size(GIB)
    import cupyx

    hosts = [cupyx.empty_pinned(size, np.uint8) for _ in range(2)]
    card = cp.cuda.Memory(2 * size)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def copy(there: bool, back: bool) -> None:
        for _ in range(8):
            if there:
                cp.cuda.runtime.memcpyAsync(card.ptr, hosts[0].ctypes.data, size, 1, streams[0].ptr)
            if back:
                cp.cuda.runtime.memcpyAsync(
                    hosts[1].ctypes.data, card.ptr + size, size, 2, streams[1].ptr
                )
        cp.cuda.runtime.deviceSynchronize()

    ways = {"to the GPU": (True, False), "to the host": (False, True), "both ways": (True, True)}
    copy(True, True)
    works = {name: lambda pair=pair: copy(*pair) for name, pair in ways.items()}
    for name, times in alternate(works, bench.args.repeat).items():
        bench.duplex = 8 * size / statistics.median(times)
        bench.results.add("bus", name, gb_per_second=bench.duplex / 1e9)


# --- rounds and whole transforms --------------------------------------------------------------


def rounds(bench: Bench, kind: str = "pinned", nbytes: float = 16 * GIB) -> None:
    """Measure each kind of round on blocks in their own memory."""
    for block in (4 * GIB, 256 * MIB):
        data = GpuData.of(bench.size(nbytes), bench.size(block), kind == "pinned", bench.budget)
        for name, *_ in ROUNDS:
            for dtype in ("c16", "c8") if kind == "pinned" else ("c16",):
                label = f"{name}, {dtype}, {block // MIB} MiB, {kind}"
                if not bench.results.lacks("rounds", label):
                    continue
                with dask.config.set(settings(**{"pin-arrays": kind != "ring"})):
                    times, check, y = measured_on_gpu(
                        data, data.round(name, dtype), bench.args.repeat, overwrite_x=True
                    )
                bench.add("rounds", label, data.nbytes, y, times, check)


#: Number of dimensions and dtype of the arrays of 16 GiB.
EACH = (1, "c16"), (1, "c8"), (2, "c16"), (3, "c16"), (2, "c8"), (3, "c8")

#: Bytes in all and of a block, and the arrays of this size. "X" has rows larger than the GPU.
WHOLE = (
    (16 * GIB, 4 * GIB, (*EACH, ("X", "c16"))),
    (16 * GIB, 256 * MIB, EACH),
    (8 * GIB, 256 * MIB, ((2, "c8"),)),
)


def transforms(
    bench: Bench, kind: str = "pinned", section: str = "transforms", **options: Any
) -> None:
    """Measure whole transforms."""
    for nbytes, block, chosen in WHOLE:
        data = GpuData.of(bench.size(nbytes), bench.size(block), kind == "pinned", bench.budget)
        for ndim, dtype in chosen:
            label = f"{ndim}{'D' * (ndim != 'X')}, {dtype}, {block // MIB} MiB, {kind}"
            label += f", {nbytes // GIB} GiB" * (nbytes != 16 * GIB)
            skip = dtype == "c8" and (kind != "pinned" or options)
            if skip or not bench.results.lacks(section, label):
                continue
            problem = data.whole(ndim, dtype)
            # In natural order an axis in several blocks needs other memory.
            options |= {"order": "transposed" if ndim == 1 else "natural"} if options else {}
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
PEAKS = (3, 32 * MIB, 1), (2, 8 * GIB, 32), (3, 16 * GIB, 8)


def peak(bench: Bench) -> None:
    """Measure memory of transforms in place on the GPU and beside the data, every 2 ms."""
    memory = cupy().cuda.runtime.memGetInfo
    process = psutil.Process()
    for ndim, nbytes, blocks in PEAKS:
        size = bench.size(nbytes)
        seen = list[tuple[int, int]]()
        stop = threading.Event()
        data = GpuData.of(size, size // blocks, True, bench.budget)
        problem = data.whole(ndim, "c16")
        fill_memory(data.memory, "c16")
        truth = data.truth(problem)
        y = data.graph(problem, overwrite_x=True)
        dispatch.release()

        def look(seen: Any = seen, stop: Any = stop) -> None:
            while not seen or not stop.wait(0.002):
                seen.append((memory()[0], process.memory_info().rss))

        look_on = threading.Thread(target=look)
        look_on.start()
        done = y.persist()
        stop.set()
        look_on.join()
        free, held = zip(*seen, strict=True)
        bench.results.add(
            "peak",
            f"{ndim}D, {nbytes // MIB} MiB, {blocks} blocks, in place",
            budget_gib=bench.budget / GIB,
            used_gib=(free[0] - min(free)) / GIB,
            host_mib=(max(held) - held[0]) / MIB,
            forecast_mib=(report(y).runs[0].plan.expected.peak_host - size) / MIB,
            **core.outcome(truth.check(done)),
        )


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
    cp = cupy()
    for ndim, nbytes, blocks in FITS:
        label = f"{ndim}D, {nbytes // MIB} MiB" + f", {blocks} blocks" * (blocks > 1)
        if not bench.results.lacks("fits", label):
            continue
        size = bench.size(nbytes)
        data = GpuData.of(size, size // blocks, True, 16 * GIB)
        target = GpuData.of(size, size, True, 16 * GIB)
        problem = data.whole(ndim, "c16")
        fill_memory(data.memory, "c16")
        truth = data.truth(problem)
        y = data.graph(problem)
        check = truth.check(y.persist())
        x = data.whole_array(problem)
        out = target.whole_array(problem)
        pageable = np.array(x)

        def by_cupy(source: np.ndarray, result: np.ndarray | None) -> Any:
            card = cp.fft.fftn(cp.asarray(source))
            return card.get() if result is None else card.get(out=result)

        works: dict[str, Callable[[], Any]] = {
            "ours": y.persist,
            "CuPy, pinned": lambda x=x, out=out: by_cupy(x, out),
            "CuPy, pageable": lambda x=pageable: by_cupy(x, None),
        }
        alternate(works, 1)
        times = alternate(works, bench.args.repeat)
        bench.results.add(
            "fits",
            label,
            n=bench.args.repeat,
            **core.outcome(check),
            seconds={name: statistics.median(t) for name, t in times.items()},
            peers={
                name: core.ratio(t, times["ours"]) for name, t in times.items() if name != "ours"
            },
        )
        cp.get_default_memory_pool().free_all_blocks()


# --- hybrid -----------------------------------------------------------------------------------

#: Number of dimensions, dtype, MiB in all and of a block, transformed axes, last length.
HYBRID = (
    (2, "c16", 16384, 1024, (1,), 256),
    (2, "c16", 16384, 1024, (1,), 64),
    (2, "c8", 16384, 1024, (1,), 64),
    (2, "c16", 8192, 256, (1,), 256),
    (2, "c16", 4096, 256, None, 0),
    (3, "c16", 4096, 256, None, 0),
    (3, "c8", 4096, 256, None, 0),
    (1, "c16", 4096, 256, None, 0),
    (3, "c16", 8192, 1024, None, 0),
)


#: Bytes per second of a slow bus each way (PCIe 2): a kernel waits after each copy.
SLOW = 6.25e9
WAIT = """extern "C" __global__ void wait(long long ns) {
  long long begun, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < ns);
}"""


def hybrid(bench: Bench) -> None:
    """Measure CPU threads, the GPU and both together in turns; the model decides who takes part.

    The last rows have half of the threads, and a bus that is slowed down.
    """
    for row in HYBRID:
        together(bench, row)
    copy = CupyGPU._copy
    kernel = cupy().RawKernel(WAIT, "wait")
    profile = plan(da.zeros(8), "fft").machine.profile
    slow = tuple(replace(one, h2d=SLOW, d2h=SLOW) for one in profile.devices)

    def slowed(self: Any, stream: Any, host: Any, array: Any, direction: int) -> None:
        copy(self, stream, host, array, direction)
        seconds = array.nbytes * max(0.0, 1 / SLOW - 1 / bench.duplex)
        with self._in(stream):
            kernel((1,), (1,), (np.int64(1e9 * seconds),))

    with tempfile.NamedTemporaryFile("w") as file, mock.patch.object(CupyGPU, "_copy", slowed):
        print(replace(profile, devices=slow).to_json(), file=file, flush=True)
        threads = max(1, bench.args.threads // 2)
        with dask.config.set({"num_workers": threads, "bigfft.planner.profile": file.name}):
            for ndim in (2, 3):
                together(bench, (ndim, "c16", 4096, 256, None, 0), ", slow bus")


def together(bench: Bench, row: tuple[Any, ...], more: str = "") -> None:
    """Measure CPU threads, the GPU and both together on one array."""
    ndim, dtype, mib, block_mib, axes, length = row
    label = f"{ndim}D, {dtype}, {mib} MiB in {block_mib} MiB"
    label += f", rows of {length}" * bool(axes) + more
    if not bench.results.lacks("hybrid", label):
        return
    nbytes = bench.size(mib * MIB)
    block = bench.size(block_mib * MIB)
    data = GpuData.of(nbytes, block, True, 64 * GIB)
    elements = data.nbytes // np.dtype(dtype).itemsize
    shape = (elements // length, length) if length else even_shape(elements, ndim)
    problem = Problem("fftn", shape, dtype, len(data.memory), axes)
    fill_memory(data.memory, dtype)
    truth = data.truth(problem)
    x = data.array(shape, dtype)
    graphs = {place: graph_of(problem, x, device=place) for place in ("cpu", "gpu", "hybrid")}
    check = worst(truth.check(y.persist()) for y in graphs.values())
    times = alternate({place: y.persist for place, y in graphs.items()}, 2 * bench.args.repeat)
    medians = {place: statistics.median(found) for place, found in times.items()}
    faster = min(("cpu", "gpu"), key=medians.__getitem__)
    plans = {place: plan_of(problem, x, device=place) for place in graphs}
    bench.results.add(
        "hybrid",
        label,
        **medians,
        faster=faster,
        n=len(times["hybrid"]),
        gain=core.ratio(times[faster], times["hybrid"]),
        gain_of_gpu=core.ratio(times["gpu"], times["hybrid"]),
        by=plans["hybrid"].device,
        forecast={place: plan.expected.seconds for place, plan in plans.items()},
        **core.outcome(check),
    )


#: Settings that users choose by hand: tiles of a block, buffers and streams, and the CPU's share R.
SETTINGS: tuple[dict[str, Any], ...] = (
    *({"gpu.tiles": n, "gpu.streams": s} for s in ("role", "tile") for n in (4, 8, 16, 32, 64)),
    *({"gpu.buffers": n, "gpu.streams": s} for s in ("role", "tile") for n in (1, 2, 3, 4)),
    *({"hybrid.cpu-share": share / 10} for share in range(0, 11, 2)),
)


def by_hand(bench: Bench) -> None:
    """Measure settings that are made by hand."""
    data = GpuData.of(bench.size(4 * GIB), bench.size(GIB), True, bench.budget)
    for chosen in SETTINGS:
        label = ", ".join(f"{name} {value}" for name, value in chosen.items())
        if bench.results.lacks("by_hand", label):
            device = "hybrid" if "hybrid.cpu-share" in chosen else "gpu"
            with dask.config.set({f"bigfft.{name}": value for name, value in chosen.items()}):
                found = measured_on_gpu(data, data.whole(2, "c16"), 3, device=device)
            bench.add("by_hand", label, data.nbytes, found[2], found[0], found[1])


PARTS: dict[str, Callable[[Bench], None]] = {
    "bus": bus,
    "rounds": rounds,
    "ring": lambda bench: rounds(bench, "ring"),  # not pinned: through the ring of pinned buffers
    "transforms": transforms,
    "unpinned": unpinned,
    "in_place": lambda bench: transforms(bench, "pinned", "in_place", overwrite_x=True),
    "fits": fits,
    "peak": peak,
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

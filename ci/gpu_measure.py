"""Measures what a CUDA card and its bus can do: a line for each fact, and all of them as JSON.

    python ci/gpu_measure.py --out facts.json [--seconds 300] [--gib 8]

Needs NumPy and CuPy only. The facts are what `dask_bigfft.planner.profile` is made from: copy
rates one way and both ways, what a pinned page costs, how wide rows have to be for strided copies,
rates of cuFFT along either axis, and how the three-stream pipeline does with 1 to 4 buffers.
Every section stands alone: one that fails says so, and the others are kept. The file is written
anew after each fact, so that a run that is cut short has told what it knew.

No managed memory; nothing of the card's settings is touched.
"""

import argparse
import json
import math
import mmap
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
REPEATS = 5

GATHER = r"""
extern "C" __global__ void gather(const uint4* from, uint4* to, long long rows, int width,
                                  long long pitch) {
    // Rows of `width` times 16 bytes, `pitch` times 16 bytes apart, put side by side.
    const long long all = rows * width;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        const long long row = i / width;
        to[i] = from[row * pitch + (i - row * width)];
    }
}
"""

SCALE = r"""
extern "C" __global__ void scale(double2* x, long long count, double factor) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        double2 v = x[i];
        v.x *= factor; v.y *= factor;
        x[i] = v;
    }
}
"""


@dataclass
class Facts:
    """What has been found out, kept in a file as it grows."""

    path: Path | None
    seconds: float
    started: float = field(default_factory=time.perf_counter)
    found: list[dict[str, Any]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, section: str, name: str, value: Any, unit: str, **how: Any) -> None:
        """Print a fact and keep it."""
        self.found.append(dict(section=section, name=name, value=value, unit=unit, **how))
        shown = f"{value:.4g}" if isinstance(value, float) else value
        said = ", ".join(f"{key}={item}" for key, item in how.items())
        print(f"{self.used:7.1f} s  {section:9} {name}: {shown} {unit}  {said}", flush=True)
        self.write()

    def write(self) -> None:
        if self.path is not None:
            text = json.dumps({"machine": self.machine, "facts": self.found}, indent=1)
            self.path.write_text(text + "\n", encoding="utf-8")

    @property
    def used(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.used


# --- host memory: nothing here needs a card -------------------------------------------------


def shares(nbytes: int, step: int) -> Iterator[tuple[int, int]]:
    """Begin and length of the parts of at most `step` that make up `nbytes`.

    >>> list(shares(5, 2))
    [(0, 2), (2, 2), (4, 1)]
    """
    for begin in range(0, nbytes, step):
        yield begin, min(step, nbytes - begin)


def huge_map(nbytes: int) -> np.ndarray:
    """Fresh anonymous pages, huge ones where the system has them."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def touched(memory: np.ndarray, threads: int) -> float:
    """Seconds to write one byte of each page, `threads` at a time."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda s: memory[s[0] : s[0] + s[1] : 4096].fill(1),
                      shares(memory.nbytes, 64 * MIB)))
    return time.perf_counter() - began


def copied(target: np.ndarray, source: np.ndarray, threads: int) -> float:
    """Seconds to copy rows, `threads` at a time."""
    step = max(1, -(-len(source) // (4 * threads)))
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda s: np.copyto(target[s[0] : s[0] + s[1]], source[s[0] : s[0] + s[1]]),
                      shares(len(source), step)))
    return time.perf_counter() - began


def describe_host() -> dict[str, Any]:
    """What the host is."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model, "cores": os.cpu_count(), "memory_now_gib": round(pages / GIB, 1),
        "system": platform.platform(), "python": platform.python_version(),
        "numpy": np.__version__,
    }


def rates_of_rows(memory_bytes: int) -> list[tuple[int, int, int]]:
    """Width, pitch and number of rows of the strided copies to be timed.

    The pitch is 1 MiB unless that leaves too few rows to be worth timing.

    >>> rates_of_rows(8 << 30)[0], rates_of_rows(8 << 30)[-1]
    ((64, 32768, 262144), (262144, 1048576, 1024))
    """
    found = []
    for width in (64, 256, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB):
        rows = min(256 * MIB // width, 1 << 18)
        pitch = min(MIB, max(width, memory_bytes // rows))
        found.append((width, pitch, rows))
    return found


# --- the card -------------------------------------------------------------------------------


class Card:
    """What the sections share: CuPy, streams, kernels and two registered blocks of host memory."""

    def __init__(self, facts: Facts, nbytes: int) -> None:
        import cupy

        self.cupy, self.facts, self.nbytes = cupy, facts, nbytes
        self.rt = cupy.cuda.runtime
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        self.pinned: list[np.ndarray] = []
        self.gather = cupy.RawKernel(GATHER, "gather")
        self.scale = cupy.RawKernel(SCALE, "scale")

    def seconds(self, work: Callable[[Any], Any], stream: Any = None, repeats: int = REPEATS
                ) -> float:
        """Median time on a stream by events, after one run to warm up."""
        stream = stream or self.streams[0]
        times = []
        for _ in range(repeats + 1):
            begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            with stream:
                begin.record(stream)
                work(stream)
                end.record(stream)
            end.synchronize()
            times.append(self.cupy.cuda.get_elapsed_time(begin, end) / 1e3)
        return statistics.median(times[1:])

    def wall(self, work: Callable[[], Any], repeats: int = REPEATS) -> float:
        """Median time by the host's clock, everything on the card done, after a warm-up."""
        times = []
        for _ in range(repeats + 1):
            self.rt.deviceSynchronize()
            began = time.perf_counter()
            work()
            self.rt.deviceSynchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[Any]:
        """Bytes on the card, given back at the end."""
        block = self.cupy.cuda.alloc(nbytes)
        try:
            yield block
        finally:
            self.rt.deviceSynchronize()
            del block
            self.cupy.get_default_memory_pool().free_all_blocks()


def identity(card: Card) -> None:
    rt, facts = card.rt, card.facts
    properties = rt.getDeviceProperties(0)
    free, total = rt.memGetInfo()
    import cupy
    from cupy.cuda import cufft

    facts.machine.update(
        gpu=properties["name"].decode(), engines=properties["asyncEngineCount"],
        multiprocessors=properties["multiProcessorCount"], cupy=cupy.__version__,
        driver=rt.driverGetVersion(), runtime=rt.runtimeGetVersion(), cufft=cufft.getVersion(),
        pci_bus=rt.deviceGetPCIBusId(0),
    )
    facts.add("identity", "name", facts.machine["gpu"], "")
    facts.add("identity", "copy engines", properties["asyncEngineCount"], "count")
    facts.add("identity", "memory", total, "bytes", free=free)
    facts.add("identity", "cufft", cufft.getVersion(), "version")


def pinning(card: Card) -> None:
    rt, facts = card.rt, card.facts
    for gib in (1, 4):
        began = time.perf_counter()
        address = rt.hostAlloc(gib * GIB, 1)
        middle = time.perf_counter()
        rt.freeHost(address)
        facts.add("pinning", f"hostAlloc {gib} GiB", middle - began, "s",
                  free=round(time.perf_counter() - middle, 3))
    for name in "AB":
        memory = huge_map(card.nbytes)
        seconds = touched(memory, 8)
        facts.add("pinning", f"touch {name}", seconds, "s", gib=card.nbytes / GIB, threads=8)
        step = {"A": GIB, "B": card.nbytes}[name]
        facts.add("pinning", f"register {name}", registered(rt, memory, step), "s",
                  gib=card.nbytes / GIB, step_gib=step / GIB)
        if name == "A":
            facts.add("pinning", "2D copy across registered ranges", across(card, memory), "")
            began = time.perf_counter()
            for begin, _ in shares(memory.nbytes, step):
                rt.hostUnregister(memory.ctypes.data + begin)
            facts.add("pinning", "unregister A", time.perf_counter() - began, "s")
            facts.add("pinning", "register A again", registered(rt, memory, memory.nbytes), "s",
                      gib=card.nbytes / GIB, step_gib=card.nbytes / GIB)
        card.pinned.append(memory)


def registered(rt: Any, memory: np.ndarray, step: int) -> float:
    """Seconds to pin memory, `step` bytes at a time."""
    began = time.perf_counter()
    for begin, length in shares(memory.nbytes, step):
        rt.hostRegister(memory.ctypes.data + begin, length, 1)
    return time.perf_counter() - began


def across(card: Card, memory: np.ndarray) -> str:
    """Whether a strided copy may reach over the border of two registered ranges."""
    with card.memory(MIB) as block:
        try:
            card.rt.memcpy2DAsync(block.ptr, 4096, memory.ctypes.data + GIB - 64 * MIB, MIB, 4096,
                                  128, TO_DEVICE, card.streams[0].ptr)
            card.rt.deviceSynchronize()
        except card.rt.CUDARuntimeError as error:
            return f"refused: {error}"
    return "works"


def copies(card: Card) -> None:
    rt, facts, (a, b) = card.rt, card.facts, card.pinned
    with card.memory(2 * GIB) as block:
        for mib in (1, 16, 256, 1024):
            size = mib * MIB
            for name, kind in (("H2D", TO_DEVICE), ("D2H", TO_HOST)):
                to, source = (block.ptr, a.ctypes.data)[:: 1 if kind == TO_DEVICE else -1]
                seconds = card.seconds(
                    lambda s, to=to, source=source, size=size, kind=kind:
                    rt.memcpyAsync(to, source, size, kind, s.ptr))
                facts.add("copies", name, size / seconds / 1e9, "GB/s", mib=mib)
        times = 8

        def both() -> None:
            for _ in range(times):
                rt.memcpyAsync(block.ptr, a.ctypes.data, GIB, TO_DEVICE, card.streams[0].ptr)
                rt.memcpyAsync(b.ctypes.data, block.ptr + GIB, GIB, TO_HOST, card.streams[1].ptr)

        seconds = card.wall(both, 3)
        facts.add("copies", "duplex, each way", times * GIB / seconds / 1e9, "GB/s")
        seconds = card.seconds(lambda s: rt.memcpyAsync(block.ptr + GIB, block.ptr, GIB,
                                                        ON_DEVICE, s.ptr))
        facts.add("copies", "D2D, read and written", 2 * GIB / seconds / 1e9, "GB/s")
        pageable = np.ones(256 * MIB, np.uint8)
        seconds = card.wall(lambda: rt.memcpy(block.ptr, pageable.ctypes.data, pageable.nbytes,
                                              TO_DEVICE), 3)
        facts.add("copies", "pageable H2D", pageable.nbytes / seconds / 1e9, "GB/s", mib=256)
        seconds = card.wall(lambda: rt.memcpy(pageable.ctypes.data, block.ptr, pageable.nbytes,
                                              TO_HOST), 3)
        facts.add("copies", "pageable D2H", pageable.nbytes / seconds / 1e9, "GB/s", mib=256)
        count = 2000
        began = time.perf_counter()
        for _ in range(count):
            rt.memcpyAsync(block.ptr, a.ctypes.data, 4096, TO_DEVICE, card.streams[0].ptr)
        issued = time.perf_counter() - began
        rt.deviceSynchronize()
        facts.add("copies", "one memcpyAsync call", issued / count * 1e6, "us", nbytes=4096)


def strided(card: Card) -> None:
    rt, facts, (a, b) = card.rt, card.facts, card.pinned
    with card.memory(512 * MIB) as block:
        for width, pitch, rows in rates_of_rows(card.nbytes):
            size, how = width * rows, {"width": width, "pitch": pitch, "rows": rows}
            seconds = card.seconds(
                lambda s, w=width, p=pitch, r=rows: rt.memcpy2DAsync(
                    block.ptr, w, a.ctypes.data, p, w, r, TO_DEVICE, s.ptr), repeats=3)
            facts.add("strided", "H2D 2D", size / seconds / 1e9, "GB/s", **how)
            seconds = card.seconds(
                lambda s, w=width, p=pitch, r=rows: rt.memcpy2DAsync(
                    a.ctypes.data, p, block.ptr, w, w, r, TO_HOST, s.ptr), repeats=3)
            facts.add("strided", "D2H 2D", size / seconds / 1e9, "GB/s", **how)

            def both(w: int = width, p: int = pitch, r: int = rows) -> None:
                half = 256 * MIB
                for _ in range(4):
                    rt.memcpy2DAsync(block.ptr, w, a.ctypes.data, p, w, r, TO_DEVICE,
                                     card.streams[0].ptr)
                    rt.memcpy2DAsync(b.ctypes.data, p, block.ptr + half, w, w, r, TO_HOST,
                                     card.streams[1].ptr)

            facts.add("strided", "duplex 2D, each way", 4 * size / card.wall(both, 2) / 1e9,
                      "GB/s", **how)
            if width <= 4 * KIB:
                arguments = (np.uint64(a.ctypes.data), np.uint64(block.ptr), np.int64(rows),
                             np.int32(width // 16), np.int64(pitch // 16))
                seconds = card.seconds(
                    lambda s, args=arguments: card.gather((528,), (256,), args), repeats=3)
                facts.add("strided", "gather by kernel", size / seconds / 1e9, "GB/s", **how)


def ring(card: Card) -> None:
    """What host threads copy between a pageable block and a pinned ring."""
    facts = card.facts
    pageable = huge_map(4 * GIB)
    touched(pageable, 8)
    pinned = card.pinned[0][: 4 * GIB]
    for width in (4 * KIB, 64 * KIB):
        # Columns of a block whose rows are 1 MiB: what one piece of a first round reads.
        rows = 256 * MIB // width
        source = pageable.reshape(-1, MIB)[:, :width] if rows <= 4096 else \
            pageable.reshape(rows, -1)[:, :width]
        target = pinned[: source.size].reshape(source.shape)
        for threads in (1, 2, 4, 8, 12, 16):
            times = [copied(target, source, threads) for _ in range(4)]
            back = [copied(source, target, threads) for _ in range(4)]
            facts.add("ring", "gather", source.size / statistics.median(times[1:]) / 1e9, "GB/s",
                      width=width, threads=threads,
                      scatter=round(source.size / statistics.median(back[1:]) / 1e9, 2))
    for threads in (1, 4, 8, 16):
        seconds = min(copied(pinned.reshape(4096, -1), pageable.reshape(4096, -1), threads)
                      for _ in range(2))
        facts.add("ring", "copy", pageable.nbytes / seconds / 1e9, "GB/s", threads=threads)


def rates(card: Card) -> None:
    cupy, facts = card.cupy, card.facts
    from cupy.cuda import cufft

    total = 64 * MIB  # complex128 elements: 1 GiB
    with card.memory(GIB) as block:
        x = cupy.ndarray((total,), "D", memptr=block)
        x.fill(1e-3)
        for n in (2**12, 2**15, 2**17, 3**5 * 2**9, 5**7):
            m = total // n
            for name, layout in (("strided", (m, 1)), ("contiguous", (1, n))):
                began = time.perf_counter()
                plan = cufft.PlanNd((n,), (n,), *layout, (n,), *layout, cufft.CUFFT_Z2Z, m, "C",
                                    0, None)
                made = time.perf_counter() - began
                x.fill(1e-9)
                seconds = card.seconds(lambda s, p=plan: p.fft(x, x, cufft.CUFFT_FORWARD),
                                       repeats=3)
                facts.add("cufft", name, 16 * n * m / seconds / 1e9, "GB/s", n=n, batch=m,
                          gflops=round(5e-9 * n * m * math.log2(n) / seconds),
                          plan_seconds=round(made, 4), work_bytes=_work_nbytes(plan))
                del plan
        args = (np.uint64(block.ptr), np.int64(total), np.float64(1.0))
        seconds = card.seconds(lambda s: card.scale((1056,), (256,), args))
        facts.add("cufft", "a pass of a kernel", 2 * GIB / seconds / 1e9, "GB/s")


def _work_nbytes(plan: Any) -> int:
    area = plan.work_area
    return 0 if area is None else int(area.mem.size)


def shared_area(card: Card) -> None:
    cupy, facts, n = card.cupy, card.facts, 4096
    from cupy.cuda import cufft

    with card.memory(2 * GIB) as work:
        def lend(size: int) -> Any:
            if size > 2 * GIB:
                raise MemoryError(size)
            return work

        with cupy.cuda.using_allocator(lend):
            plans = [cufft.PlanNd((n,), (n,), *layout, (n,), *layout, cufft.CUFFT_Z2Z, n, "C", 0,
                                  None) for layout in ((n, 1), (1, n))]
        rng = np.random.default_rng(1)
        host = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
        x = cupy.asarray(host)
        for direction in (cufft.CUFFT_FORWARD, cufft.CUFFT_INVERSE):
            for plan in plans:
                plan.fft(x, x, direction)
        error = float(abs(x.get() / n**2 - host).max())
        facts.add("shared", "error of two plans in one work area", error, "", n=n)


def wide(card: Card) -> None:
    cupy, facts = card.cupy, card.facts
    from cupy.cuda import cufft

    free = card.rt.memGetInfo()[0]
    batch = 2**28
    if free < 72 * GIB:
        batch = 2**27 + 2**20  # above 2**31 elements still
    began = time.perf_counter()
    plan = cufft.XtPlanNd((16,), (16,), 1, 16, "F", (16,), 1, 16, "F", batch, "F", order="C",
                          last_axis=0, last_size=None)
    x = cupy.ones(16 * batch, "F")
    plan.fft(x, x, cufft.CUFFT_FORWARD)
    got = [complex(x[i]) for i in (0, -16, 1, -15)]
    facts.add("wide", "XtPlanNd of more than 2**31 elements", got == [16, 16, 0, 0], "right",
              elements=16 * batch, got=str(got), work_bytes=_work_nbytes(plan),
              seconds=round(time.perf_counter() - began, 2))
    del x, plan
    cupy.get_default_memory_pool().free_all_blocks()
    n = 3 * 2**30  # one transform that is longer than 2**31
    plan = cufft.XtPlanNd((n,), (n,), 1, n, "F", (n,), 1, n, "F", 1, "F", order="C", last_axis=0,
                          last_size=None)
    x = cupy.zeros(n, "F")
    x[1] = 1
    plan.fft(x, x, cufft.CUFFT_FORWARD)
    places = [0, 1, n // 3, n - 1]
    got = [complex(x[i]) for i in places]
    want = [complex(np.exp(-2j * np.pi * i / n)) for i in places]
    error = max(abs(g - w) for g, w in zip(got, want, strict=True))
    facts.add("wide", "one transform longer than 2**31", error, "largest error", n=n,
              work_bytes=_work_nbytes(plan))


def pipeline(card: Card) -> None:
    """Columns of a block, in place, through k buffers: the loop that a round is made of."""
    facts, memory = card.facts, card.pinned[0]
    for gib, mib in ((card.nbytes // GIB, 256), (4, 256), (4, 64), (0.25, 16), (0.25, 64)):
        block = memory[: int(gib * GIB)]
        for k in (1, 2, 3, 4):
            columns = _Columns(card, block, mib * MIB, k)
            seconds = columns.run()
            facts.add("pipeline", "each way", block.nbytes / seconds / 1e9, "GB/s", gib=gib,
                      piece_mib=mib, buffers=k, row_bytes=columns.width * 16)
            columns.close()


class _Columns:
    """A complex128 block of n rows; a piece is `width` columns; FFTs run along the rows' index."""

    def __init__(self, card: Card, block: np.ndarray, piece: int, k: int) -> None:
        cupy = card.cupy
        from cupy.cuda import cufft

        self.card, self.cufft, self.k, self.piece = card, cufft, k, piece
        self.n = 1 << (int(math.log2(block.nbytes // 16)) // 2)
        self.host = block.reshape(self.n, -1)
        self.width = piece // (16 * self.n)
        self.count = self.host.shape[1] // (16 * self.width)
        self.block = cupy.cuda.alloc(k * piece + piece)

        def lend(size: int) -> Any:
            if size > piece:
                raise MemoryError(size)
            return self.block + k * piece

        with cupy.cuda.using_allocator(lend):
            w, n = self.width, self.n
            self.plan = cufft.PlanNd((n,), (n,), w, 1, (n,), w, 1, cufft.CUFFT_Z2Z, w, "C", 0,
                                     None)
        self.arrays = [cupy.ndarray((piece // 16,), "D", memptr=self.block + i * piece)
                       for i in range(k)]
        self.events = [[cupy.cuda.Event(disable_timing=True) for _ in range(3)]
                       for _ in range(k)]

    def run(self) -> float:
        return self.card.wall(self._once, 2)

    def _once(self) -> None:
        rt, (h2d, compute, d2h) = self.card.rt, self.card.streams
        row, pitch = self.width * 16, self.host.strides[0]
        for i in range(self.count):
            array, (free, loaded, done) = self.arrays[i % self.k], self.events[i % self.k]
            address = self.host.ctypes.data + i * row
            h2d.wait_event(free)
            rt.memcpy2DAsync(array.data.ptr, row, address, pitch, row, self.n, TO_DEVICE, h2d.ptr)
            loaded.record(h2d)
            compute.wait_event(loaded)
            with compute:
                self.plan.fft(array, array, self.cufft.CUFFT_FORWARD)
                args = (np.uint64(array.data.ptr), np.int64(array.size),
                        np.float64(1 / self.n))
                self.card.scale((1056,), (256,), args)
            done.record(compute)
            d2h.wait_event(done)
            rt.memcpy2DAsync(address, pitch, array.data.ptr, row, row, self.n, TO_HOST, d2h.ptr)
            free.record(d2h)

    def close(self) -> None:
        del self.plan, self.arrays, self.block
        self.card.cupy.get_default_memory_pool().free_all_blocks()


SECTIONS = (identity, pinning, copies, strided, pipeline, ring, rates, shared_area, wide)


def main() -> int:
    """Run the sections in order of importance; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file for the facts, as JSON")
    parser.add_argument("--seconds", type=float, default=300, help="start no section after")
    parser.add_argument("--gib", type=int, default=8, help="size of the two pinned blocks")
    parser.add_argument("--only", nargs="*", help="names of sections")
    options = parser.parse_args()
    facts = Facts(options.out, options.seconds)
    facts.machine = describe_host()
    try:
        card = Card(facts, options.gib * GIB)
    except ImportError as error:
        print(f"gpu_measure: CuPy is missing: {error}", file=sys.stderr)
        return 1
    failed = 0
    for section in SECTIONS:
        wanted = options.only is None or section.__name__ in (*options.only, "pinning")
        if not wanted or facts.left <= 0:
            continue
        try:
            section(card)
        except Exception as error:  # every other section is still worth having
            failed += 1
            traceback.print_exc()
            facts.add(section.__name__, "failed", repr(error)[:300], "")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

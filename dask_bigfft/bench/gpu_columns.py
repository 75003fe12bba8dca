"""FFTs along columns on a card, again and again, with one thing changed each time.

Between copies of narrow rows kernels cost two to three times what they take, and between copies of
wide rows nothing. What each change tells:

- *nothing computed* is what copies and events allow; *no scaling* and *FFTs left out* have a kernel
  less.
- *kernels that wait* take as long as the real ones and touch no memory: they cost nothing, so it is
  not their place in the order.
- *traffic elsewhere* reads and writes as many bytes of other memory, and costs as much as the real
  kernels; *traffic past the cache* does the same and asks the cache to keep nothing, and *traffic
  in the cache* goes over 8 MiB as long: both cost nothing. So it is what kernels drive out of the
  cache, which copies of narrow rows need (probably where the host's pages are: one look for each
  row).
- *columns where they lie* has FFTs run over the whole piece, as was done before: that drives
  everything out.
- *4 slots*, *streams by piece* and *small pieces*: if they help, a slot is free too late.
- *along rows*, in pieces as large, is the control.

Where the time goes is seen in three of them: for each engine the part of the time in which it
works, and how long a call of it takes.

Imports `gpu_bench`, `gpu_rounds`, `kernels` and `devices`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from dask_bigfft.bench.gpu_bench import GIB, MIB, Array, Bench, best, held
from dask_bigfft.bench.gpu_data import even_shape
from dask_bigfft.bench.gpu_rounds import inside, one_round
from dask_bigfft.devices import cuda_kernels
from dask_bigfft.devices.cuda import cupy, current
from dask_bigfft.devices.cupy_device import CupyDevice, Span
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Job
from dask_bigfft.kernels import gpu_plans
from dask_bigfft.planner.cost import admitted
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings

__all__ = ["VARIANTS", "Variant", "columns", "engines"]

Instead = Literal["nothing", "no fft", "waiting", "traffic", "passing", "cached", "where they lie"]

#: Takes some nanoseconds on one thread, and touches no memory.
WAIT = r"""
extern "C" __global__ void wait(unsigned long long ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < ns);
}
"""

#: Reads and writes `count` numbers in all of the first `among` in memory; how, is filled in.
TRAFFIC = r"""
extern "C" __global__ void traffic(double2* x, unsigned long long count, unsigned long long among) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
         i < count; i += step) {
        double2* at = x + i % among;
        double2 v = LOAD;
        v.x = -v.x;
        STORE;
    }
}
"""

#: Loads and stores that the cache keeps, and such that it does not.
KEPT, PASSING = ("*at", "*at = v"), ("__ldcs(at)", "__stcs(at, v)")

#: Bytes that surely stay in the cache.
CACHED_NBYTES = 8 * MIB


@dataclass(frozen=True)
class Variant:
    """A round with something changed.

    Parameters
    ----------
    name : str
        What is changed.
    instead : str, optional
        What takes the place of the kernels.
    settings : DeviceSettings
        Of the pipeline.
    norm : str
        With "backward" nothing is scaled.
    axis : int
        Along which FFTs are.
    traced : bool
        Whether the engines are looked at, too.
    """

    name: str
    instead: Instead | None = None
    settings: DeviceSettings = AS_IS
    norm: Literal["ortho", "backward"] = "ortho"
    axis: int = 0
    traced: bool = False


VARIANTS = (
    Variant("as it is", traced=True),
    Variant("nothing computed", "nothing", traced=True),
    Variant("no scaling", norm="backward"),
    Variant("kernels that wait", "waiting"),
    Variant("traffic elsewhere", "traffic"),
    Variant("traffic past the cache", "passing"),
    Variant("traffic in the cache", "cached"),
    Variant("columns where they lie", "where they lie"),
    Variant("FFTs left out", "no fft"),
    Variant("4 slots", settings=DeviceSettings(buffers=4)),
    Variant("streams by piece", settings=DeviceSettings(streams="piece")),
    Variant("small pieces", settings=DeviceSettings(passes=32)),
    Variant("along rows", axis=1, traced=True),
)


def columns(bench: Bench, variants: Sequence[Variant] = VARIANTS) -> None:
    """All variants, on blocks of 4 GiB and of 256 MiB."""
    for nbytes in (4 * GIB // bench.scale, 256 * MIB // bench.scale):
        memory = bench.blocks(nbytes)
        shape = even_shape(memory[0].nbytes // 16, 2)
        blocks = [found.view("c16").reshape(1, *shape) for found in memory]
        pieces, taken = 0, {"fft": 0.0, "twiddle": 0.0}
        for variant in variants:
            if bench.results.over:
                return
            if variant.axis == 1 and pieces:
                variant = replace(variant, settings=DeviceSettings(passes=pieces))
            job = replace(
                one_round(shape, (variant.axis,), "c16", variant.norm), settings=variant.settings)
            numbers = _seconds(bench, job, blocks, variant.instead, taken)
            pieces = pieces or numbers["pieces"]
            if variant.traced:
                spans = _traced(bench, job, blocks, variant.instead)
                if variant.instead is None and variant.axis == 0:
                    for name in taken:
                        times = [s.end - s.start for s in spans if s.operation == name]
                        taken[name] = sum(times) / max(1, len(times))
                numbers |= engines(spans)
            bench.results.add("columns", variant=variant.name, block_mib=memory[0].nbytes / MIB,
                              **numbers)


def _seconds(
    bench: Bench, job: Job, blocks: list[Array], instead: Instead | None, taken: dict[str, float]
) -> dict[str, Any]:
    engine = Engine(CupyDevice(0), bench.budget)
    try:
        with ExitStack() as stack:
            if instead == "where they lie":
                stack.enter_context(untiled())
            found = engine.pieces(job)[0]
            stack.enter_context(
                replaced(engine.device, instead, taken, found.schedule.slot_nbytes))
            seconds = _run(bench, engine, job, blocks, 2)
    finally:
        engine.close()
    (crossing,) = found.schedule.crossings
    moved = sum(block.nbytes for block in blocks)
    return {
        "seconds": seconds, "fraction": moved / bench.duplex / seconds, "pieces": found.pieces,
        "slots": found.schedule.slots, "reads": crossing.reads,
    }


def _traced(
    bench: Bench, job: Job, blocks: list[Array], instead: Instead | None
) -> list[Span]:
    """What the engines did in one run, after one that does not count."""
    device = CupyDevice(0, traced=True)
    engine = Engine(device, bench.budget)
    try:
        with replaced(device, instead, {}, 0):
            _run(bench, engine, job, blocks, 0)
            device.spans()
            _run(bench, engine, job, blocks, 0)
            return device.spans()
    finally:
        engine.close()


def _run(
    bench: Bench, engine: Engine, job: Job, blocks: list[Array], repeats: int
) -> float:
    threads = admitted(blocks[0].nbytes)
    with held(bench.budget), ThreadPoolExecutor(threads) as pool:
        return best(lambda: list(pool.map(partial(inside, engine, job), blocks)), repeats)


@contextmanager
def replaced(
    device: Any, instead: Instead | None, taken: dict[str, float], nbytes: int
) -> Iterator[None]:
    """Let a device do something else than its kernels.

    Parameters
    ----------
    device : Device
        The device.
    instead : str or None
        What it does.
    taken : dict
        Seconds that an FFT and a multiplication take, for "waiting".
    nbytes : int
        Of a piece, for "traffic".
    """
    other = None
    if instead in ("nothing", "no fft"):
        device.fft = _nothing
    if instead == "nothing":
        device.multiply = _nothing
    if instead == "waiting":
        wait = cupy().RawKernel(WAIT, "wait")
        device.fft, device.multiply = (
            _launching(wait, 1, (np.uint64(int(1e9 * taken[name])),)) for name in ("fft", "twiddle")
        )
    if instead in ("traffic", "passing", "cached"):
        other = cupy().cuda.Memory(nbytes)
        among = min(nbytes, CACHED_NBYTES) if instead == "cached" else nbytes
        arguments = np.uint64(other.ptr), np.uint64(nbytes // 16), np.uint64(among // 16)
        kernel = cupy().RawKernel(traffic(*PASSING if instead == "passing" else KEPT), "traffic")
        device.fft = device.multiply = _launching(kernel, cuda_kernels.GRID, arguments)
    try:
        yield
    finally:
        device.synchronize_all()
        for name in ("fft", "multiply"):
            vars(device).pop(name, None)
        del other


@contextmanager
def untiled() -> Iterator[None]:
    """Let FFTs along columns run over whole pieces; plans are to be made inside, too."""
    tiled = gpu_plans.TILED_NBYTES
    gpu_plans.TILED_NBYTES = 1 << 62
    try:
        yield
    finally:
        gpu_plans.TILED_NBYTES = tiled


def traffic(load: str, store: str) -> str:
    """Source of a kernel that reads and writes memory in some way."""
    return TRAFFIC.replace("LOAD", load).replace("STORE", store)


def _launching(kernel: Any, grid: int, arguments: tuple[Any, ...]) -> Callable[..., None]:
    """What puts a kernel into a stream, whatever it is asked for."""

    def launch(stream: Any, *_: object) -> None:
        with current(cupy().cuda.Device(0)), stream.raw:
            kernel((grid,), (256 if grid > 1 else 1,), arguments)

    return launch


def _nothing(*_: object) -> None:
    """What is left out."""


def engines(spans: Sequence[Span]) -> dict[str, float]:
    """For each engine the part of the time in which it works, and milliseconds of one of its calls.

    >>> a, b = Span("h2d", "h2d", 0.0, 1.0, 1), Span("h2d", "h2d", 3.0, 4.0, 1)
    >>> engines([a, b])
    {'h2d busy': 0.5, 'h2d ms': 1000.0}
    """
    if not spans:
        return {}
    total = max(s.end for s in spans) - min(s.start for s in spans)
    found: dict[str, float] = {}
    for name in dict.fromkeys(span.engine for span in spans):
        times = [span.end - span.start for span in spans if span.engine == name]
        found |= {f"{name} busy": sum(times) / total, f"{name} ms": 1e3 * sum(times) / len(times)}
    return found

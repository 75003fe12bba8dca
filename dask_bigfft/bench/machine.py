"""What the benchmark runs on, and how fast that is: the inputs of the roofline.

Nothing here names the machine or its user. Speeds are measured in the process and at the time in
which they are used, since they drift. Imports `kernels`, `memory`, psutil and NumPy.
"""

import contextlib
import importlib
import importlib.metadata
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from dask_bigfft.kernels.libraries import available, get_library
from dask_bigfft.memory.pages import Buffer, touch

__all__ = [
    "copy",
    "describe",
    "fft_rate",
    "first_touch_rate",
    "load",
    "peak_bytes",
    "reset_peak",
]

Array = npt.NDArray[Any]

_DISTRIBUTIONS = (
    "dask-bigfft", "dask", "distributed", "numpy", "scipy", "numba", "ducc0", "mkl_fft", "mkl",
    "pyFFTW",
)
_SYSTEM_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Sizes of the first core's caches, such as ``{"L2": "1024K"}``; data and unified ones."""
    found = {}
    for folder in sorted(_SYSTEM_CPU.glob("index*")):
        if _read(folder / "type") != "Instruction":
            found[f"L{_read(folder / 'level')}"] = _read(folder / "size")
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in psutil.getloadavg()]


def describe() -> dict[str, Any]:
    """Return what machine and software this is."""
    fftw: Any = None
    if "pyfftw" in available():
        get_library("pyfftw")  # by the one door: it must not be MKL
        fftw = sys.modules["pyfftw"]
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else None,
        "caches": _caches(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "system": f"{platform.system()} {platform.release()}",
        "huge_pages": _read(_HUGE_PAGES),
        "python": platform.python_version(),
        "versions": _versions(),
        "fftw": None if fftw is None else f"{fftw.fftw_version} ({fftw.fftw_cc[:32]})",
    }


# --- speeds ---------------------------------------------------------------------------------


def _together(tasks: list[Callable[[], object]]) -> float:
    """Seconds until all of the tasks, each in a thread of its own, are done."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(lambda _: None, tasks))  # the threads exist before the clock starts
        started = time.perf_counter()
        for done in [pool.submit(task) for task in tasks]:
            done.result()
        return time.perf_counter() - started


def copy(source: Array, target: Array, threads: int) -> tuple[int, float]:
    """Return how many bytes were copied between two arrays by some threads, and the seconds."""
    nbytes = min(source.nbytes, target.nbytes)
    a = source.reshape(-1).view(np.uint8)[:nbytes]
    b = target.reshape(-1).view(np.uint8)[:nbytes]
    cuts = [nbytes * i // threads for i in range(threads + 1)]
    tasks: list[Callable[[], object]] = [
        lambda s=slice(low, high): np.copyto(b[s], a[s])  # type: ignore[misc]
        for low, high in itertools.pairwise(cuts)
    ]
    return nbytes, _together(tasks)


#: Points and rows of what `fft_rate` transforms, half a MiB of double precision, and its windows.
_LENGTH, _ROWS, _WINDOWS, _WINDOW_SECONDS = 1024, 32, 5, 0.02


def fft_rate(kernel: str, dtype: str, threads: int) -> float:
    """Return the flops per second of a library on rows in cache, all threads together.

    The best of a few short windows: a bound on what can be reached has no use for the time that
    others took of the machine.
    """
    library = get_library(kernel)
    flops = 5.0 * _LENGTH * np.log2(_LENGTH) * _ROWS
    rates = [[0.0] * _WINDOWS for _ in range(threads)]

    def work(thread: int) -> None:
        tile = np.zeros((_ROWS, _LENGTH), dtype)
        library.c2c(tile, (1,), -1)
        for window in range(_WINDOWS):
            count, started, taken = 0, time.perf_counter(), 0.0
            while taken < _WINDOW_SECONDS:
                library.c2c(tile, (1,), -1)
                count, taken = count + 1, time.perf_counter() - started
            rates[thread][window] = count * flops / taken

    tasks: list[Callable[[], object]] = [
        lambda thread=i: work(thread) for i in range(threads)  # type: ignore[misc]
    ]
    _together(tasks)
    return float(sum(map(max, rates)))


def first_touch_rate(nbytes: int, threads: int) -> float:
    """Return the bytes per second at which fresh pages come, the way the arena asks for them."""
    buffers = [Buffer(1 << 25) for _ in range(max(1, nbytes >> 25))]
    started = time.perf_counter()
    touch(buffers, threads)
    return (len(buffers) << 25) / (time.perf_counter() - started)


# --- memory ---------------------------------------------------------------------------------


def reset_peak() -> int:
    """Start `peak_bytes` afresh where the system lets us; return the memory that is in use."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Return the most memory that the process had in use since `reset_peak`.

    Unlike ``ru_maxrss``, Linux' VmHWM knows nothing of the process that started this one.
    """
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    resource: Any = importlib.import_module("resource")
    scale = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale

"""First calls of fresh processes, from NumPy to NumPy: ours against `scipy.fft` and `da.fft`.

Contestants take turns. Each process makes one call, and its time includes the exit of the process,
but neither imports, which have rows of their own, nor the check of the result. Just before the call
the process touches as much memory and frees it: in a virtual machine the first touch of memory that
the host does not back yet is 30 times slower than any later one, and hosts take free memory back
after seconds. With an empty cache no loop of ours is compiled yet. Each result is checked by its
energy, and the first one of each contestant of a row by two of its frequencies, too.

The environment counts: where xarray is installed, `dask.array` imports it and pandas, and the exit
takes 0.1 s longer. An environment of ``pip install . ducc0`` runs this program as well.

By default a few shapes of each size run, in five turns, and inputs above 256 MiB in three.
``--only '*'`` runs all shapes, from one to three dimensions, real and complex.

``--gpu`` runs the rows of a machine with a GPU and torch instead, from pageable memory to pageable
memory, and the time in which a process writes to as many bytes as the result has.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import core

#: Sizes of inputs in MiB.
SIZES = (1, 64, 256, 512, 1024)

#: Rows that run by default, and the one that also runs with an empty cache.
SELECTED = (
    "1 MiB, 3D, real",
    "64 MiB, 1D, real",
    "64 MiB, 2D, complex",
    "64 MiB, 3D, real",
    "64 MiB, 3D, complex",
    "256 MiB, 1D, real",
    "256 MiB, 3D, real",
    "256 MiB, 3D, complex",
    "512 MiB, 2D, real",
    "512 MiB, 3D, complex",
    "1024 MiB, 3D, real",
)
WITH_EMPTY_CACHE = "64 MiB, 3D, real"

#: Libraries that ours is compared with on CPUs.
OTHERS = ("scipy.fft", "da.fft")

#: Size of an input in MiB above which ``--repeat-large`` says how many turns there are.
LARGE_MIB = 256

#: Function by the character of its row: of real and of complex input.
FUNCTIONS = {"real": "rfftn", "complex": "fftn"}

#: Memory that is touched before each call, in units of the input: more than any of the calls uses.
TOUCHED = 5

#: Bytes of a part of memory that one of several threads fills.
PART_NBYTES = 1 << 26

#: Largest relative error of single precision.
TOLERANCE = 1e-4

EMPTY = ", empty cache"

#: Sizes of inputs in MiB for a GPU.
GPU_SIZES = (128, 4096)

#: Rows that run by default with a GPU.
GPU_SELECTED = ("128 MiB, 3D, real", "4096 MiB, 3D, real")

#: Contestants of rows for a GPU: ours, torch, and writing to the result's memory.
ON_GPU = "gpu"
TORCH = "torch"
TOUCHING = "touching"

#: Modules whose imports, and exits of processes after them, are compared.
IMPORTS = ("scipy.fft", "dask.array", "dask_bigfft.fft")


def shape_of(mib: float, ndim: int, itemsize: int) -> tuple[int, ...]:
    """Return the shape of an input, whose axes are as equal as powers of two can be.

    >>> shape_of(64, 3, 4)
    (256, 256, 256)
    """
    bits = int(mib * 2**20 / itemsize).bit_length() - 1
    return tuple(1 << (bits + axis) // ndim for axis in range(ndim))


def touch_before(input_nbytes: int) -> None:
    """Write in several threads to as much memory as a call may use, and free it."""
    nbytes = TOUCHED * input_nbytes
    memory = np.empty(nbytes, np.uint8)
    parts = [memory[low : low + PART_NBYTES] for low in range(0, nbytes, PART_NBYTES)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda part: np.copyto(part, 1), parts))


def input_of(shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return random numbers in single precision."""
    dtype = np.dtype("f4" if kind == "real" else "c8")
    values = np.empty(shape, dtype)
    numbers = values.view("f4").reshape(-1)

    def fill(low: int) -> None:
        """Fill a part."""
        part = numbers[low : low + PART_NBYTES // 4]
        np.random.default_rng(low).random(out=part, dtype=np.float32)
        part -= 0.5

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, numbers.size, PART_NBYTES // 4)))
    return values


def first_call(
    contestant: str,
    kind: str,
    shape: Sequence[int],
    threads: int,
    cache: str,
    by_frequencies: bool,
) -> dict[str, Any]:
    """Return the time of the first call of this process, and when the process began to exit."""
    if cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
    x = input_of(tuple(shape), kind)
    name = FUNCTIONS[kind]
    library = contestant.removesuffix(EMPTY)
    if library == "scipy.fft":
        import scipy.fft

        touch_before(x.nbytes)
        started = time.monotonic()
        y = getattr(scipy.fft, name)(x, workers=threads)
    elif library == TORCH:
        import torch

        touch_before(x.nbytes)
        started = time.monotonic()
        spectrum = getattr(torch.fft, name)(torch.from_numpy(x).cuda())
        y = spectrum.cpu().numpy()
    elif library == ON_GPU:
        from dask_bigfft import fft

        touch_before(x.nbytes)
        started = time.monotonic()
        lazy = getattr(fft, name)(x, device="gpu")
        y = lazy.compute(scheduler="threads", num_workers=threads)
    else:
        import dask.array as da

        from dask_bigfft import fft

        touch_before(x.nbytes)
        started = time.monotonic()
        if library == "da.fft":
            lazy = getattr(da.fft, name)(da.from_array(x, chunks=-1, name=False))
        else:
            lazy = getattr(fft, name)(x, kernel=library)
        y = lazy.compute(scheduler="threads", num_workers=threads)
    seconds = time.monotonic() - started
    error = error_of(x, y, by_frequencies)
    return {"seconds": seconds, "samples": error, "exits": time.monotonic()}


def touching(kind: str, shape: Sequence[int]) -> dict[str, Any]:
    """Return the time in which this process writes to as many bytes as a result has."""
    *others, last = shape
    length = last // 2 + 1 if kind == "real" else last
    touch_before(int(np.prod(shape)) * 8)
    started = time.monotonic()
    np.empty((*others, length), "c8").fill(1)
    seconds = time.monotonic() - started
    return {"seconds": seconds, "samples": 0.0, "exits": time.monotonic()}


def error_of(x: np.ndarray, y: np.ndarray, by_frequencies: bool = True) -> float:
    """Return the largest relative error of the energy and of two frequencies of a spectrum."""
    energy = squares(x)
    spectrum = squares(y)
    if x.dtype.kind == "f":  # the other half, but for the first and perhaps the last frequency
        n = x.shape[-1]
        spectrum = 2 * spectrum - squares(y[..., 0])
        if n % 2 == 0:
            spectrum -= squares(y[..., -1])
    errors = [abs(spectrum / x.size - energy) / energy]
    for part in (3, 5) if by_frequencies else ():
        place = tuple(n // part for n in y.shape)
        errors.append(abs(y[place] - frequency(x, place)) / np.sqrt(energy))
    return float(max(errors))


def squares(values: np.ndarray) -> float:
    """Return the sum of squared magnitudes, in double precision, part by part."""
    values = np.atleast_1d(values)
    parts = list(values)
    if values.ndim == 1:
        parts = np.array_split(values, -(-len(values) // 1024))
    return float(sum(np.vdot(part, part).real for part in parts))


def frequency(x: np.ndarray, place: Sequence[int]) -> complex:
    """Return one value of the spectrum of an array, from its definition, in double precision."""
    total = x
    for k in reversed(place):
        n = total.shape[-1]
        phases = np.exp(-2j * np.pi * (k * np.arange(n) % n) / n)
        total = np.array([row @ phases for row in total]) if total.ndim > 1 else total @ phases
    return complex(total)


def imported(module: str) -> dict[str, Any]:
    """Return the seconds of an import, and when the process began to exit."""
    started = time.monotonic()
    __import__(module)
    ended = time.monotonic()
    return {"seconds": ended - started, "exits": ended}


def run_import(module: str) -> dict[str, Any]:
    """Return the seconds of an import in a new process, and of the exit of that process."""
    answer = core.call(imported, module)
    return {"seconds": answer["seconds"], "exit": time.monotonic() - answer["exits"]}


def run(
    contestant: str,
    row: tuple[str, tuple[int, ...]],
    threads: int,
    checked: set[str],
) -> dict[str, Any]:
    """Return what a new process of a contestant says, with the time of its exit.

    Frequencies are checked unless the contestant is in `checked`, to which it is added.
    """
    kind, shape = row
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        cache = folder if contestant.endswith(EMPTY) else ""
        if contestant == TOUCHING:
            answer = core.call(touching, kind, shape)
        else:
            answer = core.call(
                first_call,
                contestant,
                kind,
                shape,
                threads,
                cache,
                contestant not in checked,
            )
        ended = time.monotonic()
    checked.add(contestant)
    if "seconds" in answer:
        answer["seconds"] += ended - answer["exits"]
    return answer


def row_of(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians by contestant, and those of ours above the medians of the others."""
    for contestant, answers in runs.items():
        for answer in answers:
            if "error" in answer:
                return {"failed": f"{contestant}: {answer['error']}"}
    first = {
        contestant: core.median([answer["seconds"] for answer in answers])
        for contestant, answers in runs.items()
    }
    error = max(answer["samples"] for answers in runs.values() for answer in answers)
    return {
        "first": first,
        "n": min(map(len, runs.values())),
        "error": error,
        "ok": error < TOLERANCE,
    }


def rows_of(sizes: Sequence[int], scale: float) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return kind and shape of the inputs of all rows, by their names."""
    rows = {}
    for mib in sizes:
        for ndim in (1, 2, 3):
            for kind in FUNCTIONS:
                itemsize = 4 if kind == "real" else 8
                shape = shape_of(max(mib * scale, 1 / 64), ndim, itemsize)
                rows[f"{mib} MiB, {ndim}D, {kind}"] = (kind, shape)
    return rows


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("first_calls", __doc__, repeat=5, only=None)
    parser.add_argument("--gpu", action="store_true", help="rows of a GPU, against torch")
    parser.add_argument(
        "--repeat-large",
        type=int,
        default=3,
        metavar="N",
        help=f"at most so many turns of inputs above {LARGE_MIB} MiB",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        choices=OTHERS,
        default=OTHERS,
        metavar="NAME",
        help="other libraries on CPUs (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    results = core.Results(args, "first_calls")
    section = "first"
    rows = rows_of(SIZES, args.scale)
    contestants = [*args.kernels, *args.against]
    imports = IMPORTS
    selected: Sequence[str] = (*SELECTED, *IMPORTS)
    if args.gpu:
        section = "gpu"
        rows = rows_of(GPU_SIZES, args.scale)
        contestants = [ON_GPU, TORCH, TOUCHING]
        imports = ()
        selected = GPU_SELECTED
    chosen = core.chosen([*rows, *imports], args.only or selected)
    names = [name for name in chosen if name in rows]
    for name in results.missing(section, names):
        row_contestants = list(contestants)
        if name == WITH_EMPTY_CACHE:
            row_contestants.append(f"{args.kernels[0]}{EMPTY}")
        turns = args.repeat
        if int(name.partition(" ")[0]) > LARGE_MIB:
            turns = min(turns, args.repeat_large)
        call = partial(
            run,
            row=rows[name],
            threads=args.threads,
            checked=set(),
        )
        runs = core.in_turns(row_contestants, turns, call)
        results.add(section, name, **row_of(runs))
    modules = list(results.missing("import", [name for name in chosen if name in IMPORTS]))
    if modules:
        runs = core.in_turns(modules, args.repeat, run_import)
        for module in modules:
            medians = {
                name: core.median([answer[name] for answer in runs[module]])
                for name in ("seconds", "exit")
            }
            results.add("import", module, **medians, n=args.repeat, ok=True)
    return int(not results.ok)

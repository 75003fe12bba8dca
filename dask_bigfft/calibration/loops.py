"""Compiled loops: each is compiled and stored for all types, before a transform needs it.

A program, too: ``python -m dask_bigfft.calibration.loops`` makes every call that needs a loop for
other types. What no file has yet is compiled, which takes some seconds for each loop.
"""

import sys
from collections.abc import Sequence
from itertools import product
from typing import Literal

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft
from dask_bigfft.gpu.copy_threads import CopyPool
from dask_bigfft.gpu.dispatch import device_count
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.kernels.compiled import delete_unused_files, has_llvmlite, start_python
from dask_bigfft.kernels.copies import COMPILED, CopyTable, Segments, compile_at_once, copy_array
from dask_bigfft.kernels.twiddle import chirp_filter, multiply_chirp

#: Dtypes of input whose transforms use compiled loops.
DTYPES = ("f4", "f8", "c8", "c16")

#: Shapes and chunks of transforms: one block, and split axes.
PROBLEMS = (
    ((36,), (36,)),
    ((1 << 12,), (1 << 8,)),
    ((48, 40), (12, 10)),
    ((12, 9, 10), (5, 9, 4)),
)


def store_loops() -> None:
    """Compile all loops that no file has yet, in another process, and wait for it.

    Nothing happens where nothing can be compiled. The process ends before anything is measured, and
    its memory with it.
    """
    if not has_llvmlite():
        return
    options = ["--gpu"] if device_count() else []
    process = start_python("-m", "dask_bigfft.calibration.loops", *options)
    if process is not None:
        process.wait()


def use_copies() -> None:
    """Copy an array between the pairs of dtypes that have loops, and its conjugate.

    Loops are compiled meanwhile only after `compile_at_once`, as in `main`.
    """
    for source_dtype, target_dtype in COMPILED:
        source = np.zeros(1, source_dtype)
        target = np.empty(1, target_dtype)
        copy_array(target, source)
        if source_dtype.kind != "c":
            continue
        segments = Segments(
            counts=np.ones((1, 1), np.int64),
            source_starts=np.zeros(1, np.int64),
            source_strides=np.full((1, 1), source.itemsize),
            target_starts=np.zeros(1, np.int64),
            target_strides=np.full((1, 1), target.itemsize),
            firsts=np.zeros(1, np.int64),
            conjugate=True,
        )
        table = CopyTable(target)
        table.extend([source], np.zeros(1, np.int64), segments)
        table.run()


def use_transforms(
    dtypes: Sequence[str] = DTYPES,
    checks: Sequence[Literal["none", "checksum"]] = ("none", "checksum"),
) -> None:
    """Transform small arrays there and back: of all dtypes, with checks and without, by default."""
    for dtype, (shape, chunks), verify in product(dtypes, PROBLEMS, checks):
        x = da.zeros(shape, dtype=dtype, chunks=chunks)
        functions = (fft.rfftn, fft.irfftn) if dtype.startswith("f") else (fft.fftn, fft.ifftn)
        for function in functions:
            x = function(x, kernel="scipy", device="cpu", verify=verify, memory_limit="1 GiB")
        x.compute()


def use_chirps() -> None:
    """Multiply by the chirps of Bluestein's algorithm, in both precisions, and sum words.

    Loops are compiled meanwhile only after `compile_at_once`, as in `main`.
    """
    places = np.zeros(1, np.int64)
    for dtype in (np.complex64, np.complex128):
        values = np.ones((1, 1, 1), dtype)
        multiply_chirp(
            values,
            places,
            stride=1,
            length=8,
            sign=-1,
            factor=1.0,
        )
        chirp_filter(
            places,
            padded=16,
            length=8,
            sign=1,
            dtype=values.dtype,
        )
    checksum(places)


def use_copy_threads() -> None:
    """Copy an array by the threads that serve GPUs."""
    pool = CopyPool(1)
    pool.copy(np.empty(1), np.zeros(1)).result()
    pool.close()


def main(arguments: Sequence[str]) -> None:
    """Use every loop, compiled at once, and delete files that are not used any more."""
    compile_at_once()
    # Otherwise small arrays are transformed whole, without loops.
    with dask.config.set({"scheduler": "synchronous", "bigfft.planner.small": 0}):
        use_copies()
        use_transforms()
    use_chirps()
    if "--gpu" in arguments:
        use_copy_threads()
    delete_unused_files()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A program that runs a transform from file to file, with a pause before and after.

Its arguments are a folder, and a job: arguments of `dask_bigfft.run`, and of the source.
"""

import dask
import numpy as np
import zarr

import dask_bigfft
from dask_bigfft.kernels.copies import compile_at_once

RNG = np.random.default_rng(1)


def make_source(
    path,
    size,
    chunk,
    inner,
    packed,
    compressors,
):
    """Store random values, packed in integers or not; `inner` are the axes after the first."""
    array = zarr.create_array(
        str(path),
        shape=(size, *inner),
        chunks=(chunk, *inner),
        dtype="i2" if packed else "c16",
        compressors=compressors,
    )
    if packed:
        array.attrs.update(scale_factor=0.5, missing_value=-1)
        values = RNG.integers(0, 9999, (chunk, *inner))
    else:
        values = RNG.standard_normal((chunk, *inner, 2)).view("c16")[..., 0]
    for low in range(0, size, chunk):
        array[low : low + chunk] = values + low


def figures_of(plan):
    """What a plan says of memory, and how it reads and stores."""
    return {
        "peak": plan.expected.peak_host,
        "rows": plan.from_rows,
        "decoded": plan.stored.decoded,
        "local": plan.exchanges[0].local,
        "merges": plan.merges,
        "piece": plan.piece_nbytes,
        "reopened": plan.reopened,
        "block": plan.source.largest * 16,
        "longest": max(max(program.factors) for program in plan.programs),
    }


def of_files(pause, folder, job):
    compile_at_once()
    size = job.pop("size")
    chunk = job.pop("chunk")
    inner = job.pop("inner", [])
    packed = job.pop("packed", False)
    compressors = job.pop("compressors")
    job["compressors"] = job.pop("result", "auto")
    fewer = job.pop("fewer", 8)
    block_size = job.pop("small", 2**16)
    dask.config.set(
        {
            "scheduler": "threads",
            "num_workers": job.pop("threads", 1),
            "bigfft.scratch.directory": folder,
            "bigfft.exchange.carrier": "disk",
        }
    )
    source = folder / "in"
    make_source(
        source,
        size,
        chunk,
        inner,
        packed,
        compressors,
    )
    if "component" in job:
        import h5py

        with h5py.File(folder / "in.h5", "w") as file:
            file[job["component"]] = zarr.open_array(str(source))[...]
        source = folder / "in.h5"
    small_chunk = max(1, chunk >> fewer)
    make_source(
        folder / "small",
        size >> fewer,
        small_chunk,
        inner,
        packed,
        compressors,
    )
    with dask.config.set({"bigfft.scratch.row-size": "4 kiB"}):
        small = job | {"block_size": block_size, "component": None}
        dask_bigfft.run(folder / "small", folder / "out-small", **small)
    pause()
    plan = dask_bigfft.run(source, folder / "out", **job).plan
    pause(figures_of(plan))

"""Transform an array that is larger than the memory it may use, and survive being killed.

A random field is stored as a Zarr array. Then `dask_bigfft.run` transforms it from file to file in
a quarter of its size in memory: between the rounds, blocks go through scratch files. The first run
is killed in the middle, as by a power button; the second one goes on from there. Some frequencies
are compared with sums written out by hand, and the energy with Parseval's theorem.

    python examples/larger_than_memory.py --gib 1
"""

import argparse
import multiprocessing
import shutil
import time
from pathlib import Path

import dask
import numpy as np
from dask.utils import format_bytes
from extras import extra

import dask_bigfft

with extra("zarr"):
    import zarr


def make_field(path, shape, rows):
    """Store normal numbers, slab by slab, and return their energy."""
    field = zarr.create_array(
        path, shape=shape, chunks=(rows, *shape[1:]), dtype="c8", compressors=None
    )
    rng, energy = np.random.default_rng(1), 0.0
    for first in range(0, shape[0], rows):
        height = min(rows, shape[0] - first)
        slab = rng.standard_normal((height, *shape[1:], 2), dtype="f4").view("c8")[..., 0]
        field[first : first + height] = slab
        energy += float(np.sum(np.abs(slab.astype("c16")) ** 2))
    return field, energy


def transform(folder, limit):
    """What the process does that is killed, and the one that goes on."""
    with dask.config.set(scheduler="threads"):
        return dask_bigfft.run(
            folder / "field.zarr",
            folder / "spectrum.zarr",
            "fftn",
            memory_limit=limit,
            block_size=limit // 16,
            scratch=folder / "scratch",
            resume=True,
        )


def kill_in_the_middle(folder, limit):
    """Start a run, kill it once its scratch files are there, and say how many records it left."""
    process = multiprocessing.get_context("spawn").Process(target=transform, args=(folder, limit))
    process.start()
    while process.is_alive() and not list((folder / "scratch").glob("exchange*/done-*.json")):
        time.sleep(0.005)
    process.kill()
    process.join()
    return len(list((folder / "scratch").glob("exchange*/done-*.json")))


def by_hand(field, at, rows):
    """One frequency, as the definition says."""
    nz, ny, nx = field.shape
    x = np.exp(-2j * np.pi * (np.arange(nx) * at[2] % nx) / nx)
    y = np.exp(-2j * np.pi * (np.arange(ny) * at[1] % ny) / ny)
    z = np.exp(-2j * np.pi * (np.arange(nz) * at[0] % nz) / nz)
    slabs = (field[i : i + rows] @ x @ y for i in range(0, nz, rows))
    return sum(np.dot(slab, z[i * rows : (i + 1) * rows]) for i, slab in enumerate(slabs))


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the field (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path("larger_than_memory"))
    args = parser.parse_args()
    edge = max(4, round((args.gib * 2**30 / 8) ** (1 / 3) / 16)) * 16
    shape, rows = (edge, edge, edge), max(1, edge // 64)
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        field, energy = make_field(args.folder / "field.zarr", shape, rows)
        limit = field.nbytes // 4
        print(f"field {shape}, {format_bytes(field.nbytes)}; memory {format_bytes(limit)}")
        records = kill_in_the_middle(args.folder, limit)
        print(
            f"killed with {records} blocks recorded; nothing looks complete: "
            f"{not (args.folder / 'spectrum.zarr').exists()}"
        )
        done = transform(args.folder, limit)
        print(
            f"rounds {done.plan.notation} by way of {done.plan.carrier}, forecast "
            f"{format_bytes(done.plan.expected.peak_host)} of memory, "
            f"{format_bytes(done.plan.expected.scratch)} of scratch files"
        )
        speed = (done.read + done.written) / 1e9 / done.seconds
        print(f"the rest took {done.seconds:.1f} s ({speed:.2f} GB/s)")
        check(field, energy, rows, args.folder / "spectrum.zarr")
    finally:
        shutil.rmtree(args.folder)


def check(field, energy, rows, path):
    """Compare with what is known."""
    spectrum = zarr.open_array(path, mode="r")
    size = np.sqrt(energy)  # of a typical element of the spectrum
    for at in [(0, 0, 0), (1, 2, 3), tuple(n - 5 for n in field.shape)]:
        off = abs(spectrum[at] - by_hand(field, at, rows)) / size
        print(f"frequency {at}: off by {off:.1e}")
        assert off < 1e-5
    found = sum(
        float(np.sum(np.abs(spectrum[:, i : i + 8].astype("c16")) ** 2))
        for i in range(0, field.shape[1], 8)
    )
    print(f"energy: off by {abs(found / field.size / energy - 1):.1e}")
    assert abs(found / field.size / energy - 1) < 1e-5


if __name__ == "__main__":
    main()

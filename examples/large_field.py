"""Clean a field in Zarr of any size in its spectrum: examples/large_field.py

The field is a terrain with white noise and two sets of stripes, as a scanner leaves them, made
chunk by chunk from a seed. It is read from Zarr in chunks along both axes, transformed, freed of
stripes and noise, transformed back and written to Zarr. Then SciPy does the same on the whole array
in memory. As the terrain is known, the distance from the truth is measured too. The default is
small enough to run in seconds; `--gib 2` shows the same on a larger field.
"""

import argparse
import contextlib
import math
import resource
import sys
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import scipy.fft
from dask.diagnostics import ProgressBar
from dask.system import CPU_COUNT
from dask.utils import format_bytes, format_time
from extras import extra

from dask_bigfft import fft

with extra("zarr"):
    import zarr

SEED = 2011
RELIEF = 400.0  # metres
NOISE = 30.0  # metres
STRIPES = 25.0  # metres
WAVELENGTHS = ((25.0, 200.0), (-90.0, 30.0))  # of the stripes, in samples along y and x
SMOOTHING = 6.0  # samples, the standard deviation of the Gaussian
NOTCH = 0.001  # cycles per sample, the standard deviation of the hole for a set of stripes
FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"
WINDOW = (640, 768)  # samples that the picture shows
LOWEST = 0.05  # cycles per sample that the picture shows of the spectrum


# --- the field ------------------------------------------------------------------------------


def field_shape(gib):
    """Return an even shape of float64 that fills at least so many GiB, twice as wide as high."""
    rows = fft.next_fast_len(math.ceil(math.sqrt(gib * 2**27 / 2)), real=True)
    return rows + rows % 2, 2 * (rows + rows % 2)


def stripe_frequencies(shape):
    """Return how often each set of stripes repeats along y and x: whole numbers."""
    return [tuple(round(n / w) for n, w in zip(shape, ws, strict=True)) for ws in WAVELENGTHS]


def grids(shape):
    """Return random heights on grids that become finer and lower, down to 16 samples."""
    random = np.random.default_rng(SEED)
    finest = max(1, int(math.log2(shape[0] / 16)))
    return [
        RELIEF * 0.5 ** (0.9 * level) * random.standard_normal((2**level, 2 ** (level + 1)))
        for level in range(1, finest + 1)
    ]


def interpolation(places, length, cells):
    """Return which entries of a periodic grid lie around places, and their weights as a matrix."""
    cell, fraction = np.divmod(places * (cells / length), 1)
    near = np.arange(cell[0], cell[-1] + 2, dtype=int)
    # smooth to the second derivative
    weight = fraction**3 * (fraction * (6 * fraction - 15) + 10)
    matrix = np.zeros((len(places), len(near)))
    rows = np.arange(len(places))
    columns = cell.astype(int) - near[0]
    matrix[rows, columns] = 1 - weight
    matrix[rows, columns + 1] = weight
    return near % cells, matrix


def terrain(y, x, shape, levels):
    """Return the heights at the crossings of rows y and columns x: what is to be found again."""
    heights = np.zeros((len(y), len(x)))
    for grid in levels:
        rows, down = interpolation(y, shape[0], grid.shape[0])
        columns, across = interpolation(x, shape[1], grid.shape[1])
        heights += down @ (grid[np.ix_(rows, columns)] @ across.T)
    return heights


def field_block(shape, levels, block_info=None):
    """Return a chunk of the field: terrain, stripes and noise."""
    (y0, y1), (x0, x1) = block_info[None]["array-location"]
    y = np.arange(y0, y1)
    x = np.arange(x0, x1)
    field = terrain(y, x, shape, levels)
    for ky, kx in stripe_frequencies(shape):
        # cos(a + b) as two products of a column and a row
        a = 2 * np.pi * ky / shape[0] * y
        b = 2 * np.pi * kx / shape[1] * x
        columns = np.stack([np.cos(a), -np.sin(a)], axis=1)
        rows = np.stack([np.cos(b), np.sin(b)])
        field += STRIPES * columns @ rows
    random = np.random.default_rng([SEED, y0, x0])
    return field + NOISE * random.standard_normal(field.shape)


# --- the filter -----------------------------------------------------------------------------


def response(fy, fx, shape):
    """Return what spectrum is multiplied by: a low-pass with a hole for each set of stripes.

    `fy` is a column and `fx` a row of frequencies per sample, of NumPy or dask.
    """

    def bump(f, centre, width):
        return np.exp(-0.5 * ((f - centre) / width) ** 2)

    lowpass = bump(fy, 0, 0.5 / (np.pi * SMOOTHING)) * bump(fx, 0, 0.5 / (np.pi * SMOOTHING))
    for ky, kx in stripe_frequencies(shape):
        for sign in (1, -1):
            hole_y = bump(fy, sign * ky / shape[0], NOTCH)
            lowpass = lowpass * (1 - hole_y * bump(fx, sign * kx / shape[1], NOTCH))
    return lowpass


def backward(spectrum, shape, chunks):
    """Return the lazy filtered field of a spectrum."""
    fy = fft.fftfreq(shape[0], chunks=(spectrum.chunks[0],))[:, None]
    fx = fft.rfftfreq(shape[1], chunks=(spectrum.chunks[1],))[None, :]
    cleaned = spectrum * response(fy, fx, shape)
    return fft.irfft2(cleaned, s=shape, axes=(0, 1), chunks=chunks)


# --- the run --------------------------------------------------------------------------------


class Stages:
    """Times stages and shows their progress."""

    def __init__(self):
        self.rows = []  # name, bytes in and out, seconds

    @contextlib.contextmanager
    def stage(self, name, nbytes):
        bar = ProgressBar(dt=0.5) if sys.stdout.isatty() else contextlib.nullcontext()
        print(f"  {name} ...", flush=True)
        start = time.perf_counter()
        with bar:
            yield
        self.rows.append((name, nbytes, time.perf_counter() - start))


def empty_array(path, shape, chunks):
    """Return a new Zarr array of float64, without compression: noise does not compress."""
    return zarr.create_array(
        path, shape=shape, chunks=chunks, dtype="f8", compressors=None, overwrite=True
    )


def make_field(path, shape, chunks):
    """Write the field to Zarr."""
    field = da.map_blocks(
        field_block,
        shape=shape,
        levels=grids(shape),
        dtype=float,
        meta=np.empty((0, 0)),
        chunks=da.core.normalize_chunks(chunks, shape),
    )
    da.store(field, empty_array(path, shape, chunks), lock=False)


def compare(reference, array):
    """Return the relative L2 distance of a dask array from a NumPy array, chunk by chunk."""
    expected = da.from_array(reference, chunks=array.chunks, name=False)
    difference_energy = (abs(array - expected) ** 2).sum()
    energy = (abs(expected) ** 2).sum()
    difference_energy, energy = dask.compute(difference_energy, energy)
    return float(np.sqrt(difference_energy / energy))


def distance_from_truth(array):
    """Return the root mean square of an array minus the terrain."""
    levels = grids(array.shape)

    def square(block, block_info=None):
        (y0, y1), (x0, x1) = block_info[0]["array-location"]
        true = terrain(np.arange(y0, y1), np.arange(x0, x1), array.shape, levels)
        return np.full((1, 1), np.sum((block - true) ** 2))

    squares = array.map_blocks(square, dtype=float, chunks=(1, 1), meta=np.empty((0, 0)))
    return float(np.sqrt(squares.sum().compute() / array.size))


#: How stages of SciPy begin. It runs once, into new memory, where the library has run before.
SCIPY = "SciPy in memory, first run"


class SciPy:
    """The same with SciPy on whole arrays in memory: what the answer is held against."""

    def __init__(self, stages):
        self.stages = stages
        self.threads = dask.config.get("num_workers", None) or CPU_COUNT

    def spectrum(self, field):
        whole = np.empty(field.shape)
        da.store(field, whole, lock=False)
        with self.stages.stage(f"{SCIPY}: forward", 2 * whole.nbytes):
            return scipy.fft.rfft2(whole, workers=self.threads)

    def cleaned(self, spectrum, shape):
        """Return the cleaned field; the spectrum is overwritten."""
        fy = np.fft.fftfreq(shape[0])[:, None]
        fx = np.fft.rfftfreq(shape[1])[None, :]
        with self.stages.stage(f"{SCIPY}: filter, inverse", 2 * 8 * math.prod(shape)):
            for start in range(0, shape[0], 256):
                rows = slice(start, start + 256)
                spectrum[rows] *= response(fy[rows], fx, shape)
            return scipy.fft.irfft2(spectrum, s=shape, workers=self.threads, overwrite_x=True)


def run(gib, folder):
    """Return what a picture can show, the times, and how far the answer is from SciPy's."""
    shape = field_shape(gib)
    chunks = tuple(math.ceil(n / 8) for n in shape)
    nbytes = 8 * math.prod(shape)
    source = str(folder / "field.zarr")
    sink = str(folder / "cleaned.zarr")
    stages = Stages()
    # Memory that is kept from one transform for the next would be in the way of SciPy's later.
    dask.config.set({"bigfft.memory.arena-limit": nbytes // 4})
    with stages.stage("make the field, write Zarr", nbytes):
        make_field(source, shape, chunks)

    with stages.stage("read Zarr", nbytes):
        before = da.from_zarr(source).persist()
    with stages.stage("warm-up: forward, filter, inverse", 4 * nbytes):  # compiles
        backward(fft.rfft2(before), shape, before.chunks).persist()
    with stages.stage("forward", 2 * nbytes):
        spectrum = fft.rfft2(before).persist()
    before = da.from_zarr(source)  # and let go of the memory
    with stages.stage("filter, inverse", 2 * nbytes):
        cleaned = backward(spectrum, shape, before.chunks).persist()
    with stages.stage("write Zarr", nbytes):
        da.store(cleaned, empty_array(sink, shape, chunks), lock=False)
    del cleaned
    after = da.from_zarr(sink)

    height = min(shape[0], WINDOW[0])
    width = min(shape[1], WINDOW[1])
    window = (slice(0, height), slice(0, width))
    low = max(4, round(shape[0] * LOWEST))
    across = max(4, round(shape[1] * LOWEST))
    centre = shape[0] // 2
    middle = fft.fftshift(spectrum, axes=0)[centre - low : centre + low, :across]
    summary = {
        "shape": shape,
        "chunks": chunks,
        "input": before[window].compute(),
        "spectrum": abs(middle).compute(),
        "result": after[window].compute(),
        "truth": terrain(np.arange(height), np.arange(width), shape, grids(shape)),
        "rms": (distance_from_truth(before), distance_from_truth(after)),
        "stages": stages,
    }
    peer = SciPy(stages)
    expected = peer.spectrum(before)
    spectrum_error = compare(expected, spectrum)
    del spectrum, middle  # lets go of the memory
    expected = peer.cleaned(expected, shape)
    field_error = compare(expected, after)
    return summary | {"errors": {"spectrum": spectrum_error, "cleaned field": field_error}}


def report(summary):
    """Print what a run did, how fast, and how far from the answer it is."""
    rows, columns = summary["shape"]
    print(
        f"{rows} x {columns} float64 ({format_bytes(8 * rows * columns)}) in Zarr, in chunks of"
        f" {summary['chunks'][0]} x {summary['chunks'][1]}"
    )
    for name, nbytes, seconds in summary["stages"].rows:
        speed = f"{format_bytes(int(nbytes / seconds))}/s"
        print(f"  {name:43} {format_time(seconds):>9}  {speed:>13}")
    seconds = {name: seconds for name, _, seconds in summary["stages"].rows}
    names = ("forward", "filter, inverse")
    if any(seconds[f"{SCIPY}: {name}"] < seconds[name] for name in names):
        print(
            "  SciPy is faster where the field fits into memory: it has no chunks to schedule,"
            " gather and exchange"
        )
    for name, error in summary["errors"].items():
        same = "" if error else ", the same bit for bit"
        print(f"  {name}: relative L2 distance from SciPy {error:.1e}{same}")
    before, after = summary["rms"]
    print(
        f"  root mean square distance from the true terrain: {before:.1f} m before,"
        f" {after:.1f} m after"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"  peak memory of the process, SciPy's check included: {format_bytes(peak)}")


def right(summary):
    """Return whether the answer is SciPy's and the filter did its work."""
    before, after = summary["rms"]
    return max(summary["errors"].values()) < 1e-14 and after < before / 4


def add_arguments(parser, gib):
    """Add the arguments for a field, whose size is `gib` by default."""
    parser.add_argument(
        "--gib", type=float, default=gib, help=f"size of the field, default {gib:g}"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"where it is kept meanwhile, default {FOLDER.name}",
    )


@contextlib.contextmanager
def scratch(folder):
    """Make a folder for the field and remove it in the end, whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="field-", dir=folder) as path:
        yield Path(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    add_arguments(parser, gib=0.25)
    arguments = parser.parse_args()
    with scratch(arguments.folder) as folder:
        summary = run(arguments.gib, folder)
    report(summary)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()

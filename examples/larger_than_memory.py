"""Transform an array larger than the memory, and resume a killed run: larger_than_memory.py

A random field is stored as a Zarr array. `dask_bigfft.run` transforms it from file to file in a
quarter of its size in memory: between the rounds, blocks go through scratch files. The first run is
killed in the middle, the second one resumes it. Dask's own FFT tries the same beside it. Each runs
in a process that is killed above this memory and that of imports. Some frequencies are compared
with explicit sums, and the energy with Parseval's theorem. SciPy would need the field and its
spectrum in memory.
"""

import argparse
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from dask.utils import format_bytes
from extras import extra
from watched import watched

import dask_bigfft

with extra("zarr"):
    import zarr

#: Bytes of memory that Python and the libraries take beside `memory_limit`.
BESIDE = 384 << 20

#: Ends of processes in words.
ENDS = {"out of memory": "killed for its memory", "killed": "killed half-way on purpose"}

#: What became of Dask's own FFT, by the end of its process.
DASK_ENDS = {
    "out of memory": "Dask's own FFT needed more than this memory, and was killed.",
    "finished": "Dask's own FFT finished in this memory, too.",
    "failed": "Dask's own FFT failed.",
}


def make_field(path, shape, rows):
    """Store normal numbers, slab by slab, and return their energy."""
    field = zarr.create_array(
        path, shape=shape, chunks=(rows, *shape[1:]), dtype="c8", compressors=None
    )
    rng = np.random.default_rng(1)
    energy = 0.0
    for first in range(0, shape[0], rows):
        height = min(rows, shape[0] - first)
        slab = rng.standard_normal((height, *shape[1:], 2), dtype="f4").view("c8")[..., 0]
        field[first : first + height] = slab
        energy += float(np.sum(np.abs(slab.astype("c16")) ** 2))
    return field, energy


def transform(folder, limit):
    """Transform the field from file to file, or resume that."""
    with dask.config.set(scheduler="threads"):
        return dask_bigfft.run(
            folder / "field.zarr",
            folder / "spectrum.zarr",
            "fftn",
            memory_limit=limit,
            block_size=limit // 16,
            compressors=None,  # noise hardly shrinks; the default is zarr's
            scratch=folder / "scratch",
            resume=True,
        )


def transform_by_dask(folder, limit):
    """Transform the field by `da.fft`, one axis after the other, with rechunks between them."""
    with dask.config.set({"scheduler": "threads", "array.chunk-size": limit // 16}):
        spectrum = da.from_zarr(folder / "field.zarr")
        for axis in (2, 1, 0):
            chunks = {0: "auto", 1: "auto", 2: "auto", axis: -1}
            spectrum = da.fft.fft(spectrum.rechunk(chunks), axis=axis)
        spectrum.rechunk("auto").to_zarr(folder / "by_dask.zarr")


def records(folder, stage="*"):
    """Return the records of finished blocks in the scratch folder, of all stages or of one."""
    return list((folder / "scratch").glob(f"{stage}/done-*.json"))


def by_hand(field, at, rows):
    """Return one frequency by the definition."""
    nz, ny, nx = field.shape
    x = np.exp(-2j * np.pi * (np.arange(nx) * at[2] % nx) / nx)
    y = np.exp(-2j * np.pi * (np.arange(ny) * at[1] % ny) / ny)
    z = np.exp(-2j * np.pi * (np.arange(nz) * at[0] % nz) / nz)
    slabs = (field[i : i + rows] @ x @ y for i in range(0, nz, rows))
    return sum(np.dot(slab, z[i * rows : (i + 1) * rows]) for i, slab in enumerate(slabs))


def errors_of(field, energy, rows, path):
    """Return relative errors of some frequencies and of the energy."""
    spectrum = zarr.open_array(path, mode="r")
    typical = np.sqrt(energy)  # size of an element of the spectrum
    errors = {}
    for at in [(0, 0, 0), (1, 2, 3), tuple(n - 5 for n in field.shape)]:
        errors[f"frequency {at}"] = abs(spectrum[at] - by_hand(field, at, rows)) / typical
    total = sum(
        float(np.sum(np.abs(spectrum[:, i : i + 8].astype("c16")) ** 2))
        for i in range(0, field.shape[1], 8)
    )
    return errors | {"energy": abs(total / field.size / energy - 1)}


def run(gib, folder):
    """Return the run that resumed a killed one, and how far its result is from the truth."""
    edge = max(4, round((gib * 2**30 / 8) ** (1 / 3) / 16)) * 16
    shape = (edge, edge, edge)
    rows = max(1, edge // 64)
    print("  storing the field ...", flush=True)
    field, energy = make_field(folder / "field.zarr", shape, rows)
    limit = field.nbytes // 4
    allowed = limit + BESIDE
    print("  transforming it by da.fft ...", flush=True)
    by_dask = watched(transform_by_dask, folder, limit, limit=allowed)
    shutil.rmtree(folder / "by_dask.zarr", ignore_errors=True)
    print("  by dask_bigfft, and killing that ...", flush=True)
    killed = watched(
        transform,
        folder,
        limit,
        limit=allowed,
        until=lambda: records(folder, "result"),
    )
    records_count = len(records(folder))
    complete = (folder / "spectrum.zarr").exists()
    print("  resuming it ...", flush=True)
    finished = watched(transform, folder, limit, limit=allowed)
    if finished.result is None:
        raise SystemExit(f"the resumed run ended: {finished.end}")
    resumed = finished.result
    print("  checking the result ...", flush=True)
    return {
        "shape": shape,
        "limit": limit,
        "allowed": allowed,
        "processes": {
            "da.fft": by_dask,
            "dask_bigfft, first run": killed,
            "dask_bigfft, resumed": finished,
        },
        "records": records_count,
        "complete": complete,
        "resumed": resumed,
        "errors": errors_of(field, energy, rows, resumed.path),
    }


def report(summary):
    """Print what became of each process, and how far the result is from explicit sums."""
    resumed = summary["resumed"]
    plan = resumed.plan
    edges = " x ".join(map(str, summary["shape"]))
    print(f"{edges} complex64 in Zarr, {format_bytes(resumed.read)}, transformed along all axes.")
    print(
        f"  A process may have {format_bytes(summary['allowed'])}, of which {format_bytes(BESIDE)}"
        " are for Python and libraries:"
    )
    for name, process in summary["processes"].items():
        peak = format_bytes(max(process.memory, default=0))
        seconds = max(process.seconds, default=0.0)
        end = ENDS.get(process.end, process.end)
        print(f"    {name:24} {end} after {seconds:.1f} s, with {peak} at most")
    print(
        f"  With memory_limit={format_bytes(summary['limit'])!r} the plan is {plan.notation},"
        f" through {format_bytes(plan.expected.scratch)} of scratch files."
    )
    remains = "a result that looks" if summary["complete"] else "nothing that looks"
    print(f"  The killed run left {remains} complete, and {summary['records']} finished blocks,")
    print("  with which the resumed run went on.")
    worst = max(summary["errors"].values())
    print(f"  Three frequencies by explicit sums, and the energy, are right to {worst:.0e}.")
    whole = resumed.read + resumed.written
    print(f"  SciPy would need field and spectrum in memory: {format_bytes(whole)}.")


def conclusion(summary):
    """Return what the run means for a user."""
    by_dask, first, resumed = summary["processes"].values()
    peak = format_bytes(max(resumed.memory, default=0))
    text = f"{DASK_ENDS[by_dask.end]} dask_bigfft took {peak}."
    if first.end == "killed":
        text += "\n   What its killed run had finished was not computed again."
    return text


def right(summary):
    """Return whether the answer is right, and no incomplete result was at the destination."""
    was_killed = summary["processes"]["dask_bigfft, first run"].end == "killed"
    incomplete = was_killed and summary["complete"]
    return max(summary["errors"].values()) < 1e-5 and not incomplete


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the field (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path("larger_than_memory"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        summary = run(args.gib, args.folder)
    finally:
        shutil.rmtree(args.folder)
    report(summary)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()

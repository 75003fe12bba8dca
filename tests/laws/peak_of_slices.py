"""Programs that store the spectra of slices of a file, or go back, with a pause before and after.

Their arguments are a folder, and a job: samples of the record and of a chunk, compressors, and
columns of a chunk of the spectra.
"""

import dask
import distributed  # noqa: F401  # dask imports it to look for a client
import numpy as np
import zarr
from laws.prompt import Prompt

import dask_bigfft
from dask_bigfft.memory import default_arena
from dask_bigfft.system import return_freed


def make_record(path, size, chunk, compressors):
    array = zarr.create_array(
        str(path),
        shape=(size,),
        chunks=(chunk,),
        dtype="f4",
        compressors=compressors,
    )
    values = np.random.default_rng(1).random(chunk, np.float32)
    for low in range(0, size, chunk):
        array[low : low + chunk] = values


def of_slices(pause, folder, job):
    size, chunk, compressors, columns = job
    dask.config.set({"scheduler": "threads", "num_workers": 2, "pool": Prompt(2)})
    return_freed()  # what glibc keeps of it depends on which thread had which block
    asked = {"win": np.hanning(1024), "hop": 512, "compressors": None, "chunks": (-1, columns)}
    make_record(folder / "small", 2**16, 2**14, compressors)
    dask_bigfft.run(folder / "small", folder / "out-small", "stft", **asked)
    default_arena().trim()  # idle memory would count as that of imports
    make_record(folder / "in", size, chunk, compressors)
    pause()
    done = dask_bigfft.run(folder / "in", folder / "out", "stft", **asked)
    pause({"peak": done.plan.expected.peak_host})


def of_samples(pause, folder, job):
    size, chunk, compressors, columns = job
    dask.config.set({"scheduler": "threads", "num_workers": 2, "pool": Prompt(2)})
    return_freed()
    window = {"win": np.hanning(1024), "hop": 512}
    spectra = {"compressors": compressors, "chunks": (-1, columns)}
    samples = {"compressors": None, "chunks": (columns * 512,)}
    for name, count in (("small", 2**18), ("in", size)):
        make_record(folder / name, count, chunk if name == "in" else 2**14, None)
        dask_bigfft.run(folder / name, folder / f"{name}-spectra", "stft", **window, **spectra)
    small = folder / "small-spectra"
    dask_bigfft.run(small, folder / "small-out", "istft", **window, **samples)
    default_arena().trim()
    pause()
    done = dask_bigfft.run(folder / "in-spectra", folder / "out", "istft", **window, **samples)
    pause({"peak": done.plan.expected.peak_host})

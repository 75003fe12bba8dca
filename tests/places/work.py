"""What a user does: transforms in memory, through scratch files and to a file, each compared.

Called by name from the command line, it works in a way that this name says.
"""

import asyncio
import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import dask
import numpy as np

import dask_bigfft
from dask_bigfft import fft

#: Library of the lazy arrays.
da = importlib.import_module(os.environ.get("BIGFFT_ARRAYS", "dask.array"))

# In development mode event loops, such as zarr's, log each step that takes longer than 0.1 s, which
# is one on a busy machine.
logging.getLogger("asyncio").addFilter(lambda record: not record.msg.startswith("Executing"))

FIELD = np.random.default_rng(3).standard_normal((60, 96))


def lazy_field():
    return da.from_array(FIELD, chunks=(17, 20))


def transform():
    """Two axes in many chunks, a long axis, a prime length, a half spectrum and back."""
    spectrum = np.fft.fft2(FIELD)
    np.testing.assert_allclose(fft.fft2(lazy_field()).compute(), spectrum, atol=1e-10)
    back = fft.irfft2(fft.rfft2(lazy_field()), s=FIELD.shape)
    np.testing.assert_allclose(back.compute(), FIELD, atol=1e-12)
    for n in (4096, 1021):
        line = np.resize(FIELD, n)
        y = fft.fft(da.from_array(line, chunks=300))
        np.testing.assert_allclose(y.compute(), np.fft.fft(line), atol=1e-9)


def transform_by_disk():
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        y = fft.fft2(lazy_field(), verify="checksum")
        np.testing.assert_allclose(y.compute(), np.fft.fft2(FIELD), atol=1e-10)


def transform_files():
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "field.npy")
        np.save(source, FIELD)
        target = Path(folder, "spectrum.zarr")
        done = dask_bigfft.run(source, target, "fft2", memory_limit="64 MiB")
        np.testing.assert_allclose(done.open().compute(), np.fft.fft2(FIELD), atol=1e-10)


def work(scheduler="threads"):
    """Do all of it, by default on dask's threads."""
    settings = {"scheduler": scheduler, "num_workers": 2, "bigfft.planner.whole-axis-floor": 1}
    with dask.config.set(settings):
        transform()
        transform_by_disk()
        transform_files()


def fork():
    """Work, and again in a child process, which has none of the threads that dask knows."""
    work()
    with warnings.catch_warnings():
        # Python's own from 3.12 on, as the pool of dask has threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            work("sync")
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    work()


def in_child(method):
    """Work in a process that is started by a method, after this process has worked."""
    work()
    context = multiprocessing.get_context(method)
    child = context.Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0


def thread():
    """Import the package and work in a thread; the main thread does nothing else."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    if errors:
        raise errors[0]


def event_loop():
    """Work while an event loop runs in this thread, as in a notebook."""

    async def cell():
        work()

    asyncio.run(cell())


def limited():
    """Work where a memory limit is imposed from outside, and keep plans within it."""
    from dask_bigfft.memory.limits import machine_nbytes

    limit = int(sys.argv[2])
    assert machine_nbytes() <= limit
    work()
    huge = da.zeros((1 << 16, 1 << 16), chunks=(1 << 10, 1 << 12))
    assert dask_bigfft.plan(huge, "fft2").expected.peak_host <= limit


WAYS = {
    "plain": work,
    "fork": fork,
    "spawn": lambda: in_child("spawn"),
    "forkserver": lambda: in_child("forkserver"),
    "thread": thread,
    "event loop": event_loop,
    "limited": limited,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
    print("worked")

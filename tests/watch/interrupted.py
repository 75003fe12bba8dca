"""Program that transforms slowly until Ctrl-C, and prints what is left of it then.

Arguments are the place where blocks are transformed (``threads``, ``cluster``, ``disk``,
``device`` or ``sync``) and the folder of scratch files.
"""

import contextlib
import gc
import os
import sys
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft, progress
from dask_bigfft.gpu import dispatch
from dask_bigfft.memory import default_arena
from dask_bigfft.testing.devices import simulated_devices

place = sys.argv[1]
scratch = Path(sys.argv[2])

#: Threads that are inside `slow`.
running = set()


def slow(block):
    """Return a block after a while."""
    try:
        running.add(threading.get_ident())
        os.write(1, b"begun\n")  # whole: two threads do
        time.sleep(0.1)
    finally:
        running.discard(threading.get_ident())
    return block


def count_files():
    """Return the number of scratch files."""
    return sum(path.is_file() for path in scratch.rglob("*"))


def in_use():
    """Return the running threads, scratch files, leases of devices and bytes of the arena."""
    allocated = default_arena().counters().allocated_bytes
    return len(running), count_files(), dispatch.in_use(), allocated


def settings():
    """Return dask's settings for the place."""
    values = {"bigfft.scratch.directory": str(scratch), "num_workers": 2}
    if place == "disk":
        values["bigfft.exchange.carrier"] = "disk"
    if place == "sync":
        values["scheduler"] = "sync"
    return values


def start_client(stack):
    """Return a client of a cluster in this process, or None for another place."""
    if place != "cluster":
        return None
    from distributed import Client

    client = Client(
        n_workers=1,
        threads_per_worker=2,
        dashboard_address="127.0.0.1:0",
        processes=False,
    )
    return stack.enter_context(client)


def wait_until_unused(client):
    """Wait until what was running has ended."""
    for _ in range(500):
        gc.collect()
        has_tasks = client is not None and any(client.processing().values())
        if not any(in_use()) and not has_tasks:
            return
        time.sleep(0.02)


has_device = place in ("device", "sync")
options = {"device": "gpu" if has_device else "cpu"}
with contextlib.ExitStack() as stack:
    stack.enter_context(dask.config.set(settings()))
    (device,) = stack.enter_context(simulated_devices(1 << 20))
    client = start_client(stack)
    x = da.random.default_rng(0).standard_normal((64, 4096), chunks=(1, 4096))
    y = fft.fft2(x.map_blocks(slow, dtype=float, meta=np.empty((0, 0))), **options)
    try:
        if has_device:
            y.compute()
        else:
            progress(y)
    except KeyboardInterrupt:
        still_running = len(running) if place in ("threads", "disk") else 0  # others end later
        print("interrupted: files", count_files() > 0, "running", still_running)
    del y
    wait_until_unused(client)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("bigfft_")]
    print("left", in_use(), len(threads))
    del threads
    is_right = np.allclose(fft.fft2(x, **options).compute(), np.fft.fft2(x.compute()))
    gc.collect()
    print("again", is_right, count_files())
print("device", device.memory().free == device.memory().total, flush=True)

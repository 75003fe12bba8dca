"""Program that starts two workers as dask-cuda does, and prints which devices each of them sees."""

import importlib.machinery
import os
import sys
import types

from distributed import Client, Nanny, Scheduler, SpecCluster

LOOPBACK = "127.0.0.1"


def seen():
    """Return the visible devices, those that can be used, and the reason if there are none."""
    import dask.array  # noqa: F401 (asks for CuPy itself)

    from dask_bigfft.gpu import cuda

    def count():
        return len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))

    cupy = types.ModuleType("cupy")
    cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=count))
    sys.modules["cupy"] = cupy
    return os.environ["CUDA_VISIBLE_DEVICES"], cuda.available(), cuda.reason()


def worker(visible, preload):
    """Return the specification of a worker that sees some devices."""
    options = {
        "nthreads": 1,
        "preload": preload,
        "host": LOOPBACK,
        "dashboard_address": None,
        "env": {"CUDA_VISIBLE_DEVICES": visible},
    }
    return {"cls": Nanny, "options": options}


def main():
    """Print what each worker sees, which is the same in its event loop and in a task."""
    workers = {0: worker("1,0", ["dask_cuda.initialize"]), 1: worker("0,1", [])}
    scheduler = {"cls": Scheduler, "options": {"host": LOOPBACK, "dashboard": False}}
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        on_loop = client.run(seen)
        by_address = client.scheduler_info()["workers"]
        for address in sorted(by_address, key=lambda address: by_address[address]["name"]):
            in_task = client.submit(seen, workers=[address], pure=False).result()
            assert on_loop[address] == in_task
            print(*on_loop[address])


if __name__ == "__main__":
    main()

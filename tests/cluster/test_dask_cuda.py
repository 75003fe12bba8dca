"""Workers as dask-cuda starts them: each sees all devices, its own first, and takes that one.

dask-cuda cannot be installed beside every dask that is supported, and needs cards. Here is what a
worker sees of it: CUDA_VISIBLE_DEVICES, turned by one from worker to worker, and the preload
``dask_cuda.initialize``. CuPy is replaced by a module that counts the devices that are visible.
"""

import os

from support import ROOT, python

PROGRAM = """
import importlib.machinery, os, sys, types
from distributed import Client, Nanny, SpecCluster, Scheduler

def seen():
    import dask.array  # asks for CuPy itself
    from dask_bigfft.gpu import cuda
    sys.modules["cupy"] = cupy = types.ModuleType("cupy")
    cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=count))
    return os.environ["CUDA_VISIBLE_DEVICES"], cuda.available(), cuda.reason()

def spec(visible, preload):
    return {"cls": Nanny, "options": {"nthreads": 1, "preload": preload, "host": "127.0.0.1",
            "dashboard_address": None, "env": {"CUDA_VISIBLE_DEVICES": visible}}}

if __name__ == "__main__":
    workers = {0: spec("1,0", ["dask_cuda.initialize"]), 1: spec("0,1", [])}
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(2)
        names = {w["name"]: address for address, w in client.scheduler_info()["workers"].items()}
        on_loop = client.run(seen)
        in_tasks = client.gather({n: client.submit(seen, workers=[a], pure=False)
                                  for n, a in names.items()})
        for name, address in sorted(names.items()):
            assert on_loop[address] == in_tasks[name]
            print(*on_loop[address])
"""


def test_a_worker_takes_the_first_of_the_devices_that_it_sees(tmp_path):
    package = tmp_path / "dask_cuda"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "initialize.py").write_text("def dask_setup(worker):\n    pass\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = python(
        tmp_path / "program.py", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    )
    assert done.stdout.splitlines() == ["1,0 (0,) None", "0,1 (0, 1) None"], done.stderr

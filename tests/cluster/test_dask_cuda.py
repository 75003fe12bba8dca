"""Workers as dask-cuda starts them: each sees all devices, its own first, and takes that one.

dask-cuda cannot be installed beside every dask that is supported, and needs cards. Here is what a
worker sees of it: CUDA_VISIBLE_DEVICES, turned by one from worker to worker, and the preload
``dask_cuda.initialize``. CuPy is replaced by a module that counts the devices that are visible.
"""

import os
from pathlib import Path

from support import ROOT, python


def test_a_worker_takes_the_first_of_the_devices_that_it_sees(tmp_path):
    package = tmp_path / "dask_cuda"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "initialize.py").write_text("def dask_setup(worker):\n    pass\n")
    process = python(
        Path(__file__).with_name("dask_cuda_workers.py"),
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    assert process.stdout.splitlines() == ["1,0 (0,) None", "0,1 (0, 1) None"], process.stderr

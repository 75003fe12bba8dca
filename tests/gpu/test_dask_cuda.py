"""On a cluster of dask-cuda: one worker for each card, which takes its own and no other.

Blocks in host memory, and blocks that stay on their cards; by TCP, and by UCX where there is
distributed-ucxx.
"""

import importlib.util

import pytest
from devices.blocks import NEEDS_GPU
from support import python

from dask_bigfft.gpu.cuda import available

pytestmark = NEEDS_GPU

#: Of this machine; a process that has imported dask-cuda takes one of them for its own.
CARDS = len(available())

PROGRAM = """
import sys

import dask.array as da
import numpy as np
import scipy.fft
from dask_cuda import LocalCUDACluster
from distributed import Client, wait

import dask_bigfft.cluster
from dask_bigfft import fft
from dask_bigfft.gpu import cuda

def of_worker():
    return cuda.available(), cuda.cupy().cuda.runtime.deviceGetPCIBusId(0)

def sent(dask_worker):
    return dask_worker.transfer_outgoing_count_total

def on_card(block):
    return cuda.cupy().asarray(block)

def kind(block):
    return type(block).__module__

def checked(found, expected):
    distance = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert distance < 1e-14, distance

if __name__ == "__main__":
    shape = 96, 80, 64
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    expected = scipy.fft.fftn(values)
    with LocalCUDACluster(
        host="127.0.0.1", protocol=sys.argv[1], dashboard_address="127.0.0.1:0",
        threads_per_worker=1
    ) as cluster, Client(cluster) as client:
        before = client.run(of_worker)
        dask_bigfft.cluster.register(client)
        after = client.run(of_worker)
        assert before == after, (before, after)
        assert {found for found, _ in after.values()} == {(0,)}, after
        assert len({card for _, card in after.values()}) == len(after), after
        x = da.from_array(values, chunks=(24, 80, 64))
        for device in ("auto", "gpu"):
            found = fft.fftn(x, device=device, memory_limit="256 MiB").compute()
            checked(found, expected)
        meta = cuda.cupy().empty((0, 0, 0), complex)
        before = sum(client.run(sent).values())
        done = fft.fftn(x.map_blocks(on_card, dtype=complex, meta=meta)).persist()
        wait(done)
        travelled = sum(client.run(sent).values()) - before
        kinds = done.map_blocks(lambda b: np.full((1, 1, 1), kind(b)), dtype="U64").compute()
        assert {name.split(".")[0] for name in kinds.ravel()} == {"cupy"}, kinds
        assert (travelled > 0) == (len(after) > 1)
        checked(done.map_blocks(lambda b: b.get(), dtype=complex).compute(), expected)
        del done
        print("right", len(after), flush=True)
"""

UCX = importlib.util.find_spec("distributed_ucxx") is not None


@pytest.mark.parametrize(
    "protocol",
    ["tcp", pytest.param("ucx", marks=pytest.mark.skipif(not UCX, reason="no distributed-ucxx"))],
)
def test_transforms_on_a_cluster_of_dask_cuda(tmp_path, protocol):
    pytest.importorskip("dask_cuda")
    (tmp_path / "program.py").write_text(PROGRAM)
    process = python(
        tmp_path / "program.py",
        protocol,
        cwd=tmp_path,
        timeout=150,
    )
    assert process.stdout.splitlines()[-1] == f"right {CARDS}"

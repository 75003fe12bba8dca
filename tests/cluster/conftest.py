"""A cluster of real processes, which listens on loopback only, and one client at a time."""

import dask
import pytest
from distributed import Client
from support import local

import dask_bigfft.cluster


@pytest.fixture(scope="module")
def cluster():
    # A worker that takes longer to be restarted would be given up: 15 s are few on a busy machine.
    slow = {"distributed.deploy.lost-worker-timeout": "120s"}
    with dask.config.set(slow), local(processes=True) as client:
        yield client.cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as connected:
        dask_bigfft.cluster.register(connected)
        yield connected

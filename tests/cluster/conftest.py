"""A cluster of real processes, which listens on loopback only, and one client at a time."""

from collections.abc import Iterator

import dask
import pytest
from distributed import Client, LocalCluster

import dask_bigfft.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # A worker that takes longer to be restarted would be given up: 15 s are few on a busy machine.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "120s"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as found,
    ):
        yield found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as found:
        dask_bigfft.cluster.register(found)
        yield found

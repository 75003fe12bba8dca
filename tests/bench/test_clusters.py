"""The program for clusters: what it finds out is what was there."""

import pytest

from dask_bigfft.bench import clusters


def test_the_first_task_is_seen(monkeypatch):
    monkeypatch.setitem(clusters.FIRST, "few", ((8, 8, 8), (2, 1, 8)))
    found = clusters.first_task("few")
    assert found["blocks"] == 32
    assert 0 < found["seconds"] < clusters.LONGEST
    assert found["client_bytes"] >= found["client_grew"] >= 0


@pytest.mark.slow
def test_speeds():
    found = clusters.scaling(2, 1, 4 << 20)
    assert sum(found["blocks_by_worker"]) == 16
    assert found["blocks_by_worker"] == [8, 8]
    assert found["bytes_between_workers"] == 4 << 20
    assert all(peak > 4 << 20 for peak in found["peak_by_worker"])
    overhead = clusters.p2p_overhead(2, 1, 8 << 20)
    assert overhead["times_as_long"] == overhead["p2p"][0] / overhead["threads"][0]

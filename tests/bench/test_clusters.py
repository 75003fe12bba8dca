"""The program for clusters: what it finds out is what was there."""

import pytest

from dask_bigfft.bench import clusters


def test_the_first_task_is_seen(monkeypatch):
    monkeypatch.setitem(clusters.FIRST, "few", ((8, 32, 8), (2, 1, 8)))
    found = clusters.first_task("few", merged=True)
    assert found["blocks"] == 128
    assert found["result_blocks"] == 1
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


def test_tiny_blocks_are_looked_at():
    found = clusters.tiny_blocks(48, 1)
    assert found["blocks"] == 24
    assert len(found["seconds"]) == 1
    assert found["error"] < clusters.WRONG
    good = {"seconds": [1.0, 3.9, 60.0], "error": 1e-15}
    assert not clusters._slow("1,152 blocks", good)
    assert clusters._slow("288 blocks", good)
    assert clusters._slow("1,152 blocks", good | {"error": 1e-12})
    assert clusters._slow("1,152 blocks", good | {"error": float("nan")})

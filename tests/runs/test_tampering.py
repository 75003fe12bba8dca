"""Runs resumed in folders that somebody, or a disk, has changed: repaired, or refused by name."""

import json
import os
import random
import re
from pathlib import Path

import dask.array as da
import pytest
from runs.resuming import again, done_so_far, files

import dask_bigfft
from dask_bigfft.errors import ArgumentError, BigFFTError
from dask_bigfft.exchange.scratch import signed

zarr = pytest.importorskip("zarr")


@pytest.fixture
def killed(here, kill, undisturbed):
    """A run that was killed when a part of its result was stored; what it would have made."""
    kill(1080)
    assert 0 < done_so_far()[-1] < 16
    return undisturbed


def altered(path, change):
    found = json.loads(Path(path).read_bytes())
    Path(path).write_text(json.dumps(change(found)))


def test_another_plan_is_noticed(killed):
    x = da.zeros(2**12, chunks=2**8, dtype=complex)
    other = dask_bigfft.plan(x, "ifft", device="cpu", kernel="scipy").to_json()
    altered("scratch/run.json", lambda found: found | {"plan": other})
    with pytest.raises(ArgumentError, match="delete the folder to start over"):
        again()


def test_shards_of_another_run_are_not_used(killed, processes):
    """Records carry the digest of their run, so what another one has written is made anew."""
    before = [path.read_bytes() for path in sorted(Path("scratch").glob("*/*.json"))]
    assert before
    for path in Path("scratch").glob("*/*.json"):
        found = json.loads(path.read_bytes())
        found["run"] = "0" * 16
        path.write_bytes(signed(found))
    again()
    assert files("out.zarr") == killed


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("asked", [{}, {"checksum": True}, {"verify": "energy"}])
def test_a_flipped_bit_of_the_stored_result_is_found(here, kill, undisturbed, asked, sync):
    """With `sync`, where files are not read again by default, only if that is asked for."""
    kill(1080, settings={"bigfft.scratch.sync": sync}, **asked)
    (partial,) = Path().glob("out.zarr.partial-*")
    path = sorted(partial.glob("c/*"))[0]
    data = bytearray(path.read_bytes())
    data[2049 + 16] ^= 4
    path.write_bytes(data)
    if sync and not asked:
        again()
        assert files("out.zarr")[0] != undisturbed[0]
        return
    with pytest.warns(RuntimeWarning, match="not what they were"):
        again(**asked)
    assert files("out.zarr")[0] == undisturbed[0]


@pytest.mark.parametrize("change", ["empty", "half", "no array"])
def test_a_part_of_the_result_that_is_another_array_is_refused(killed, change):
    (partial,) = Path().glob("out.zarr.partial-*")
    changes = {
        "empty": lambda found: {},
        "half": lambda found: found | {"shape": [2**11]},
        "no array": lambda found: found | {"node_type": "group"},
    }
    altered(partial / "zarr.json", changes[change])
    with pytest.raises(ArgumentError, match=f"{re.escape(partial.name)}.*delete"):
        again()
    assert not Path("out.zarr").exists()


@pytest.mark.filterwarnings("ignore:.*makes it once more:RuntimeWarning")
def test_any_change_of_what_a_run_keeps_is_repaired_or_refused(killed):
    """Names and types of entries, at random: never an internal error, never a wrong result."""
    rng = random.Random(5)
    kept = [Path("scratch/run.json"), *sorted(Path("scratch").glob("*/*.json"))]
    saved = {path: path.read_bytes() for path in kept}
    values = [None, 0, -1, "", "x", [], {}, [1, 2], {"a": 1}, 1e300, True]
    for _ in range(15):
        for path in rng.sample(kept, 3):
            found = json.loads(path.read_bytes())
            name = rng.choice(list(found))
            found = rng.choice(
                [
                    {k: v for k, v in found.items() if k != name},
                    found | {name: rng.choice(values)},
                    rng.choice(values),
                ]
            )
            path.write_text(json.dumps(found) if rng.random() < 0.8 else json.dumps(found)[:-3])
        refused = ""
        try:
            again()
        except BigFFTError as error:
            refused = str(error)
        if not refused:
            assert files("out.zarr") == killed
            return
        assert "scratch" in refused  # the folder
        for path, data in saved.items():
            path.write_bytes(data)


@pytest.mark.parametrize("name", ["pipe", "pipe.npy", "pipe.zip", "pipe.h5"])
def test_a_pipe_is_no_source(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"`source`.*regular file"):
        dask_bigfft.run(tmp_path / name, tmp_path / "out.zarr")

"""A task that has failed and is run once more gives the right answer or an error.

Schedulers of clusters do that (``compute(retries=1)``). What such a task reads is what the first
try has left: where that worked in the memory of its block, it is no longer what it was.
"""

import pickle

import dask
import dask.array as da
import dask.local
import numpy as np
import pytest
from laws.law import damaged, small_tiles
from laws.test_overwrite import owned_blocks, values
from support import close, local

import dask_bigfft.gpu.dispatch
from dask_bigfft import fft, plan
from dask_bigfft.carriers.poison import poisoning, raise_if_poisoned
from dask_bigfft.errors import CarrierError, DeviceError, VerificationError
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.faults import DAMAGES, Times


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    """Some tiles are done when another one fails."""
    small_tiles(monkeypatch, 1100)


@pytest.fixture
def again(monkeypatch):
    """Dask's own scheduler runs a task that has failed once more; the errors of first tries."""
    run = dask.local.execute_task
    errors = []

    def twice(*arguments):
        try:
            return run(*arguments)
        except Exception as error:
            errors.append(type(error))
            return run(*arguments)

    monkeypatch.setattr(dask.local, "execute_task", twice)
    return errors


@pytest.fixture(scope="module")
def client():
    with local(workers=1) as client:
        yield client


def broken(answer):
    raise MemoryError("no")


@pytest.mark.parametrize("mode", ["energy", "checksum"])
@pytest.mark.parametrize(
    ("after", "inside"),
    [
        (3, False),
        (66, True),
        (101, True),
    ],
)
def test_what_is_wrong_twice_is_not_tried_again_in_place(
    monkeypatch,
    again,
    mode,
    after,
    inside,
):
    """A round whose source stays is; one in common memory has stored the tiles before."""
    a = values(4096)
    x = da.from_array(a, chunks=256)
    when = Times(2, after)
    damaged(monkeypatch, DAMAGES["exponent bit"], when)
    with dask.config.set(scheduler="sync"):
        assert any(plan(x, "fft", verify=mode).shared_layouts.inside)
        y = fft.fft(x, verify=mode)
        if inside:
            with pytest.raises(CarrierError, match=r"failed on block .* while it worked in place"):
                y.compute()
        else:
            assert close(y.compute(), np.fft.fft(a))
    assert when.left <= 0
    assert again == [VerificationError]


@pytest.mark.parametrize("carrier", ["auto", "shared"])
@pytest.mark.parametrize(
    ("shape", "chunks", "after"),
    [
        ((4096,), 256, 3),
        ((4096,), 256, 101),
        ((64, 64), (16, 64), 5),
        ((64, 64), (16, 64), 17),
    ],
)
def test_what_is_verified_is_not_worked_on_in_place_on_workers(
    monkeypatch,
    client,
    carrier,
    shape,
    chunks,
    after,
):
    a = values(*shape) + after
    when = Times(2, after)
    damaged(monkeypatch, DAMAGES["exponent bit"], when)
    x = da.from_array(a.copy(), chunks=chunks) + 0
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        y = fft.fftn(x, verify="energy", overwrite_x=True)
        assert close(y.compute(retries=1), np.fft.fftn(a))
    assert when.left < 0


@pytest.mark.parametrize("after", [0, 1, 3])  # of a call for each block
def test_blocks_that_may_be_overwritten_are_not_transformed_twice(monkeypatch, client, after):
    a = values(64, 64) + after
    x = da.from_array(a.copy(), chunks=(16, 64)) + 0
    damaged(monkeypatch, broken, Times(1, after))
    with pytest.raises(CarrierError, match=r"round 1 failed on block .* leave overwrite_x out"):
        fft.fft2(x, overwrite_x=True).compute(retries=1)
    damaged(monkeypatch, broken, Times(1, after))
    assert close(fft.fft2(x).compute(retries=1), np.fft.fft2(a))


@pytest.mark.parametrize("dtype", "fdgFDG")
@pytest.mark.parametrize("strided", [False, True])
def test_a_block_says_wherever_it_is_that_it_is_spoiled(dtype, strided):
    block = np.full((6, 4), np.nan, dtype)[:: 2 if strided else 1, :: -1 if strided else 1]
    raise_if_poisoned(0, (0, 0), block)  # NaN like any other
    raise_if_poisoned(0, (0, 0), block[:0])
    with pytest.raises(KeyboardInterrupt), poisoning(lambda: [block]):
        raise KeyboardInterrupt
    assert np.isnan(block).all()
    for sent in (block, block.copy(), pickle.loads(pickle.dumps(block))):
        with pytest.raises(CarrierError, match=r"round 1 failed on block \(0, 0\)"):
            raise_if_poisoned(0, (0, 0), sent)
    block[...] = 1
    raise_if_poisoned(0, (0, 0), block)


def test_nor_are_shards_that_a_device_has_worked_on(monkeypatch, again):
    x, _ = owned_blocks(values(64, 48), 16)
    real = dask_bigfft.gpu.dispatch.inside_device
    when = Times(1, after=1)

    def device(job, shards, place):
        block = real(job, shards, place)
        if when():
            raise DeviceError("no")
        return block

    monkeypatch.setattr(dask_bigfft.gpu.dispatch, "inside_device", device)
    limits = TileLimits(0, least=1 << 14, run_nbytes=64)
    text = r"round 1 failed on block .* leave overwrite_x out"
    with simulated_devices(1 << 18, limits=limits), pytest.raises(CarrierError, match=text):
        fft.fft2(x, overwrite_x=True, device="gpu").compute(scheduler="sync")
    assert again == [DeviceError]

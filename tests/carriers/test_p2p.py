"""Exchanges carried by distributed's peer-to-peer shuffle, on workers of this process."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from distributed import Client, wait
from support import close, local, python

from dask_bigfft import fft
from dask_bigfft.carriers import p2p, shuffle
from dask_bigfft.errors import CarrierError
from dask_bigfft.testing.traps import until

RNG = np.random.default_rng(11)
FIELD = RNG.standard_normal((24, 20, 18))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local(3) as client, dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        yield client


#: What distributed asks again by itself: between workers, or of them.
UNASKED = {"shuffle_receive", "shuffle_inputs_done", "shuffle_get"}


def blocks() -> da.Array:
    return da.from_array(FIELD, chunks=(6, 20, 9))


def test_blocks_lie_evenly_after_a_persist(client: Client) -> None:
    """What the placement promises, with the scheduler's own plugin."""
    x = da.from_array(RNG.standard_normal((16, 16, 16)), chunks=(4, 16, 4))
    spectrum = fft.fftn(x, chunks=(16, 2, 4)).persist()
    wait(spectrum)
    where = client.who_has(spectrum)
    assert close(spectrum.compute(), np.fft.fftn(x.compute()))
    counts = Counter(worker for holders in where.values() for worker in holders)
    mean = sum(counts.values()) / 3
    assert len(counts) == 3
    assert all(abs(n - mean) < 1 for n in counts.values())
    names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes))
    assert "shuffle-barrier-bigfft" in names
    assert any("bigfft_round1" in name for name in names)


@pytest.mark.parametrize("kind", ["rfftn", "fftn"])
@pytest.mark.parametrize("disk", [True, False])
def test_there_and_back(client: Client, kind: str, disk: bool) -> None:
    """Half spectra are mirrored on the way; shards wait in files or in memory."""
    forward = getattr(fft, kind)
    inverse = {"rfftn": fft.irfftn, "fftn": fft.ifftn}[kind]
    with dask.config.set({"distributed.p2p.storage.disk": disk}):
        spectrum = forward(blocks())
        back = inverse(spectrum, s=FIELD.shape, axes=(0, 1, 2))
        transformed, again = dask.compute(spectrum, back)
    assert close(transformed, getattr(np.fft, kind)(FIELD))
    assert close(again, FIELD)


@pytest.mark.parametrize("optimize_graph", [True, False])
def test_slices_of_a_result(client: Client, optimize_graph: bool) -> None:
    """Culled graphs keep what the shuffle of a wanted block needs."""
    a = RNG.standard_normal(4096)
    y = fft.fft(da.from_array(a, chunks=256), chunks=256)
    wanted = np.fft.fft(a)
    part, block = dask.compute(y[300:700:3], y.blocks[5], optimize_graph=optimize_graph)
    assert close(part, wanted[300:700:3])
    assert close(block, wanted[5 * 256 : 6 * 256])


@pytest.mark.parametrize("senders", [p2p.MAX_SENDERS, 5])
def test_single_precision_padding_and_odd_chunks(
    client: Client, monkeypatch: pytest.MonkeyPatch, senders: int
) -> None:
    """Blocks that nothing is sent to, of different sizes; tasks that send several blocks."""
    monkeypatch.setattr(p2p, "MAX_SENDERS", senders)
    a = RNG.standard_normal((30, 7, 11)).astype("f4")
    x = da.from_array(a, chunks=((7, 11, 12), (3, 4), (5, 1, 5)))
    y = fft.rfftn(x, s=(64, 9, 12), axes=(0, 1, 2))
    spectrum = y.compute()
    wanted = np.fft.rfftn(a.astype("f8"), s=(64, 9, 12), axes=(0, 1, 2))
    assert spectrum.dtype == np.complex64
    assert np.linalg.norm(spectrum - wanted) <= 1e-6 * np.linalg.norm(wanted)
    widths = {task.spec.width for task in dict(y.dask).values() if hasattr(task, "spec")}
    assert (max(widths) > 1) == (senders == 5)


def test_rounds_that_another_result_reads_are_kept(client: Client) -> None:
    """A spectrum and its shifted form, computed together and one while the other is kept."""
    wanted = np.fft.fftn(FIELD)
    spectrum = fft.fftn(blocks())
    persisted = spectrum.persist()
    shifted = fft.fftshift(spectrum)
    assert close(shifted.compute(), np.fft.fftshift(wanted))
    first, second = dask.compute(spectrum, shifted)
    assert close(first, wanted)
    assert close(second, np.fft.fftshift(wanted))
    assert close(persisted.compute(), wanted)


def test_two_computations_of_one_shuffle(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks of one have put together those of the other ask for as well."""
    requested = threading.Event()
    plainly = shuffle.barrier

    def barrier(*arguments: Any) -> int:
        requested.wait(20)
        return plainly(*arguments)

    monkeypatch.setattr(shuffle, "barrier", barrier)
    began = Counter[str]()
    reopened = shuffle.RechunkRun._restart

    async def counted(run: shuffle.RechunkRun) -> None:
        began[run.id] += 1
        await reopened(run)

    monkeypatch.setattr(shuffle.RechunkRun, "_restart", counted)
    y = fft.fftn(blocks())
    wanted = np.fft.fftn(FIELD)
    part = y.blocks[0].persist()  # all of them, by tasks of other names
    whole = client.compute(y)
    requested.set()
    assert close(whole.result(timeout=60), wanted)
    assert close(part.compute(), wanted)
    assert sum(began.values()) <= 8  # until the first attempt was over


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_scheduler_is_asked_again_where_a_connection_is_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before the scheduler knows of a question, or with its answer."""
    plainly = distributed.core.send_recv
    cut = Counter[str]()

    async def losing(comm: Any, op: str, **others: Any) -> Any:
        if not op.startswith("shuffle_") or op in UNASKED or cut[op]:
            return await plainly(comm, op=op, **others)
        cut[op] += 1
        if when == "after":
            await plainly(comm, op=op, **others)
        comm.abort()
        raise distributed.comm.CommClosedError(f"{op} is lost")

    monkeypatch.setattr(distributed.core, "send_recv", losing)
    a = RNG.standard_normal(4096)
    assert close(fft.fft(da.from_array(a, chunks=256)).compute(), np.fft.fft(a))
    assert {"shuffle_get_or_create", "shuffle_barrier"} <= set(cut)


def rooms() -> list[Any]:
    """What shards take of the memory of each worker that has shuffled."""
    return [limits.memory for limits in list(shuffle._limits.values())]


def memory_of(values: np.ndarray) -> Any:
    """What an array keeps alive: whoever has the memory that it lies in."""
    owner: Any = values
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


@pytest.mark.parametrize(
    ("most", "memory", "files"),
    [
        (0, False, True),
        (20_000, True, True),
        (None, True, False),
    ],
)
def test_shards_wait_in_memory_as_far_as_there_is_room(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    most: int | None,
    memory: bool,
    files: bool,
) -> None:
    """A signal of 64 KiB goes two ways, of which three workers take 20,000 bytes or as they like.

    Nothing is left behind, and shards that wait keep no other memory alive.
    """
    written = Counter[str]()
    owners = list[tuple[Any, Any]]()
    take = shuffle.RechunkRun._receive
    write = shuffle.RechunkRun._write_frames

    async def noted(self: Any, *arguments: Any, **named: Any) -> None:
        await take(self, *arguments, **named)
        assert all(room.nbytes <= room.limit for room in rooms())
        for block, queue in list(self._in_memory.items()):
            owners.extend((memory_of(values), (id(self), block)) for _, _, values in list(queue))

    def counted(self: Any, *arguments: Any) -> None:
        written["files"] += 1
        write(self, *arguments)

    monkeypatch.setattr(shuffle.RechunkRun, "_receive", noted)
    monkeypatch.setattr(shuffle.RechunkRun, "_write_frames", counted)
    a = RNG.standard_normal(4096) + 1j * RNG.standard_normal(4096)
    options = {"bigfft.exchange.shuffle-memory": most, "bigfft.planner.min-chunk": 0}
    with dask.config.set(options):
        y = fft.fft(da.from_array(a, chunks=256), chunks=256)
        assert close(y.compute(), np.fft.fft(a))
    assert (bool(owners), written["files"] > 0) == (memory, files)
    waiting: dict[int, set[Any]] = {}
    for owner, block in owners:
        waiting.setdefault(id(owner), set()).add(block)
    assert all(len(blocks) == 1 for blocks in waiting.values())
    owners.clear()
    # Workers hear of the end of a shuffle after it.
    until(lambda: not any(room.nbytes for room in rooms()))


def test_blocks_that_are_wanted_again_while_others_are_not_made(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their shards have gone from memory: the shuffle begins anew, and what comes out is right."""
    go_on = threading.Event()
    last = (15,)
    requested = Counter[str]()
    put_together = p2p.put_together
    reopened = shuffle.RechunkRun._restart

    def waiting(run: Any, number: int, block: tuple[int, ...], *rest: Any) -> np.ndarray:
        if block == last and number == len(run.plan.exchanges) - 1:
            assert go_on.wait(60)
        return put_together(run, number, block, *rest)

    async def noted(self: Any) -> None:
        requested["anew"] += 1
        go_on.set()
        await reopened(self)

    monkeypatch.setattr(p2p, "put_together", waiting)
    monkeypatch.setattr(shuffle.RechunkRun, "_restart", noted)
    a = RNG.standard_normal(4096)
    with dask.config.set({"bigfft.planner.min-chunk": 0}):
        y = fft.fft(da.from_array(a, chunks=256), chunks=256)
        futures = {future.key: future for future in distributed.futures_of(y.persist())}
        lost = futures.pop((y.name, 1))  # of another worker than the last one
        wait(lost)
        del lost
        again = y.blocks[1].persist()
        assert close(again.compute(), np.fft.fft(a)[256:512])
        assert close(y.compute(), np.fft.fft(a))
    assert go_on.is_set()
    assert requested["anew"]
    assert len(futures) == 15


def test_elsewhere_it_says_what_to_do() -> None:
    with dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        y = fft.fftn(blocks())
    with pytest.raises(CarrierError, match=r"bigfft\.exchange\.carrier"):
        y.compute(scheduler="sync")


MOVED = """
import warnings
import numpy as np
import distributed.shuffle._core as core
{change}
import dask, dask.array as da
from distributed import Client, LocalCluster
from dask_bigfft import fft

a = np.random.default_rng(0).standard_normal(1024)
with (
    LocalCluster(n_workers=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
    Client(cluster),
    dask.config.set({{"bigfft.exchange.carrier": "p2p"}}),
    warnings.catch_warnings(record=True) as caught,
):
    warnings.simplefilter("always")
    found = fft.fft(da.from_array(a, chunks=128)).compute()
assert np.allclose(found, np.fft.fft(a))
texts = [str(w.message) for w in caught if "peer-to-peer" in str(w.message)]
assert len(texts) == 1, texts
print("as tasks:", texts[0])
"""


@pytest.mark.parametrize("change", ["del core.P2PBarrierTask", "del core.ShuffleRun.receive"])
def test_moved_names_fall_back_to_tasks(change: str) -> None:
    # The worker's plugin uses the name, too: it is imported before the change.
    code = "import distributed.shuffle\n" + MOVED.format(change=change)
    assert "as tasks:" in python("-c", code, timeout=250).stdout

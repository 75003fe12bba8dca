"""Faults of a cluster of real processes, by phase and victim: the result is right, or an error.

A worker that comes to a phase waits there until the fault has hit its victim: itself (``actor``);
the worker that did the first task of all, which has opened the scratch folder or the shuffle
(``first``); another one, which holds other blocks (``other``); the scheduler or the client of a run
from file to file, which then goes on in another life. So every case is the same each time.

A case of each fault, victim and carrier runs always, the others are marked slow. `ci/faults`
runs all of them and writes a table.
"""

import itertools
import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from runs.resuming import complex_values, contents, files, stored, values_of
from support import close, local, slowed

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.testing.clusters import SETTINGS, Processes, run_on, started
from dask_bigfft.testing.traps import FAULTS, LONGEST, Board, remove_traps, set_trap, until

pytest.importorskip("zarr")

WORKERS = 3

#: Phases by carrier; `files` is a run from file to file with a scratch folder, which is kept.
PHASES = {
    "p2p": ("pack", "send", "barrier", "unpack", "round"),
    "tasks": ("pack", "round"),
    "disk": ("scratch_write", "barrier", "scratch_read", "round"),
    "files": ("source_read", "scratch_write", "barrier", "scratch_read", "sink_write"),
}

#: Who is hit, of the workers, and how; and of the rest, where a run can go on in another life.
VICTIMS = ("actor", "first", "other")
REST = ("scheduler", "client")
FAULTS_OF_REST = ("killed", "paused")

#: Carrier, phase, fault, victim.
GRID = [
    (carrier, *case)
    for carrier, phases in PHASES.items()
    for case in itertools.product(phases, FAULTS, VICTIMS)
] + [("files", *case) for case in itertools.product(PHASES["files"], FAULTS_OF_REST, REST)]

ALWAYS = {
    ("p2p", "unpack", "killed", "first"),
    ("p2p", "send", "cut", "other"),
    ("p2p", "barrier", "cut off", "actor"),
    ("tasks", "pack", "cut", "first"),
    ("disk", "scratch_write", "killed", "actor"),
    ("disk", "scratch_read", "paused", "first"),
    ("files", "sink_write", "killed", "client"),
    ("files", "scratch_write", "killed", "scheduler"),
    ("files", "source_read", "killed", "other"),
}
assert set(GRID) > ALWAYS


def cases(*carriers):
    """The cases of some carriers."""
    selected = [case for case in GRID if case[0] in carriers]
    return [
        pytest.param(
            *case,
            marks=() if case in ALWAYS else pytest.mark.slow,
            id="-".join(case).replace(" ", "_"),
        )
        for case in selected
    ]


def filled(cluster, client=None):
    """Return a cluster with others for workers that have ended; a client waits until all serve.

    One that has lost its scheduler or its connections may end while the client is waiting.
    """

    def complete():
        for _ in range(WORKERS - len(cluster.alive)):
            cluster.add_worker()
        with suppress(TimeoutError):
            if client is not None:
                client.wait_for_workers(WORKERS, 1)
            return cluster

    return until(complete)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Gives a cluster all of whose processes run: what is missing is begun anew."""
    clusters: list[Processes] = []
    for carrier in ("tasks", "disk"):  # compiles, once, what all processes load then
        options = {
            "bigfft.exchange.carrier": carrier,
            "scheduler": "sync",
            "bigfft.scratch.directory": str(tmp_path_factory.mktemp("scratch")),
        }
        with dask.config.set(options):
            fft.fft(da.ones(16 * 512, chunks=512)).compute()

    def found():
        if not clusters or not clusters[-1].scheduler.is_alive():
            clusters.append(Processes(tmp_path_factory.mktemp("cluster"), 0))
        return filled(clusters[-1])

    try:
        yield found
    finally:
        for cluster in clusters:
            cluster.close()


def trapped(
    cluster,
    client,
    board,
    phase,
):
    """Set the trap on all workers; return their processes."""
    filled(cluster, client)
    after = 0 if phase == "barrier" else 2
    pids = set(client.run(set_trap, phase, str(board.folder), after).values())
    assert len(pids) == WORKERS
    return pids


def hit(
    board,
    cluster,
    fault,
    victim,
    rest,
):
    """Let a fault hit the victim, now that a worker has come to the phase."""
    workers = {process.pid for process in cluster.alive}
    who = board.wait()
    assert set(who.values()) <= workers
    others = sorted(workers - set(who.values()))
    process = {**who, "other": others[0], **rest}[victim]
    board.strike(fault, process)
    if fault in ("cut", "cut off"):
        assert board.cut() > 0
    ends = fault in ("killed", "cut off")
    if ends and process in workers:
        (ended,) = [worker for worker in cluster.alive if worker.pid == process]
        ended.join(LONGEST)
        assert not ended.is_alive()
        cluster.add_worker()  # in its place, as a nanny does it


@pytest.mark.parametrize(("carrier", "phase", "fault", "victim"), cases("p2p", "tasks", "disk"))
def test_the_result_is_right(
    whole,
    carrier,
    phase,
    fault,
    victim,
    tmp_path,
):
    seed = zlib.crc32(f"{carrier} {phase} {fault} {victim}".encode())  # data, and so tasks, anew
    a = np.random.default_rng(seed).standard_normal(16 * 512)
    folder = tmp_path / "scratch"
    options = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(folder)}
    cluster = whole()
    board = Board(tmp_path / "board")
    with (
        dask.config.set({**SETTINGS, **options}),
        Client(scheduler_file=cluster.file, timeout=LONGEST) as client,
    ):
        trapped(cluster, client, board, phase)
        future = client.compute(fft.fft(da.from_array(a, chunks=512)))
        hit(
            board,
            cluster,
            fault,
            victim,
            {},
        )
        assert close(future.result(timeout=LONGEST), np.fft.fft(a))
        client.run(remove_traps)
        del future
        until(lambda: carrier != "disk" or not list(folder.iterdir()))


# --- runs from file to file -----------------------------------------------------------------

BLOCKS = 16
LENGTH = 2**12
ASKED = {"kind": "fft", "block_size": LENGTH * 16 // BLOCKS}
FLOOR = {"bigfft.planner.whole-axis-floor": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A folder with a source, and a result that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("files")
    values = stored(folder / "in.zarr", complex_values(LENGTH), (LENGTH // BLOCKS,))
    with dask.config.set({**FLOOR, "scheduler": "sync"}):
        dask_bigfft.run(folder / "in.zarr", folder / "out.zarr", **ASKED)
    assert close(values_of(folder / "out.zarr"), np.fft.fft(values))
    return folder


@pytest.mark.parametrize(("carrier", "phase", "fault", "victim"), cases("files"))
def test_the_result_of_a_run_is_the_same_to_the_bit(
    whole,
    undisturbed,
    carrier,
    phase,
    fault,
    victim,
    tmp_path,
):
    """At once, or after another run has gone on where one stopped."""
    cluster = whole()
    board = Board(tmp_path / "board")
    out = tmp_path / "out.zarr"
    requested = {**ASKED, "scratch": tmp_path / "scratch"}
    source = contents(undisturbed / "in.zarr")
    with Client(scheduler_file=cluster.file, timeout=LONGEST) as client:
        trapped(cluster, client, board, phase)
    said = tmp_path / "said"
    run = started(
        run_on,
        cluster.file,
        str(said),
        undisturbed / "in.zarr",
        out,
        **requested,
        settings=FLOOR,
    )
    hit(
        board,
        cluster,
        fault,
        victim,
        {"scheduler": cluster.scheduler.pid, "client": run.pid},
    )
    run.join(LONGEST)
    assert run.exitcode is not None
    if fault == "killed" and victim in REST:
        assert run.exitcode != 0
        assert victim == "client" or said.read_text()
        assert not out.exists()
        assert (tmp_path / "scratch/run.json").exists()
        with (
            dask.config.set({**SETTINGS, **FLOOR}),
            Client(scheduler_file=whole().file, timeout=LONGEST) as client,
        ):
            filled(whole(), client)
            dask_bigfft.run(
                undisturbed / "in.zarr",
                out,
                **requested,
                resume=True,
            )
    else:
        assert run.exitcode == 0, said.read_text()
    assert files(out) == files(undisturbed / "out.zarr")
    assert contents(undisturbed / "in.zarr") == source
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["board", "out.zarr", *(["said"] if said.exists() else [])]


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=() if phase == "scratch_write" else pytest.mark.slow)
        for phase in PHASES["files"]
    ],
)
def test_a_scheduler_that_is_restarted_ends_a_run(undisturbed, phase, tmp_path):
    """At the same address; the next run of the same client resumes it."""
    out = tmp_path / "out.zarr"
    board = Board(tmp_path / "board")
    requested = {**ASKED, "scratch": tmp_path / "scratch"}
    source = contents(undisturbed / "in.zarr")
    with (
        Processes(tmp_path / "cluster", WORKERS) as cluster,
        ThreadPoolExecutor(1) as thread,
        dask.config.set({**SETTINGS, **FLOOR}),
        Client(scheduler_file=cluster.file, timeout=LONGEST) as client,
    ):
        trapped(cluster, client, board, phase)
        run = thread.submit(
            dask_bigfft.run,
            undisturbed / "in.zarr",
            out,
            **requested,
        )
        hit(
            board,
            cluster,
            "killed",
            "scheduler",
            {"scheduler": cluster.scheduler.pid},
        )
        cluster.restart_scheduler()
        with pytest.raises(Exception, match=r"(?i)scheduler"):
            run.result(timeout=60)
        assert not out.exists()
        assert (tmp_path / "scratch/run.json").exists()
        filled(cluster, client)
        dask_bigfft.run(
            undisturbed / "in.zarr",
            out,
            **requested,
            resume=True,
        )
    assert files(out) == files(undisturbed / "out.zarr")
    assert contents(undisturbed / "in.zarr") == source
    assert not (tmp_path / "scratch").exists()


# --- what no other worker can mend ----------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_an_error(whole):
    """Nothing looks complete: the caller learns which task killed the workers."""
    a = np.random.default_rng(5).standard_normal(16 * 512)
    with (
        Client(scheduler_file=whole().file, timeout=LONGEST) as client,
        dask.config.set({"bigfft.exchange.carrier": "p2p"}),
    ):

        def end(block):
            if block.size:
                os._exit(1)
            return block

        filled(whole(), client)
        x = da.from_array(a, chunks=512).map_blocks(end, dtype=float)
        future = client.compute(fft.fft(x))
        while not future.done():
            whole()
            time.sleep(0.1)
        with pytest.raises(Exception, match="died while running it"):
            future.result()
        client.cancel(future)  # its other blocks would go on killing workers
        time.sleep(0.2)
        filled(whole(), client)
        assert close(fft.fft(da.from_array(a, chunks=512)).compute(), np.fft.fft(a))


@pytest.mark.slow
def test_a_cluster_that_restarts_is_an_error_and_then_all_is_well():
    """Where nothing is kept, nobody may wait for ever."""
    a = np.random.default_rng(6).standard_normal(64 * 512)
    with local(processes=True) as client, dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        x = da.from_array(a, chunks=512)
        future = client.compute(fft.fft(slowed(x, 0.2)))
        time.sleep(1.0)
        client.restart()
        with pytest.raises(Exception, match=r"(?i)cancel"):
            future.result(timeout=60)
        assert close(fft.fft(x).compute(), np.fft.fft(a))

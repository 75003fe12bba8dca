"""The same answers on a cluster of real processes, whichever way the graph gets there."""

import pickle
from collections.abc import Callable, Iterator

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client, worker_client
from support import close, forked_workers, local

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.carriers import choice
from dask_bigfft.carriers.resident import ON_GPUS
from dask_bigfft.errors import CarrierError
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.machine import environment

RNG = np.random.default_rng(7)
FIELD = RNG.standard_normal((24, 20, 18))
REFERENCE = np.fft.rfftn(FIELD)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with (
        forked_workers(),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


def blocks() -> da.Array:
    return da.from_array(FIELD, chunks=(6, 20, 9))


@pytest.mark.parametrize(
    ("carrier", "storage", "is_shared", "has_buffers"),
    [
        ("auto", "auto", True, True),
        ("shared", "memory", True, False),
        ("tasks", "memory", False, False),
        ("p2p", "memory", False, True),
        ("disk", "disk", False, False),
    ],
)
def test_plans_count_on_what_the_carrier_offers(
    carrier: str, storage: str, is_shared: bool, has_buffers: bool, cluster: LocalCluster
) -> None:
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        assert environment.possible_storage() == storage
        assert environment.current_machine(None).shared == is_shared
        with Client(cluster):
            assert (environment.current_machine(None).buffers is not None) == has_buffers


def test_shifts_alone_and_beside_a_transform(client: Client) -> None:
    wanted = np.fft.fftshift(FIELD)
    for chunks in ((7, 20, 5), (12, 10, 18)):
        shifted = fft.fftshift(da.from_array(FIELD, chunks=chunks))
        np.testing.assert_array_equal(shifted.compute(), wanted)
    shifted = fft.fftshift(fft.rfftn(fft.ifftshift(blocks())), (0, 1))
    expected = np.fft.fftshift(np.fft.rfftn(np.fft.ifftshift(FIELD)), (0, 1))
    assert close(shifted.compute(), expected)


def test_built_without_a_client_computed_on_one(cluster: LocalCluster) -> None:
    y = fft.rfftn(blocks())
    with Client(cluster):
        assert close(y.compute(), REFERENCE)


@pytest.mark.parametrize("carrier", ["auto", f"{ON_GPUS}auto"])
def test_optimised_without_a_client_says_how_to_rebuild(
    cluster: LocalCluster, carrier: str
) -> None:
    x = blocks()
    (y,) = dask.optimize(transformed_array(x, dask_bigfft.plan(x, "rfftn"), carrier))
    with Client(cluster), pytest.raises(CarrierError, match=r"bigfft.exchange.carrier"):
        y.compute()


def test_named_carrier_survives_optimisation(cluster: LocalCluster) -> None:
    with dask.config.set({"bigfft.exchange.carrier": "tasks"}):
        (y,) = dask.optimize(fft.rfftn(blocks()))
    with Client(cluster):
        assert close(y.compute(), REFERENCE)
    assert close(y.compute(scheduler="sync"), REFERENCE)


def test_shared_is_refused_between_processes(client: Client) -> None:
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        y = fft.rfftn(blocks())
    with pytest.raises(CarrierError, match="cluster"):
        y.compute()


def computed_by(scheduler: str) -> np.ndarray:
    return np.asarray(fft.rfftn(blocks()).compute(scheduler=scheduler))


def optimised() -> np.ndarray:
    (y,) = dask.optimize(fft.rfftn(blocks()))
    with worker_client():
        return np.asarray(y.compute())


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_task_may_compute_in_its_own_process(client: Client, scheduler: str) -> None:
    assert close(client.submit(computed_by, scheduler).result(), REFERENCE)


def test_optimised_in_a_task_and_sent_out(client: Client) -> None:
    assert close(client.submit(optimised).result(), REFERENCE)


LINE = RNG.standard_normal(4096)
SPECTRUM = np.fft.fft(LINE)


def line() -> da.Array:
    """Many shards, which shuffles carry if nothing speaks against it."""
    return da.from_array(LINE, chunks=256)


def as_a_dict(y: da.Array) -> np.ndarray:
    return np.concatenate(get_client().get(dict(y.dask), y.__dask_keys__()))


#: What turns a graph into tasks before anybody computes it.
EARLY: dict[str, Callable[[da.Array], np.ndarray]] = {
    "optimize": lambda y: dask.optimize(y)[0].compute(),
    "optimize and persist": lambda y: dask.optimize(y)[0].persist().compute(),
    "argument of delayed": lambda y: dask.delayed(np.conj)(y).compute().conj(),
    "in a list": lambda y: dask.delayed(lambda arrays: arrays[0])([y]).compute(),
    "to_delayed": lambda y: np.concatenate(dask.compute(*y.to_delayed())),
    "as a dict": as_a_dict,
}

#: Dask gives these tasks other names, which the barrier of a shuffle cannot have.
RENAMED = {"argument of delayed", "in a list"}


@pytest.mark.parametrize(
    ("how", "few"),
    [(how, 1 << 16) for how in EARLY] + [(how, 0) for how in EARLY if how not in RENAMED],
)
def test_turned_into_tasks_before_it_is_computed(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    few: int,
) -> None:
    monkeypatch.setattr(choice, "FEW_SHARDS", few)
    assert close(EARLY[how](fft.fft(line())), SPECTRUM)


def test_turned_into_tasks_for_one_and_computed_by_another(client: Client) -> None:
    y = fft.fft(line())
    for scheduler in ("threads", None, "sync"):
        assert close(y.compute(scheduler=scheduler), SPECTRUM)
        (early,) = dask.optimize(y)
        for other in (None, "threads"):
            assert close(early.compute(scheduler=other), SPECTRUM)
    with dask.config.set(scheduler="threads"):
        (early,) = dask.optimize(y)
        assert any("bigfft_common" in str(key) for key in early.dask)  # rounds work in place
        assert close(early.compute(), SPECTRUM)


def test_a_copy_is_computed_beside_a_scheduler(client: Client) -> None:
    """A graph that was sent is taken for the scheduler's where one runs; the error says so."""
    y = pickle.loads(pickle.dumps(fft.fft(line())))
    assert close(y.compute(), SPECTRUM)
    with pytest.raises(CarrierError, match=r"bigfft\.exchange\.carrier"):
        y.compute(scheduler="threads")
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        y = pickle.loads(pickle.dumps(fft.fft(line())))
    assert close(y.compute(scheduler="threads"), SPECTRUM)


def test_shared_works_in_one_process() -> None:
    with local(1, threads=2), dask.config.set({"bigfft.exchange.carrier": "shared"}):
        assert close(fft.rfftn(blocks()).compute(), REFERENCE)


@pytest.mark.parametrize("optimize_graph", [True, False])
def test_persist_slice_and_chain(client: Client, optimize_graph: bool) -> None:
    spectrum = fft.rfftn(blocks(), order="transposed").persist(optimize_graph=optimize_graph)
    back = fft.irfftn(
        spectrum,
        s=FIELD.shape,
        axes=(0, 1, 2),
        order="transposed",
    )
    assert close(back.compute(optimize_graph=optimize_graph), FIELD)
    part = fft.rfftn(blocks())[3:7, ::2, 1]
    assert close(part.compute(optimize_graph=optimize_graph), REFERENCE[3:7, ::2, 1])


def test_several_results_at_once(client: Client) -> None:
    x = blocks()
    assert dask_bigfft.plan(x, "rfftn").machine.workers == 2
    half_spectrum, spectrum = dask.compute(fft.rfftn(x), fft.fftn(x, axes=(0, 2)))
    assert close(half_spectrum, REFERENCE)
    assert close(spectrum, np.fft.fftn(FIELD, axes=(0, 2)))


def test_bluestein(client: Client) -> None:
    a = RNG.standard_normal(10007)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1000}):
        y = fft.fft(da.from_array(a, chunks=1000))
        assert "*" in dask_bigfft.plan(da.from_array(a, chunks=1000), "fft").notation
    assert close(y.compute(), np.fft.fft(a))

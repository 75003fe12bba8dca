"""A distributed whose shuffle is not as it is known: exchanges use tasks, and say why."""

import pickle
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from support import close, local

from dask_bigfft import fft
from dask_bigfft.carriers import p2p, shuffle
from dask_bigfft.errors import CarrierError, FallbackWarning

X = np.random.default_rng(17).standard_normal((24, 30))


@pytest.fixture
def client():
    p2p._tried_shuffle.cache_clear()
    with local() as client, dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        yield client
    p2p._tried_shuffle.cache_clear()


def spectrum():
    return fft.fft2(da.from_array(X, chunks=(6, 30)))


def shuffles_of(client):
    """Whether the scheduler has had tasks of a shuffle."""
    prefixes = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes))
    return any("shuffle-barrier" in prefix for prefix in prefixes)


def changed(*_, **__):
    raise TypeError("got an unexpected keyword argument 'loop'")


def test_as_it_is_known(client):
    assert close(spectrum().compute(), np.fft.fft2(X))
    assert shuffles_of(client)


def test_a_constructor_that_has_changed_is_found_before_the_first_exchange(client, monkeypatch):
    monkeypatch.setattr(shuffle.ArrayRechunkRun, "__init__", changed)
    with pytest.warns(FallbackWarning, match=r"shuffle.*'loop'.*tasks"):
        transformed = spectrum().compute()
    assert close(transformed, np.fft.fft2(X))
    assert not shuffles_of(client)


@pytest.mark.parametrize("name", ["add_partition", "get_output_partition"])
def test_a_change_that_only_workers_meet(client, monkeypatch, name):
    """The first computation says so; the scheduler builds all others of tasks."""
    assert p2p.shuffle_module() is not None
    monkeypatch.setattr(shuffle.ArrayRechunkRun, name, changed)
    with pytest.raises(CarrierError, match=r"'loop'.*compute once more"):
        spectrum().compute()
    assert shuffles_of(client)
    assert close((2 * spectrum()).compute(), 2 * np.fft.fft2(X))
    client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.task_prefixes.clear())
    assert close(fft.fft2(da.from_array(X + 1, chunks=(6, 30))).compute(), np.fft.fft2(X + 1))
    assert not shuffles_of(client)


def test_threads_do_not_try_a_shuffle_that_has_changed(monkeypatch):
    """A graph that was pickled might be one on a scheduler: there is none in this process."""
    monkeypatch.setattr(shuffle.ArrayRechunkRun, "__init__", changed)
    p2p._tried_shuffle.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transformed = pickle.loads(pickle.dumps(spectrum())).compute()
    p2p._tried_shuffle.cache_clear()
    assert close(transformed, np.fft.fft2(X))


def test_a_constructor_that_has_changed_on_workers_alone():
    """Their trial fails before their first exchange, and the scheduler cannot know."""

    def change():
        shuffle.ArrayRechunkRun.__init__ = changed
        p2p._tried_shuffle.cache_clear()

    with local(processes=True) as client, dask.config.set({"bigfft.exchange.carrier": "p2p"}):
        client.run(change)
        with pytest.raises(CarrierError, match="compute once more"):
            spectrum().compute()
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.task_prefixes.clear())
        assert close((2 * spectrum()).compute(), 2 * np.fft.fft2(X))
        assert not shuffles_of(client)


def test_an_error_of_the_users_blocks_is_no_change(client):
    def fail(block):
        raise TypeError("broken")

    x = da.from_array(X, chunks=(6, 30)).map_blocks(fail, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(TypeError, match="broken"):
        fft.fft2(x).compute()
    assert p2p.shuffle_module() is not None

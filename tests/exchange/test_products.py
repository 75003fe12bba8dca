"""What is worked out once: the copies of a block, and those of exchanges that are alike."""

import dask
import dask.array as da
import numpy as np
import pytest
from exchange.layouts import pairs
from hypothesis import given

from dask_bigfft import fft, plan
from dask_bigfft.exchange import product, shards
from dask_bigfft.exchange.product import Product
from dask_bigfft.exchange.shards import ExchangeMap


@pytest.fixture(autouse=True)
def nothing_kept():
    shards._shared_map.cache_clear()
    yield
    shards._shared_map.cache_clear()


@pytest.fixture
def made(monkeypatch):
    """How often pieces of an axis were worked out, and copies of a block."""
    counted = {"pieces": 0, "copies": 0}
    table, rows = shards.piece_table, Product.rows

    def counting_table(*arguments, **keywords):
        counted["pieces"] += 1
        return table(*arguments, **keywords)

    def counting_rows(*arguments):
        counted["copies"] += 1
        return rows(*arguments)

    monkeypatch.setattr(shards, "piece_table", counting_table)
    monkeypatch.setattr(Product, "rows", counting_rows)
    return counted


def computed(y):
    """A result, worked out in this thread."""
    with dask.config.set(scheduler="synchronous"):
        return y.compute()


@given(pair=pairs(3))
def test_blocks_that_are_met_are_those_of_all_copies(pair):
    exchange = ExchangeMap(*pair)
    for block in exchange.target.indices():
        for tables, _ in exchange.tables(block):
            found = Product(tables, False)
            chosen = zip(tables, found.chosen, strict=True)
            met = list(zip(*(table.sources[i].tolist() for table, i in chosen), strict=True))
            assert [found.blocks[i] for i in found.which] == met
            assert found.blocks == sorted(set(met))
            assert found.size == int(found.counts.prod(axis=1).sum())


@pytest.mark.parametrize(
    ("name", "shape", "chunks"),
    [("rfft", (1000,), 100), ("fft2", (60, 60), (20, 20)), ("irfft", (501,), 50)],
)
def test_another_array_in_such_chunks_finds_copies_worked_out(made, name, shape, chunks):
    rng = np.random.default_rng(0)
    for again in (False, True):
        x = rng.standard_normal(shape)
        made.update(pieces=0, copies=0)
        y = computed(getattr(fft, name)(da.from_array(x, chunks=chunks)))
        np.testing.assert_allclose(y, getattr(np.fft, name)(x), atol=1e-10)
        assert (made["pieces"] == 0) is again
        assert (made["copies"] == 0) is again


def test_blocks_that_lie_otherwise_are_copied_otherwise():
    """The same chunks, in memory the other way round."""
    x = np.random.default_rng(0).standard_normal((60, 60))
    for values in (x, np.asfortranarray(x), x[::-1], x):
        y = computed(fft.fft(da.from_array(values, chunks=(20, 20), asarray=False), axis=0))
        np.testing.assert_allclose(y, np.fft.fft(values, axis=0), atol=1e-10)


def test_exchanges_of_many_blocks_are_kept_for_nobody(made, monkeypatch):
    monkeypatch.setattr(shards, "SHARED_BLOCKS", 4)
    for _ in range(2):
        made.update(pieces=0)
        computed(fft.fft(da.ones(1000, chunks=100)))
        assert made["pieces"]


@pytest.mark.parametrize("most", [0, 60, 200, 1 << 13])
def test_few_copies_are_remembered(monkeypatch, most):
    monkeypatch.setattr(product, "MOST_KEPT", most)
    exchange = plan(da.ones(1000, chunks=100, dtype=complex), "fft").exchanges[0]
    map_ = ExchangeMap(exchange.source, exchange.target)
    for block in [*exchange.target.indices()] * 2:
        (found,) = product.products_of(map_, block, packed=False)
        ((tables, conjugate),) = map_.tables(block)
        assert found.blocks == Product(tables, conjugate).blocks
        kept = sum(product.EACH + len(p.which) for known in map_.known.values() for p in known)
        assert kept == map_.known_size <= most
    assert bool(map_.known) is (most > 0)

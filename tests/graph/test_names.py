"""Names of tasks tell rounds and barriers on dask's own pages, also after optimisation.

Those pages show what `key_split` leaves of a key: everything before the token.
"""

import re
from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import key_split

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.graph.dask_private import Alias

OURS = re.compile(r"bigfft_(filter\d+_)?(plan|unpack|(round|barrier|pack|common)\d+)(-[a-z_-]+)?")


def prefixes(y, optimized=True):
    """How many tasks each prefix has, aliases left out."""
    graph = dict((dask.optimize(y)[0] if optimized else y).__dask_graph__())
    return Counter(key_split(key) for key, task in graph.items() if not isinstance(task, Alias))


def field():
    return da.random.default_rng(0).standard_normal((64, 64), chunks=(8, 64))


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_every_round_and_barrier_has_a_prefix_of_its_own(carrier, optimized):
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        x = da.random.default_rng(0).standard_normal(4096, chunks=512)
        found = prefixes(fft.fft(x), optimized)
        plan = dask_bigfft.plan(x, "fft")
    ours = {name: count for name, count in found.items() if "bigfft" in name}
    between = {f"bigfft_{'barrier' if carrier == 'shared' else 'pack'}{i}" for i in (1, 2, 3)}
    if carrier == "shared":
        between.add("bigfft_common2")  # the blocks before the second round lie together
    assert set(ours) == {"bigfft_plan", "bigfft_round1", "bigfft_round2", "bigfft_unpack"} | between
    assert ours["bigfft_round1"] == plan.rounds[0].target.blocks


@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_what_is_fused_in_comes_after_the_round(carrier):
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        found = prefixes(abs(fft.ifft2(fft.fft2(field() * 2 + 1) * 3)) ** 2)
    ours = {name for name in found if "bigfft" in name}
    assert all(OURS.fullmatch(name) for name in ours), ours
    assert {"bigfft_round1", "bigfft_round2-mul", "bigfft_round2-pow"} <= ours
    assert not {name for name in found if name.startswith(("abs", "pow", "mul"))}


@pytest.mark.parametrize("carrier", ["shared", "tasks"])
def test_slices_and_sums_keep_the_rounds_apart(carrier):
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        found = prefixes(fft.rfft2(field(), order="transposed")[::2, 3:9].sum())
    ours = {name for name in found if "bigfft" in name}
    assert all(OURS.fullmatch(name) for name in ours), ours
    assert {re.match(r"bigfft_\w+", name)[0] for name in ours} >= {
        "bigfft_round1",
        "bigfft_round2",
        "bigfft_plan",
    }


def test_filters_of_bluestein_are_named_apart():
    a = np.random.default_rng(2).standard_normal(10007)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1000}):
        found = prefixes(fft.fft(da.from_array(a, chunks=1000)))
    ours = {name for name in found if "bigfft" in name}
    assert all(OURS.fullmatch(name) for name in ours), ours
    assert any(name.startswith("bigfft_filter0_round") for name in ours)
    assert any(name.startswith("bigfft_round") for name in ours)


def test_two_transforms_have_groups_of_their_own():
    one, two = fft.fft2(field()), fft.fft2(field() + 1)
    tokens = {y.name.rpartition("-")[2] for y in (one, two)}
    names = {
        str(key[0])
        for key in dict(one.__dask_graph__()) | dict(two.__dask_graph__())
        if isinstance(key, tuple)
    }
    groups = {name.rpartition("-")[2] for name in names if name.startswith("bigfft")}
    assert groups == tokens
    assert len(tokens) == 2

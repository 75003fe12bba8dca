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
from dask_bigfft.dask_private import Alias

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
        counts = prefixes(fft.fft(x), optimized)
        plan = dask_bigfft.plan(x, "fft")
    ours = {name: count for name, count in counts.items() if "bigfft" in name}
    between = {f"bigfft_{'barrier' if carrier == 'shared' else 'pack'}{i}" for i in (1, 2, 3)}
    if carrier == "shared":
        between.add("bigfft_common2")  # the blocks before the second round lie together
    assert set(ours) == {"bigfft_plan", "bigfft_round1", "bigfft_round2", "bigfft_unpack"} | between
    assert ours["bigfft_round1"] == plan.rounds[0].target.blocks


def fused():
    return abs(fft.ifft2(fft.fft2(field() * 2 + 1) * 3)) ** 2


def sliced():
    return fft.rfft2(field(), order="transposed")[::2, 3:9].sum()


def filtered():
    return fft.fft(da.from_array(np.random.default_rng(2).standard_normal(10007), chunks=1000))


EXPECTED = [
    (fused, {"bigfft_round1", "bigfft_round2-mul", "bigfft_round2-pow"}),
    (sliced, {"bigfft_plan", "bigfft_round1"}),
    (filtered, {"bigfft_round1", "bigfft_filter0_round1"}),
]


@pytest.mark.parametrize("carrier", ["shared", "tasks"])
@pytest.mark.parametrize(("build", "expected"), EXPECTED)
def test_names_begin_with_the_round_whatever_is_fused_in(build, expected, carrier):
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.planner.whole-axis-floor": 1000}
    with dask.config.set({**settings, "bigfft.capture": "never"}):
        names = prefixes(build())
    ours = {name for name in names if "bigfft" in name}
    assert all(OURS.fullmatch(name) for name in ours), ours
    assert expected <= ours
    assert not {name for name in names if name.startswith(("abs", "pow", "mul"))}

"""Blocks are worked on in the tiles that plans reckon with, of which few are there at a time."""

import tracemalloc
from dataclasses import replace
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
import dask_bigfft.graph.run as graph_run
from dask_bigfft import fft
from dask_bigfft.decomposition import tiles
from dask_bigfft.decomposition.layout import AxisLayout, Layout, plain, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import axis_program
from dask_bigfft.decomposition.tiles import tile_bytes_of
from dask_bigfft.graph.run import Run
from dask_bigfft.kernels import cpu
from dask_bigfft.kernels.incoming import Whole
from dask_bigfft.kernels.libraries import available, get_library
from dask_bigfft.kernels.lying import Lying
from dask_bigfft.kernels.verify import verified_round
from dask_bigfft.planner import traffic
from dask_bigfft.planner.cost import TILES, joints_in, model_of
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import LibrarySpeeds, Profile
from dask_bigfft.planner.traffic import tiles_of
from dask_bigfft.testing.strategies import random_array

#: One that answers in the memory it transforms, and one that answers elsewhere as well.
KERNELS = [name for name in available() if name in ("scipy", "ducc0")]

ROWS, COLUMNS = ((1, 512),), ((0, 256),)

#: Bytes that Python's own objects may take while a block is worked on.
OBJECTS = 48 << 10


class Counted:
    """What transforms for a library, and how often it was called."""

    def __init__(self, backend):
        self.backend, self.calls = backend, 0

    def __getattr__(self, name):
        found = getattr(self.backend, name)
        if name not in ("c2c", "r2c", "c2r"):
            return found

        def counted(*arguments):
            self.calls += 1
            return found(*arguments)

        return counted


def planned(threads, kernel, rounds, together=True, shape=(256, 512)):
    """A lazy transform in four blocks, and its plan."""
    x = da.zeros(shape, chunks=(shape[0] // 4, shape[1]), dtype=complex)
    axes = tuple(sorted({axis for named in rounds for axis, _ in named}))
    keywords = {"axes": axes, "rounds": [dict(r) for r in rounds], "kernel": kernel,
                "device": "cpu"}
    with dask.config.set({"num_workers": threads, "bigfft.exchange.in-place": together}):
        return fft.fftn(x, **keywords), dask_bigfft.plan(x, "fftn", **keywords)


def calls(y, kernel, together, monkeypatch):
    """How often a transform calls its library, one thread at a time."""
    library = get_library(kernel)
    counted = Counted(library._backend)
    monkeypatch.setattr(graph_run, "get_library", lambda _: replace(library, _backend=counted))
    with dask.config.set({"bigfft.exchange.in-place": together}):
        y.compute(scheduler="sync")
    return counted.calls


def expected_calls(plan):
    """The same by the model: a call for each tile, in rounds of one step."""
    known = LibrarySpeeds(plan.kernel, "complex128", 1e9, 1e9,
                          supports_out=get_library(plan.kernel).supports_out)
    plan = replace(plan, machine=replace(plan.machine, profile=Profile(libraries=(known,))))
    model, joints = model_of(plan), joints_in(plan)
    found, before = 0, plan.source
    for number, round_ in enumerate(plan.rounds):
        after = (*joints.exchanges, None)[number + 1]
        writes = after if after is not None and after.home == number + 1 else None
        inside = joints.inside[number] is not None
        flow = model.flow(before, round_, joints.exchanges[number], writes, inside)
        found += flow.tiles * round_.source.blocks
        before = round_.target
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("rounds", [(ROWS, COLUMNS), (COLUMNS, ROWS)])
def test_blocks_are_cut_as_the_model_says(monkeypatch, kernel, together, rounds):
    monkeypatch.setattr(tiles, "TILE_BYTES", 1 << 16)
    few, many = (planned(threads, kernel, rounds, together) for threads in (2, 16))
    found = [calls(y, kernel, together, monkeypatch) for y, _ in (few, many)]
    assert found == [expected_calls(plan) for _, plan in (few, many)]
    assert found[0] > 2 * found[1] or (kernel != "scipy" and found == [8, 8])


def test_tiles_are_those_of_the_plan_wherever_it_runs():
    """Some libraries round other numbers of lines otherwise; a run that is resumed has its plan."""
    _, plan = planned(16, "scipy", (((1, 64),),), shape=(64, 64))
    with dask.config.set(scheduler="threads", num_workers=2):
        assert Run(Plan.from_json(plan.to_json())).library.beside == 16


SHAPE = (64, 480)

#: A block on its way in: as it came, and where it lies, with its result in its place or elsewhere.
WAYS = {
    "whole": lambda values, place: Whole(values),
    "lying": lambda values, place: Lying(values),
    "inside": lambda values, place: Lying(values, inside=True),
    "elsewhere": lambda values, place: Lying(values, into=place),
}


def round_along(axis, kind):
    """A round over one whole axis of a block of 480 kiB, half of that for real values."""
    (step,) = axis_program(axis, SHAPE[axis], (SHAPE[axis],), kind=kind, sign=-1).steps
    axes = [plain(n, (n,)) for n in SHAPE]
    axes[axis] = AxisLayout((whole(step.source),))
    layout = Layout(tuple(axes))
    return Round((step,), layout, transformed(layout, (step,)))


def beside(work, *known):
    """Bytes that some work takes at most, the second time, beside its result and what is known."""
    work()
    tracemalloc.start()
    try:
        done = work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - done.nbytes * (not any(np.may_share_memory(done, one) for one in known))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["c2c", "r2c", "c2r"])
@pytest.mark.parametrize(("threads", "tile"), [(2, 1 << 15), (16, 1 << 14), (64, 1 << 13)])
def test_no_more_tiles_than_forecasts_of_memory_have(
    monkeypatch, kernel, kind, threads, tile
):
    """Blocks are smaller than what the arena lends, so all of it is seen."""
    monkeypatch.setattr(tiles, "TILE_BYTES", tile)
    for module in (cpu, traffic):
        monkeypatch.setattr(module, "ROW_BYTES", 64)
    library, right = get_library(kernel).among(threads), np.dtype("c16")
    before, after = (np.dtype("f8") if kind == real else right for real in ("r2c", "c2r"))
    most, size = [], tile_bytes_of(threads)
    for axis in (0, 1):
        round_ = round_along(axis, kind)
        assert tiles_of(round_, right.itemsize, library.supports_out, threads) is not None
        kept = random_array(round_.source.shape((0, 0)), before, 1)
        if kind == "c2r":
            kept = np.fft.rfft(random_array(SHAPE, after, 1), axis=axis)
        place = np.empty(round_.target.shape((0, 0)), after)
        for way in WAYS if kind == "c2c" else ("whole", "lying", "elsewhere"):
            values = kept.copy()

            def work(mode, round_=round_, way=way, values=values, place=place, kept=kept):
                values[...] = kept
                incoming = WAYS[way](values, place)
                if mode == "none":
                    return cpu.run_round(round_, (0, 0), incoming, library, after)
                return verified_round(mode, round_, (0, 0), lambda: incoming, library, after)

            most += [beside(partial(work, mode), values, place)
                     for mode in ("none", "energy", "checksum")]
    assert max(most) <= TILES * size + OBJECTS
    assert max(most) >= size / 4

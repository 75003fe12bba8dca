"""Real axes that are cut into blocks, whose first digit alone is larger than the card."""

import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import distance, engine, values

from dask_bigfft import fft
from dask_bigfft.devices.jobs import Job, Source
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.operations import Strided
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.front import plan
from dask_bigfft.testing.devices import simulated_devices

#: Length, chunks, the digits of the rounds, and bytes of the device as a part of a digit's.
CUT = [
    (16384, 2048, (2048, 8), 3, "{X1} {X2}"),
    (16380, 2048, (2340, 7), 3, "{X1} {X2}"),  # digits of both kinds: even, odd
    (14175, 1576, (2025, 7), 2, "{X1} {X2}"),
    (14175, 4000, (2025, 7), 10, "{X1} {X2} {X3}"),
]


def first_round(x, chunks, digits, name, **keywords):
    """Jobs of all blocks of the first round, and the index n2 of each of their rows."""
    found = plan(da.from_array(x, chunks), name, rounds=digits, **keywords)
    round_ = found.rounds[0]
    (step,) = round_.steps
    assert step.kind == "r2c"
    assert step.twiddle == len(x)
    for block in round_.source.indices():
        rows = round_.source.axes[0].intervals(*block)[0]
        yield Job(round_, block, *found.dtypes[:2]), range(*rows)


@pytest.mark.parametrize("name", ["rfft", "ihfft"])
@pytest.mark.parametrize(("n", "chunks", "digits", "part", "notation"), CUT)
def test_scheme(name, n, chunks, digits, part, notation):
    """Against the formula: FFTs of the real columns, times the twiddle of their places."""
    x, (first, second), seed = values(n, dtype="f8"), digits, part
    columns, nbytes = x.reshape(digits).T, 8 * first // part
    sign = -1 if name == "rfft" else 1
    spectra = scipy.fft.rfft(columns) if sign < 0 else scipy.fft.rfft(columns).conj()
    places = np.outer(np.arange(second), np.arange(first // 2 + 1))
    expected = spectra * np.exp(sign * 2j * np.pi * places / n)
    norm = "backward" if sign < 0 else "forward"
    for job, rows in first_round(x, chunks, digits, name, norm=norm):
        simulated = engine(nbytes, seed, limits=PieceLimits(nbytes, least=256, run_nbytes=64))
        mine = columns[rows.start : rows.stop]
        got = simulated.run(job, Source(lambda mine=mine: np.array(mine)))
        assert distance(got, expected[rows.start : rows.stop]) < 1e-14
        assert simulated.device.peak <= nbytes
        found, _ = simulated.pieces(job)
        assert found.notation == notation
        crossings = found.schedule.crossings
        copies = [span.operation for span in simulated.device.trace]
        works = [list(found.works(number)) for number in range(len(crossings))]
        assert copies.count("h2d") == sum(len(work.comes) for all_ in works for work in all_)
        assert copies.count("d2h") == sum(len(work.goes) for all_ in works for work in all_)
        stored = sum(move.array.size for work in works[-1] for move in work.goes)
        assert stored == len(rows) * (first // 2 + 1)  # every value once, some of them mirrored
        for crossing, mine in zip(crossings, works, strict=True):
            runs, width = crossing.reads
            assert runs * width == max(work.source.size for work in mine)


def test_the_twiddle_of_a_mirror_image_is_exact():
    """It is one factor more for what is mirrored, and nothing for what is not."""
    x = values(16384, dtype="f8")
    job, _ = next(first_round(x, 2048, (2048, 8), "rfft"))
    found, _ = engine(1 << 13, limits=PieceLimits(1 << 13, least=256)).pieces(job)
    works = list(found.works(len(found.schedule.crossings) - 1))
    turned = [
        done.op.by for work in works for done in work.computations
        if isinstance(done.op, Strided) and done.op.by.conjugate
    ]
    assert turned
    for op in turned:
        (twiddle,) = op.twiddles
        assert twiddle.modulus == 16384
        (length,) = twiddle.left
        assert length.stride == 2048


@pytest.mark.parametrize(("order", "single"), [("natural", False), ("transposed", True)])
@pytest.mark.parametrize(("n", "chunks", "digits", "part", "notation"), CUT)
def test_whole_transforms_stay_on_the_card(n, chunks, digits, part, notation, order, single):
    x = values(n, dtype="f4" if single else "f8")
    nbytes = 16 * digits[0] // part
    events, lazy = [], da.from_array(x, chunks)
    add_sink(sink := lambda event, numbers: events.append(event))
    keywords = {"rounds": digits, "order": order}
    try:
        with simulated_devices(nbytes, limits=PieceLimits(nbytes, least=256)) as (device,):
            y = fft.rfft(lazy, device="gpu", **keywords)
            got = y.compute(scheduler="sync")
            assert device.peak <= nbytes
    finally:
        remove_sink(sink)
    assert "fallback" not in events
    host = fft.rfft(lazy, device="cpu", **keywords).compute(scheduler="sync")
    eps = 1e-6 if single else 1e-14
    assert distance(got, host) < eps
    if order == "natural":
        assert distance(got, scipy.fft.rfft(x)) < eps


def test_beside_other_axes():
    """Both are transformed in the first round: the real axis alone, then the other one."""
    x, events = values(6, 4 * 1001, dtype="f8"), []
    add_sink(sink := lambda event, numbers: events.append(event))
    limits = PieceLimits(1 << 13, least=256)
    try:
        with simulated_devices(1 << 13, limits=limits) as (device,):
            lazy = da.from_array(x, (6, 1001))
            rounds = [{0: 6, 1: 1001}, {1: 4}]
            y = fft.rfft2(lazy, device="gpu", rounds=rounds)
            got = y.compute(scheduler="sync")
            assert device.peak <= 1 << 13
    finally:
        remove_sink(sink)
    assert "fallback" not in events
    assert distance(got, scipy.fft.rfft2(x)) < 1e-14

"""Rounds in common memory: the same answers, less memory, and never a block worked on twice."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from graph.keeping import Keeping
from support import close, heard, in_threads

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import CarrierError
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.memory import default_arena
from dask_bigfft.memory.pages import Buffer, populate
from dask_bigfft.testing.strategies import random_array

CASES = [
    ("fft", (2**14,), (2**10,), {}),
    ("ifft", (3 * 5 * 7 * 11 * 13,), (1001,), {}),
    ("fft", (2**14,), (2**10,), {"norm": "ortho", "chunks": 1000}),
    ("fft", (2**14,), (2**10,), {"order": "transposed"}),
    ("fft", (1000,), (1000,), {}),
    ("fft", (2**14,), (2**10,), {"rounds": [{0: 16}, {0: 32}, {0: -1}]}),
    ("fft2", (256, 192), (17, 192), {}),
    ("fft2", (512, 4096), (64, 4096), {}),
    ("ifft2", (256, 192), (32, 192), {"chunks": (64, 64)}),
    ("fft2", (256, 192), (32, 64), {"norm": "forward"}),
    ("fftn", (32, 48, 64), (8, 12, 64), {}),
    ("rfftn", (32, 48, 64), (4, 48, 64), {}),
    ("irfftn", (32, 48, 33), (4, 48, 33), {}),
    ("fft", (40, 512, 3), (40, 64, 3), {"axis": 1}),
]


def data(kind, shape, dtype="c16"):
    return random_array(shape, {"c8": "f4", "c16": "f8"}[dtype] if kind == "rfftn" else dtype, 5)


def reference(kind, a, extras):
    options = {k: v for k, v in extras.items() if k in ("norm", "axis")}
    spectrum = getattr(scipy.fft, kind)(a, **options)
    if extras.get("order") == "transposed":
        spectrum = spectrum[dask_bigfft.transposed_index(a.size)]
    return spectrum


@pytest.mark.parametrize("kernel", usable())
@pytest.mark.parametrize(("kind", "shape", "chunks", "extras"), CASES)
def test_the_answers_are_right_and_the_input_stays(
    kernel,
    kind,
    shape,
    chunks,
    extras,
):
    for dtype, threads in (("c16", 2), ("c8", 2), ("c16", 1)):
        a = data(kind, shape, dtype)
        original = a.copy()
        a.flags.writeable = False
        y = getattr(fft, kind)(da.from_array(a, chunks=chunks), kernel=kernel, **extras)
        with dask.config.set(scheduler="threads", num_workers=threads):
            for _ in range(2):  # once more, afresh
                transformed = y.compute()
                assert type(transformed) is np.ndarray
                assert transformed.dtype == y.dtype
                assert transformed.flags.c_contiguous
                assert close(transformed, reference(kind, a, extras))
                transformed[...] = 0  # it is the caller's
        np.testing.assert_array_equal(a, original)


CHUNKED = [
    ("fft", (2**21,), (2**17,), "none"),  # a split axis, in common memory
    ("fft2", (1024, 1024), (64, 1024), "none"),
    ("fft2", (1024, 1024), (64, 1024), "energy"),  # blocks of their own
    ("fft", (2**20 - 3,), (2**16,), "none"),  # a prime length, convolved
]


def assert_prefaults_are_parts_of_rounds(rows):
    """Require that no prefault in a report takes longer than the round that it belongs to."""
    whole = {row.index: row.seconds for row in rows if not row.is_part}
    assert all(row.seconds <= whole[row.index] for row in rows if row.phase == "prefault")


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(("kind", "shape", "chunks", "verify"), CHUNKED)
def test_fresh_memory_is_faulted_in_by_all_threads_and_no_more_than_forecast(
    kind,
    shape,
    chunks,
    verify,
    wanted,
):
    """Before anybody writes there: each event says how much, and for which round."""
    settings = {
        "bigfft.memory.prefault": wanted,
        "bigfft.verify": verify,
        "num_workers": 2,
    }
    with dask.config.set(settings, scheduler="threads"):
        x = da.from_array(data(kind, shape), chunks=chunks)
        forecast = dask_bigfft.plan(x, kind).expected
        y = getattr(fft, kind)(x)
        default_arena().trim()
        before = default_arena().counters()
        with heard("prefault") as events:
            transformed = y.compute()
    assert close(transformed, reference(kind, x.compute(), {}))
    after = default_arena().counters()
    fresh = after.fresh_bytes - before.fresh_bytes
    faulted = sum(numbers["nbytes"] for _, numbers in events)
    assert faulted <= fresh <= forecast.peak_host
    assert_prefaults_are_parts_of_rounds(dask_bigfft.report(y).runs[0].rows)
    of_rounds = [numbers["index"] for _, numbers in events if "plan" in numbers]
    assert all(index >= 1 for index in of_rounds)  # others are of the whole result
    assert bool(of_rounds) == wanted
    if wanted and populate(Buffer(1 << 20).memory):
        assert faulted >= 0.5 * transformed.nbytes
    else:
        assert not events


@pytest.mark.parametrize("carrier", ["auto", "disk"])
def test_computations_at_the_same_time_have_memory_or_files_of_their_own(carrier, tmp_path):
    a = data("fft2", (256, 256))
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with dask.config.set({**settings, "scheduler": "threads"}):
        y = fft.fft2(da.from_array(a, chunks=(32, 256)))
        spectra = in_threads(4, lambda number: y.compute())
    assert all(close(spectrum, scipy.fft.fft2(a)) for spectrum in spectra)
    assert list(tmp_path.iterdir()) == []


def test_results_that_depend_on_one_another():
    a = data("fft2", (256, 256))
    y = fft.fft2(da.from_array(a, chunks=(32, 256)))
    early = dask.optimize(y)[0]  # knows nothing of what is made of it later
    shifted = fft.fftshift(y)
    expected = scipy.fft.fft2(a)
    for left, right in ((y, shifted), (early, shifted), (early, y), (early, early + 1 - 1)):
        pair = dask.compute(left, right, scheduler="threads")
        wanted = [np.fft.fftshift(expected) if z is shifted else expected for z in (left, right)]
        assert all(map(close, pair, wanted))
    both = dask.compute(*dask.optimize(y), *dask.optimize(y + 1), *dask.optimize(y * 2))
    assert close(both[0], expected)
    assert close(both[1], expected + 1)
    assert close(both[2], expected * 2)


# --- the memory itself ------------------------------------------------------------------------


def test_blocks_kept_from_another_computation_are_not_used():
    a = data("fft2", (64, 64))
    y = fft.fft2(da.from_array(a, chunks=(8, 64)))
    with Keeping("round1"):
        assert close(y.compute(scheduler="threads"), scipy.fft.fft2(a))
        with pytest.raises(CarrierError, match="kept from another computation"):
            y.compute(scheduler="threads")
    assert close(y.compute(scheduler="threads"), scipy.fft.fft2(a))

"""Every refusal of the front door: raised when the graph is built, with argument and value."""

import re
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from support import assert_refused, refusals

from dask_bigfft import fft, plan, run, signal, transposed_index
from dask_bigfft.errors import ArgumentTypeError, PlanError

X = da.zeros((8, 12), chunks=(4, 3), dtype=complex)
R = da.zeros((8, 12), chunks=(4, 3))
LINE = da.zeros(64, chunks=16, dtype=complex)
UNKNOWN = da.from_array(np.arange(9.0), chunks=3)
UNKNOWN = UNKNOWN[UNKNOWN > 3]
OBJECTS = da.zeros(4).astype(object)
MASKED = da.ma.masked_equal(da.zeros(4), 0)
MATRIX = np.zeros((2, 2)).view(np.matrix)
SPARSE = da.ones((4, 4)).map_blocks(sparse.csr_array)


class DataArray:
    """Looks like xarray's, which need not be installed."""

    __module__ = "xarray.core.dataarray"

    def __array__(self, dtype=None, copy=None):
        return np.zeros(4)


def named(name, a=X, function=fft.fft, **others):
    return lambda value: function(a, **{name: value}, **others)


def transposed(name):
    return lambda arguments: getattr(fft, name)(LINE, *arguments, order="transposed")


ORDER = {"order": "transposed"}

#: Values that only count as true.
NO_FLAGS = ["no", 1, [True]]

#: Call, the argument that the error names, values that it refuses, and values of a wrong type.
REFUSED = [
    (fft.fft, "a.chunks", [UNKNOWN], []),
    (fft.fftshift, "a.chunks", [UNKNOWN], []),
    (
        fft.fft,
        "a",
        [da.zeros((3, 0)), np.zeros(0), np.float64(3)],
        [MATRIX, np.ma.zeros(4), MASKED, sparse.eye_array(4), SPARSE, DataArray(), dask.delayed(1)],
    ),
    (fft.fft2, "a", [da.zeros((0, 4))], ["x.zarr", Path("x.npy")]),
    (fft.fftn, "a", [da.ones(())], []),
    (fft.irfft, "a", [da.ones(1)], []),
    (fft.hfft, "a", [da.ones(1)], []),
    (
        fft.fft,
        "a.dtype",
        [],
        [OBJECTS, ["a", "b"], *(np.zeros(4, dtype) for dtype in ("O", "S1", "M8[s]", "f8,f8"))],
    ),
    (fft.dct, "a.dtype", [], [OBJECTS]),
    *[(function, "a.dtype", [], [X]) for function in (fft.rfft, fft.rfftn, fft.ihfft, fft.ihfftn)],
    (named("n"), "n", [0, -1, 2**63], [4.0, "4"]),
    (named("s", function=fft.fft2), "s", [(4, 0), (4, -2), (2**70, 4)], [(4, 2.5), 2.5]),
    (named("s", function=fft.fftn, axes=(0, 1)), "s", [(4,)], []),
    (named("s", function=fft.fftn, axes=()), "s", [(4,)], []),
    (named("axis"), "axis", [2, -3], [0.5, (0, 1)]),
    (named("axes", function=fft.fftn), "axes", [(0, 2), (0, 0), (1, -1)], [("x",)]),
    (named("axes", R, fft.rfftn), "axes", [()], []),
    (named("axes", function=fft.ifftshift), "axes", [2, (0, -2)], []),
    (fft.fft2, "axes", [da.ones(4)], []),
    (named("norm"), "norm", ["unitary", 1], []),
    (named("norm", function=fft.fftn, axes=()), "norm", ["o"], []),
    (named("kind", function=plan), "kind", ["dct", 3], []),
    (named("n", function=plan, kind="fftn"), "n", [], [4]),
    (named("s", function=plan, kind="fft"), "s", [], [(4,)]),
    (named("axes", function=plan, kind="rfft"), "axes", [], [(0,)]),
    (named("out"), "out", [], [np.zeros(3)]),
    (named("limit"), "limit", [], [3]),
    (named("chunk", function=plan), "chunk", [], [3]),
    (named("order"), "order", ["reversed"], [1]),
    (named("order", function=fft.fft2), "order", [("natural",)], []),
    (named("variant"), "variant", ["radix", 2], []),
    (named("variant", LINE[:24]), "variant", ["pease"], []),
    (named("kernel"), "kernel", ["fftpack"], [[]]),
    (named("device"), "device", ["tpu", "hybrid", "gpu"], []),
    (named("device", X.astype("G")), "device", ["gpu"], []),
    (named("device_memory_limit"), "device_memory_limit", ["much"], []),
    (named("verify"), "verify", ["crc"], []),
    (named("planner"), "planner", ["guess"], []),
    (
        named("chunks"),
        "chunks",
        [((4, 3), 12), ((8,),), "whole", 0, (-4, 12), ((np.nan, 4), 12), 2.5, {2: 4}, object()],
        [],
    ),
    (
        named("rounds", LINE),
        "rounds",
        [[0, 8], [1, 64], [{0: 4}, {0: 8}], [16, 8], [3, -1], [-1, -1]],
        [3, {0: 8}, "8x8", [], [8, {}], [{0: 8.0}], [{"x": 8}]],
    ),
    (
        named("rounds", function=fft.fft2),
        "rounds",
        [[{0: 8}], [{0: 8, 1: 12, -1: 12}], [{5: 8}]],
        [[8, 12]],
    ),
    (named("rounds"), "rounds", [[{0: 8, 1: 12}]], []),
    (named("digits", LINE, **ORDER), "digits", [(3, 4), (), {1: (8, 8)}], [5, "ab", (8, 8.0)]),
    (named("digits", LINE), "digits", [], [(8, 8)]),
    (named("rounds", R, fft.rfft2), "rounds", [[{0: 8}, {1: 12}]], []),
    (named("rounds", function=fft.irfft2, s=(8, 22)), "rounds", [[{1: 22}, {0: 8}]], []),
    (named("rounds", LINE, variant="pease"), "rounds", [[4, 16], [16, 4], [2, 32]], []),
    (
        named("memory_limit", LINE),
        "memory_limit",
        [64, "plenty", "", 0, "-1 GiB", np.inf, float("nan")],
        [True, [1]],
    ),
    (named("memory_limit", LINE, rounds=[8, 8]), "memory_limit", [64], []),
    (transposed("ifft"), "a", [(36,), (100,)], []),
    (transposed("irfft"), "n", [()], []),
    (transposed("irfft"), "a", [(64,)], []),
    (fft.fftfreq, "n", [0, 2**63], [2.5]),
    (fft.rfftfreq, "n", [0, 2**63], [2.5]),
    (lambda d: fft.fftfreq(8, d), "d", [0.0], ["1s"]),
    (lambda chunks: fft.fftfreq(8, chunks=chunks), "chunks", [((3,),)], []),
    (lambda order: fft.fftfreq(8, order=order), "order", ["x"], []),
    (lambda digits: fft.rfftfreq(8, digits=digits, **ORDER), "digits", [(2, 3)], [2]),
    (lambda digits: fft.fftfreq(8, digits=digits), "digits", [], [(2, 4)]),
    (fft.next_fast_len, "target", [-1], ["8"]),
    (named("type", R, fft.dct), "type", [5], [2.0, "2"]),
    (named("norm", R, fft.dct), "norm", ["orto"], []),
    (named("n", R, fft.dct), "n", [0], [2.5]),
    (named("axis", R, fft.dct), "axis", [2], []),
    (named("s", LINE, fft.dctn), "s", [(3, 4)], []),
    (named("axes", R, fft.dctn), "axes", [()], []),
    (named("order", R, fft.dct), "order", [], ["transposed"]),
    (named("workers", R, fft.dct), "workers", [], ["two"]),
    (named("overwrite_x", LINE), "overwrite_x", [], NO_FLAGS),
    (lambda real: fft.next_fast_len(7, real), "real", [], NO_FLAGS),
    (lambda real: transposed_index(2**31, real=real), "real", [], NO_FLAGS),
    (named("orthogonalize", R, fft.dct), "orthogonalize", [], NO_FLAGS),
    (named("onesided", R, signal.power_spectrum), "onesided", [], NO_FLAGS),
    (named("return_onesided", R, signal.welch, nperseg=4), "return_onesided", [], NO_FLAGS),
]


@pytest.mark.parametrize(("call", "argument", "value", "kind"), refusals(REFUSED))
def test_bad_input_is_refused_by_name(
    call,
    argument,
    value,
    kind,
):
    assert_refused(call, argument, value, kind)


#: Calls with an unknown keyword, and what the error says was meant; None for no guess.
MEANT = [
    (lambda **unknown: signal.lowpass(R, 0.1, **unknown), "pixel_size", "`spacing`"),
    (lambda **unknown: signal.lowpass(R, 0.1, **unknown), "fs", "`spacing`=1/fs"),
    (lambda **unknown: signal.lowpass(R, **unknown), "cutof", "`cutoff`"),
    (lambda **unknown: signal.welch(R, **unknown), "d", "`fs`=1/d"),
    (lambda **unknown: signal.power_spectrum(R, **unknown), "fs", "`d`=1/fs"),
    (lambda **unknown: signal.power_spectrum(R, **unknown), "metres", "a method of `.bigfft`"),
    (lambda **unknown: signal.stft(R, **unknown), "window", "`win`"),
    (lambda **unknown: fft.fftn(X, **unknown), "axis", "`axes`"),
    (lambda **unknown: fft.fft(X, **unknown), "metres", "a method of `.bigfft`"),
    (lambda **unknown: fft.fft(X, **unknown), "nonsense", None),
    (lambda **unknown: fft.dct(R, **unknown), "memory_limits", "`memory_limit`"),
    (lambda **unknown: fft.fftfreq(8, **unknown), "spacing", "`d`"),
    (lambda **unknown: plan(X, "fft", **unknown), "chunk", "`chunks`"),
    (lambda **unknown: plan(R, "lowpass", cutoff=1, **unknown), "widht", "`width`"),
    (lambda **unknown: run("in.zarr", "out.zarr", **unknown), "d", "`spacing` or `fs`=1/d"),
    (lambda **unknown: run("in.zarr", "out.zarr", **unknown), "windows", None),
]


@pytest.mark.parametrize(("call", "keyword", "meant"), MEANT)
def test_the_error_for_an_unknown_keyword_has_the_known_ones_and_what_was_meant(
    call, keyword, meant
):
    with pytest.raises(ArgumentTypeError, match=f"^`{keyword}`=3 ") as error:
        call(**{keyword: 3})
    message = str(error.value)
    assert message.startswith(f"`{keyword}`=3 is not allowed: need one of the keywords ")
    assert "chunks" in message
    if meant is None:
        assert "did you mean" not in message
    else:
        assert re.search(rf"; did you mean {meant}.*\?$", message)


def test_a_prime_over_many_chunks_in_little_memory_tells_how_much_it_needs():
    with pytest.raises(PlanError, match=r"at least [\d.]+ [kMGT]iB"):
        fft.fft(da.zeros(10007, chunks=1000, dtype=complex), memory_limit="200 kB")
    with pytest.raises(ValueError, match="type 1"):
        fft.dct(R[:, :1], 1)

"""Every refusal of the front door: raised when the graph is built, with names and numbers."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import ArgumentTypeError, BigFFTError, PlanError

X = da.zeros((8, 12), chunks=(4, 3), dtype=complex)
R = da.zeros((8, 12), chunks=(4, 3))
LINE = da.zeros(64, chunks=16, dtype=complex)
PRIME = da.zeros(10007, chunks=1000, dtype=complex)
UNKNOWN = da.from_array(np.arange(9.0), chunks=3)
UNKNOWN = UNKNOWN[UNKNOWN > 3]


def call(name, a, *args, **kwargs):
    return lambda: getattr(fft, name)(a, *args, **kwargs)


def plan(*args, **kwargs):
    return lambda: dask_bigfft.plan(*args, **kwargs)


def under(settings, function):
    def run():
        with dask.config.set(settings):
            return function()

    return run


class DataArray:
    """Looks like xarray's, which need not be installed."""

    __module__ = "xarray.core.dataarray"

    def __array__(self, dtype=None, copy=None):
        return np.zeros(4)


#: Arguments that are true or false, each with what takes it.
FLAGS = {
    "overwrite_x": lambda flag: fft.fft(LINE, overwrite_x=flag),
    "real": lambda flag: fft.next_fast_len(7, flag),
    "orthogonalize": lambda flag: fft.dct(R, orthogonalize=flag),
    "onesided": lambda flag: dask_bigfft.signal.power_spectrum(R, onesided=flag),
    "return_onesided": lambda flag: dask_bigfft.signal.welch(R, nperseg=4, return_onesided=flag),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["no", 1, [True]])
def test_what_only_counts_as_true_is_refused(name, value):
    with pytest.raises(ArgumentTypeError, match=rf"`{name}`="):
        FLAGS[name](value)
    for flag in (True, False, np.True_):
        FLAGS[name](flag)


# what is wrong: call, class, argument, and words that tell the value and what is allowed
TABLE = {
    # the array
    "chunks unknown": (call("fft", UNKNOWN), ValueError, "a.chunks", "axis 0", "compute_chunk"),
    "chunks unknown, shift": (call("fftshift", UNKNOWN), ValueError, "a.chunks", "axis 0"),
    "length zero": (call("fft", da.zeros((3, 0))), ValueError, "a", "axis 1 of length 0"),
    "length zero of NumPy": (call("fft", np.zeros(0)), ValueError, "a", "length 0"),
    "length zero, one of two": (
        call("fft2", da.zeros((0, 4))), ValueError, "a", "axis 0 of length"
    ),
    "irfft of one entry": (call("irfft", da.ones(1)), ValueError, "a", "length 1", "2 entries"),
    "hfft of one entry": (call("hfft", da.ones(1)), ValueError, "a", "length 1", "2 entries"),
    "no axes": (call("fft", np.float64(3)), ValueError, "a", "without axes", "one dimension"),
    "no axes, several": (call("fftn", da.ones(())), ValueError, "a", "without axes"),
    "objects": (call("fft", np.array([None, 1])), TypeError, "a.dtype", "object", "complex"),
    "objects in dask": (call("fft", da.zeros(4).astype(object)), TypeError, "a.dtype", "object"),
    "objects, cosines": (call("dct", da.zeros(4).astype(object)), TypeError, "a.dtype", "object"),
    "strings": (call("fft", ["a", "b"]), TypeError, "a.dtype", "<U1", "number"),
    "bytes": (call("ifftn", np.array([b"a"])), TypeError, "a.dtype", "|S1", "number"),
    "dates": (call("fft", np.zeros(4, "M8[s]")), TypeError, "a.dtype", "datetime64", "number"),
    "records": (call("fft", np.zeros(4, "f8,f8")), TypeError, "a.dtype", "f0", "number"),
    "complex to rfft": (call("rfft", X), TypeError, "a.dtype", "complex128", "real"),
    "complex to rfftn": (call("rfftn", X), TypeError, "a.dtype", "complex128", "real"),
    "complex to ihfft": (call("ihfft", X), TypeError, "a.dtype", "complex128", "real"),
    "complex to ihfftn": (call("ihfftn", [1j]), TypeError, "a.dtype", "complex128", "real"),
    "matrix": (call("fft", np.zeros((2, 2)).view(np.matrix)), TypeError, "a", "matrix"),
    "masked": (call("fft", np.ma.zeros(4)), TypeError, "a", "MaskedArray", "mask"),
    "masked in dask": (
        call("fft", da.ma.masked_equal(da.zeros(4), 0)), TypeError, "a", "MaskedArray"
    ),
    "sparse": (call("fft", sparse.eye_array(4)), TypeError, "a", "scipy.sparse", "todense"),
    "sparse in dask": (
        call("fft", da.ones((4, 4)).map_blocks(sparse.csr_array)), TypeError, "a", "csr_array"
    ),
    "DataArray": (call("fft", DataArray()), TypeError, "a", "xarray", ".data"),
    "delayed": (call("fft", dask.delayed(1)), TypeError, "a", "Delayed", "dask.array.Array"),
    # lengths
    "n zero": (call("fft", X, 0), ValueError, "n", "=0", "at least 1"),
    "n negative": (call("rfft", R, -1), ValueError, "n", "=-1", "at least 1"),
    "n too large": (call("rfft", R, 2**63), ValueError, "n", f"={2**63}", f"most {2**62}"),
    "n not whole": (call("fft", X, 4.0), TypeError, "n", "4.0", "integer"),
    "n a string": (call("fft", X, "4"), TypeError, "n", "'4'", "integer"),
    "s zero": (call("fft2", X, (4, 0)), ValueError, "s", "=0", "at least 1", "-1"),
    "s below -1": (call("fft2", X, (4, -2)), ValueError, "s", "=-2", "at least 1"),
    "s too large": (call("fft2", X, (2**70, 4)), ValueError, "s", f"={2**70}", f"most {2**62}"),
    "s not whole": (call("fft2", X, (4, 2.5)), TypeError, "s", "2.5", "integer"),
    "s too short": (call("fftn", X, (4,), axes=(0, 1)), ValueError, "s", "(4,)", "axes (2)"),
    "s no sequence": (call("fft2", X, 2.5), TypeError, "s", "2.5", "sequence"),
    # axes
    "axis too high": (call("fft", X, axis=2), ValueError, "axis", "=2", "-2..1"),
    "axis too low": (call("fft", X, axis=-3), ValueError, "axis", "=-3", "-2..1"),
    "axis not whole": (call("fft", X, axis=0.5), TypeError, "axis", "0.5", "integer"),
    "axis None": (call("fft", X, axis=(0, 1)), TypeError, "axis", "(0, 1)", "integer"),
    "axes too high": (call("fftn", X, axes=(0, 2)), ValueError, "axes", "=2", "-2..1"),
    "axes of one": (call("fft2", da.ones(4)), ValueError, "axes", "=-2", "-1..0"),
    "axes repeated": (call("fftn", X, axes=(0, 0)), ValueError, "axes", "(0, 0)", "once"),
    "axes repeated by sign": (call("fft2", X, axes=(1, -1)), ValueError, "axes", "(1, -1)", "once"),
    "axes empty": (call("rfftn", R, axes=()), ValueError, "axes", "()", "one axis"),
    "axes empty, s": (call("fftn", X, (4,), axes=()), ValueError, "s", "(4,)", "axes (0)"),
    "axes empty, norm": (call("fftn", X, axes=(), norm="o"), ValueError, "norm", "'o'", "'ortho'"),
    "axes not whole": (call("fftn", X, axes=("x",)), TypeError, "axes", "'x'", "integer"),
    "shifted axes": (call("fftshift", X, 2), ValueError, "axes", "=2", "-2..1"),
    "shifted twice": (call("ifftshift", X, (0, -2)), ValueError, "axes", "(0, -2)", "once"),
    # names
    "norm": (call("fft", X, norm="unitary"), ValueError, "norm", "'unitary'", "'ortho'"),
    "norm no name": (call("fftn", X, norm=1), ValueError, "norm", "=1", "'backward'"),
    "kind": (plan(X, "dct"), ValueError, "kind", "'dct'", "rfftn"),
    "kind no name": (plan(X, 3), ValueError, "kind", "=3", "fft2"),
    "plan of n": (plan(X, "fftn", n=4), TypeError, "n", "=4", "s and axes"),
    "plan of s": (plan(X, "fft", s=(4,)), TypeError, "s", "(4,)", "n and axis"),
    "plan of axes": (plan(X, "rfft", axes=(0,)), TypeError, "axes", "(0,)", "n and axis"),
    "out": (call("fft", X, out=np.zeros(3)), TypeError, "out", "ndarray", "None"),
    "keyword": (call("fft", X, limit=3), TypeError, "limit", "=3", "memory_limit"),
    "keyword of plan": (plan(X, "fft", chunk=3), TypeError, "chunk", "=3", "chunks"),
    # extras
    "order": (call("fft", X, order="reversed"), ValueError, "order", "'reversed'", "'transposed'"),
    "order no name": (call("fft", X, order=1), TypeError, "order", "=1", "'natural'"),
    "order of one axis": (call("fft2", X, order=("natural",)), ValueError, "order", "('natural',)"),
    "order in settings": (
        under({"bigfft.order": "sorted"}, call("fft", X)), ValueError, "bigfft.order", "'sorted'"
    ),
    "variant": (call("fft", X, variant="radix"), ValueError, "variant", "'radix'", "stockham"),
    "variant no name": (call("fft", X, variant=2), ValueError, "variant", "=2", "pease"),
    "kernel": (call("fft", X, kernel="fftpack"), ValueError, "kernel", "'fftpack'", "scipy"),
    "kernel no name": (call("fft", X, kernel=[]), TypeError, "kernel", "[]", "FFT library"),
    "device": (call("fft", X, device="tpu"), ValueError, "device", "'tpu'", '"cpu"'),
    "device beside": (call("fft", X, device="hybrid"), ValueError, "device", "'hybrid'"),
    "device absent": (call("fft", X, device="gpu"), ValueError, "device", "'gpu'", "pip install"),
    "device in settings": (
        under({"bigfft.device": "tpu"}, call("fft", X)), ValueError, "bigfft.device", "'tpu'"
    ),
    "device's long double": (
        call("fft", X.astype("G"), device="gpu"), ValueError, "device", "'gpu'"
    ),
    "device_memory_limit": (
        call("fft", X, device_memory_limit="much"), ValueError, "device_memory_limit", "'much'"
    ),
    "overwrite_x": (call("fft", X, overwrite_x=1), TypeError, "overwrite_x", "=1", "True"),
    "chunks do not add up": (call("fft", X, chunks=((4, 3), 12)), ValueError, "chunks", "(8, 12)"),
    "chunks of one axis": (call("fft", X, chunks=((8,),)), ValueError, "chunks", "(8, 12)"),
    "chunks named": (call("fft", X, chunks="whole"), ValueError, "chunks", "'whole'", "(8, 12)"),
    "chunks zero": (call("fft", X, chunks=0), ValueError, "chunks", "=0", "(8, 12)"),
    "chunks negative": (call("fft", X, chunks=(-4, 12)), ValueError, "chunks", "-4", "(8, 12)"),
    "chunks unknown wanted": (
        call("fft", X, chunks=((np.nan, 4), 12)), ValueError, "chunks", "nan"
    ),
    "chunks not whole": (call("fft", X, chunks=2.5), ValueError, "chunks", "2.5", "(8, 12)"),
    "chunks of axis 2": (call("fft", X, chunks={2: 4}), ValueError, "chunks", "{2: 4}", "-2..1"),
    "chunks an object": (call("fft", X, chunks=object()), ValueError, "chunks", "object"),
    # rounds
    "rounds no sequence": (call("fft", LINE, rounds=3), TypeError, "rounds", "=3", "mapping"),
    "rounds a mapping": (call("fft", LINE, rounds={0: 8}), TypeError, "rounds", "{0: 8}"),
    "rounds a string": (call("fft", LINE, rounds="8x8"), TypeError, "rounds", "'8x8'", "mapping"),
    "rounds empty": (call("fft", LINE, rounds=[]), TypeError, "rounds", "[]", "mapping"),
    "round empty": (call("fft", LINE, rounds=[8, {}]), TypeError, "rounds", "{}", "mapping"),
    "round a number": (call("fft2", X, rounds=[8, 12]), TypeError, "rounds", "[8, 12]", "mapping"),
    "factor not whole": (call("fft", LINE, rounds=[{0: 8.0}]), TypeError, "rounds", "8.0"),
    "axis not whole in rounds": (call("fft", LINE, rounds=[{"x": 8}]), TypeError, "rounds", "'x'"),
    "factor zero": (call("fft", LINE, rounds=[0, 8]), ValueError, "rounds", "[0, 8]", "at least 1"),
    "factor one": (call("fft", LINE, rounds=[1, 64]), ValueError, "rounds", "(1, 64)", "2 each"),
    "factors too small": (
        call("fft", LINE, rounds=[{0: 4}, {0: 8}]), ValueError, "rounds", "(4, 8)"
    ),
    "factors too large": (call("fft", LINE, rounds=[16, 8]), ValueError, "rounds", "64", "128"),
    "factor does not divide": (call("fft", LINE, rounds=[3, -1]), ValueError, "rounds", "(3, -1)"),
    "factor left open twice": (call("fft", LINE, rounds=[-1, -1]), ValueError, "rounds", "one of"),
    "axis left out": (call("fft2", X, rounds=[{0: 8}]), ValueError, "rounds", "of axis 1"),
    "axis twice": (call("fft2", X, rounds=[{0: 8, 1: 12, -1: 12}]), ValueError, "rounds", "-1: 12"),
    "axis not there": (call("fft2", X, rounds=[{5: 8}]), ValueError, "rounds", "(0, 1)", "5 is"),
    "axis not transformed": (call("fft", X, rounds=[{0: 8, 1: 12}]), ValueError, "rounds", "(1,)"),
    "real axis late": (call("rfft2", R, rounds=[{0: 8}, {1: 12}]), ValueError, "rounds", "axis 1"),
    "real axis early": (
        call("irfft2", X, s=(8, 22), rounds=[{1: 22}, {0: 8}]), ValueError, "rounds", "axis 1"
    ),
    "rounds in settings": (
        under({"bigfft.rounds": "8 8"}, call("fft", X)), ValueError, "bigfft.rounds", "'8 8'"
    ),
    "pease of unlike factors": (
        call("fft", LINE, rounds=[4, 16], variant="pease"), ValueError, "rounds", "(4, 16)"
    ),
    "pease of no power": (
        call("fft", LINE[:24], variant="pease"), ValueError, "variant", "'pease'"
    ),
    # memory
    "memory too small": (call("fft", LINE, memory_limit=64), PlanError, "memory_limit", "64 B"),
    "memory too small in settings": (
        under({"bigfft.memory-limit": 64}, call("fftn", X)), PlanError, "memory_limit", "64 B"
    ),
    "memory too small, rounds named": (
        call("fft", LINE, memory_limit=64, rounds=[8, 8]), PlanError, "memory_limit", "64 B"
    ),
    "memory unparsable": (
        call("fft", X, memory_limit="plenty"), ValueError, "memory_limit", "'plenty'"
    ),
    "memory empty": (call("fft", X, memory_limit=""), ValueError, "memory_limit", "''", "2 GiB"),
    "memory zero": (call("fft", X, memory_limit=0), ValueError, "memory_limit", "=0", "positive"),
    "memory negative": (
        call("fft", X, memory_limit="-1 GiB"), ValueError, "memory_limit", "-1 GiB"
    ),
    "memory infinite": (call("fft", X, memory_limit=np.inf), ValueError, "memory_limit", "inf"),
    "memory nan": (call("fft", X, memory_limit=float("nan")), ValueError, "memory_limit", "nan"),
    "memory true": (call("fft", X, memory_limit=True), TypeError, "memory_limit", "True", "bytes"),
    "memory a list": (call("fft", X, memory_limit=[1]), TypeError, "memory_limit", "[1]", "bytes"),
    # transposed input
    "transposed cropped": (
        call("ifft", LINE, 36, order="transposed"), ValueError, "a", "axis 0 of length 64"
    ),
    "transposed padded": (
        call("ifft", LINE, 100, order="transposed"), ValueError, "a", "length 64"
    ),
    "transposed half spectrum, no length": (
        call("irfft", LINE, order="transposed"), ValueError, "n", "None"
    ),
    "transposed half spectrum, other length": (
        call("irfft", LINE, 64, order="transposed"), ValueError, "a", "length 64"
    ),
    # frequencies
    "frequencies of none": (lambda: fft.fftfreq(0), ValueError, "n", "=0", "at least 1"),
    "frequencies of a fraction": (lambda: fft.rfftfreq(2.5), TypeError, "n", "2.5", "integer"),
    "no distance": (lambda: fft.fftfreq(8, 0.0), ValueError, "d", "0.0", "other than 0"),
    "distance no number": (lambda: fft.fftfreq(8, "1s"), TypeError, "d", "'1s'", "number"),
    "frequencies in chunks": (lambda: fft.fftfreq(8, chunks=((3,),)), ValueError, "chunks", "(8,)"),
    "frequencies in order": (lambda: fft.fftfreq(8, order="x"), ValueError, "order", "'x'"),
    "digits that do not fit": (
        lambda: fft.fftfreq(8, order="transposed", digits=(2, 3)), ValueError, "digits", "(2, 3)"
    ),
    "digits no sequence": (
        lambda: fft.rfftfreq(8, order="transposed", digits=2), TypeError, "digits", "=2"
    ),
    "digits in natural order": (lambda: fft.fftfreq(8, digits=(2, 4)), TypeError, "digits", "None"),
    "fast length": (lambda: fft.next_fast_len(-1), ValueError, "target", "=-1", "at least 1"),
    "fast length no integer": (lambda: fft.next_fast_len("8"), TypeError, "target", "'8'"),
}


@pytest.mark.parametrize("what", TABLE)
def test_bad_input_is_refused_with_its_name_and_value(what):
    function, kind, argument, *words = TABLE[what]
    with pytest.raises(kind) as caught:
        function()
    assert isinstance(caught.value, BigFFTError), "refused by somebody else"
    message = str(caught.value)
    assert message.startswith(f"`{argument}`="), message
    assert " is not allowed: need " in message
    for word in words:
        assert word in message, message


def test_a_prime_over_many_chunks_in_little_memory_tells_how_much_it_needs():
    with pytest.raises(PlanError, match=r"at least [\d.]+ [KMGT]iB"):
        fft.fft(PRIME, memory_limit="200 kB")

"""`scipy.fft` with our backend: arguments, types, refusals, and who gets what.

SciPy's own tests run in `test_scipy_suite`. Of these have no counterpart in either: those of other
array libraries and of compiled internals; that arguments are overwritten or not, bit for bit,
beyond that ours are only read; lists, which are no dask arrays and go on to SciPy.
"""

import dask.array as da
import numpy as np
import pytest
import scipy.fft

import dask_bigfft
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

RNG = np.random.default_rng(1760)
ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
MANY = [name + ending for name in ONE for ending in ("2", "n")]
COSINES = [i + name + n for name in ("dct", "dst") for i in ("", "i") for n in ("", "n")]
REAL_INPUT = ("rfft", "ihfft")


@pytest.fixture(autouse=True)
def backend(request):
    if "nobackend" in request.keywords:
        yield
        return
    with scipy.fft.set_backend(dask_bigfft.scipy_backend):
        yield


def inputs(
    name,
    shape,
    chunks,
    dtype="d",
):
    x = RNG.standard_normal(shape)
    if not name.startswith(REAL_INPUT) and name not in COSINES:
        x = x + 1j * RNG.standard_normal(shape)
    x = x.astype(np.result_type(dtype, "F") if x.dtype.kind == "c" else dtype)
    return x, da.from_array(x, chunks=chunks)


def check(name, x, a, *args, tolerance=1e-14, **kwargs):
    function = getattr(scipy.fft, name)
    lazy = function(a, *args, **kwargs)
    wanted = function(x, *args, **kwargs)
    assert isinstance(lazy, da.Array)
    assert isinstance(wanted, np.ndarray)
    assert lazy.dtype == wanted.dtype
    values = lazy.compute()
    assert (values.shape, values.dtype) == (wanted.shape, wanted.dtype)
    assert np.linalg.norm(values - wanted) <= tolerance * max(np.linalg.norm(wanted), 1e-30)


@pytest.mark.parametrize("name", MANY)
def test_several_axes(name):
    x, a = inputs(name, (6, 12, 10), (4, 5, 3))
    check(name, x, a)
    check(
        name,
        x,
        a,
        axes=(0, 2),
        norm="ortho",
    )
    assert isinstance(getattr(scipy.fft, name)(s=(7, 8), axes=(1, 0), x=a), da.Array)
    check(
        name,
        x,
        a,
        s=(7, 8),
        axes=(1, 0),
    )
    check(
        name,
        x,
        a,
        s=[9, -1],
        axes=(2, 1),
    )
    if name.endswith("n"):
        check(name, x, a, s=(8, 12))  # of the last two axes, and nobody warns
        check(
            name,
            x,
            a,
            (5,),
            None,
            "forward",
        )


# --- what only SciPy has ------------------------------------------------------------------------


def test_a_warning_points_at_the_call():
    x = da.ones((8, 8), chunks=4)
    with pytest.warns(DeprecationWarning, match="-1") as warned:
        scipy.fft.fftn(x, s=[8, None], axes=(0, 1))
    assert warned[0].filename == __file__


@pytest.mark.parametrize("workers", [None, 1, 4, -1, np.int8(2), 10**6])
def test_workers_are_dasks_matter(workers):
    x, a = inputs("fft", (8, 6), (4, 3))
    check("fft2", x, a, workers=workers)
    with scipy.fft.set_workers(2):
        check("fft2", x, a, workers=workers)


def test_a_plan_is_used():
    x, a = inputs("fft", (64, 6), (8, 3))
    plan = dask_bigfft.plan(
        a,
        "fft",
        axis=0,
        order="transposed",
        digits=(4, 16),
    )
    spectrum = scipy.fft.fft(a, axis=0, plan=plan)
    assert "round2" in spectrum.name
    k = dask_bigfft.transposed_index(64, digits=(4, 16))
    np.testing.assert_allclose(spectrum.compute(), np.fft.fft(x, axis=0)[k], atol=1e-12)


def test_plans_for_something_else_are_refused():
    a = da.ones((8, 6), chunks=2)
    plan = dask_bigfft.plan(a, "fft2")
    for function, array in ((scipy.fft.ifft2, a), (scipy.fft.fft2, a.rechunk(3))):
        with pytest.raises(ArgumentError, match="`plan`="):
            function(array, plan=plan)
    with pytest.raises(ArgumentError, match="`plan`="):
        scipy.fft.fft(a, plan=plan)  # of one axis
    with pytest.raises(ArgumentTypeError, match="plan"):
        scipy.fft.fft2(a, plan="a plan")


# --- what goes on to SciPy, and how the backend is set ------------------------------------------


def test_other_arrays_go_on_to_scipy():
    x = RNG.standard_normal((4, 6))
    for name in (*ONE, *MANY, *COSINES):
        for array in (x, x.tolist()):
            assert isinstance(getattr(scipy.fft, name)(array), np.ndarray)
    assert isinstance(scipy.fft.fftfreq(5), np.ndarray)
    assert scipy.fft.next_fast_len(97) == 98


def test_helpers_of_scipy_stay_lazy():
    a = da.from_array(RNG.standard_normal((5, 6)), chunks=2)
    for name in ("fftshift", "ifftshift"):
        helped = getattr(scipy.fft, name)(a)
        assert isinstance(helped, da.Array)
        np.testing.assert_array_equal(helped, getattr(np.fft, name)(a.compute()))


@pytest.mark.nobackend
def test_the_backend_may_be_global_registered_or_skipped():
    a = da.ones(8, chunks=2)
    try:
        scipy.fft.set_global_backend(dask_bigfft.scipy_backend, try_last=True)
        assert isinstance(scipy.fft.fft(a), (da.Array, np.ndarray))
        scipy.fft.set_global_backend(dask_bigfft.scipy_backend)
        assert isinstance(scipy.fft.fft(a), da.Array)
        assert isinstance(scipy.fft.fft(np.ones(4)), np.ndarray)
        with scipy.fft.skip_backend(dask_bigfft.scipy_backend):
            assert isinstance(scipy.fft.fft(a), np.ndarray)
        np.testing.assert_allclose(scipy.fft.fft(a), np.fft.fft(np.ones(8)))
    finally:
        scipy.fft.set_global_backend("scipy")


# --- Hankel transforms --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [64, 63])
@pytest.mark.parametrize(
    ("bias", "optimal"),
    [
        (0.0, True),
        (0.3, False),
        (-0.2, True),
    ],
)
def test_hankel_transforms(n, bias, optimal):
    r = np.logspace(-4, 4, n)
    dln = np.log(r[1] / r[0])
    mu = 0.4
    offset = scipy.fft.fhtoffset(dln, mu, 0.2, bias) if optimal else 0.1
    x = np.stack([r ** (mu + 1) * np.exp(-(r**2) / 2), np.exp(-r)])
    a = da.from_array(x, chunks=(1, 11))
    for name in ("fht", "ifht"):
        check(
            name,
            x,
            a,
            dln,
            mu,
            offset=offset,
            bias=bias,
            tolerance=1e-13,
        )

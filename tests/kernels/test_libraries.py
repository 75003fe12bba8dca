import gc
import itertools
import math
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.fft
from support import python

from dask_bigfft.errors import ArgumentError, KernelError
from dask_bigfft.kernels import libraries
from dask_bigfft.kernels.libraries import Call, FFTLibrary, available, get_library, usable
from dask_bigfft.testing.oracles import exact_dft, exact_irdft, relative_l2
from dask_bigfft.testing.strategies import random_array

NAMES = ["scipy", "mkl_fft", "ducc0", "pyfftw"]
SIGNS = [-1, 1]
SCALES = ["none", "ortho", "full"]
# prime, one, powers of two, mixed, and a prime that needs Bluestein inside the library
CASES = [
    ((7,), (0,)),
    ((1,), (0,)),
    ((8, 1, 5), (1,)),
    ((6, 35), (0, 1)),
    ((4, 9, 10), (0, 2)),
    ((4, 9, 10), (2, 0, 1)),
    ((3, 4, 5, 2), (-1, 1)),
    ((2, 3, 4, 3, 2), (4, 2, 0)),
    ((2, 1009), (1,)),
    ((257, 3), (-2,)),
    ((16, 64), (0,)),
]
DTYPES = [np.complex64, np.complex128, np.clongdouble]


@pytest.fixture(params=NAMES)
def library(request):
    if request.param not in usable():
        pytest.skip(f"{request.param} is not installed, or answers wrongly on this processor")
    return get_library(request.param)


def scaled(x, total, scale):
    total = np.longdouble(total)
    return x / {"none": 1, "ortho": np.sqrt(total), "full": total}[scale]


def exact_c2c(
    x,
    dims,
    sign,
    scale,
):
    """Return the transform, summed from its definition."""
    for d in dims:
        x = exact_dft(x, d, sign)
    return scaled(x, math.prod(x.shape[d] for d in dims), scale)


def exact_r2c(
    x,
    dim,
    sign,
    scale,
):
    full = exact_c2c(x, (dim,), sign, scale)
    return np.take(full, range(x.shape[dim] // 2 + 1), axis=dim)


def exact_c2r(
    x,
    dim,
    n,
    sign,
    scale,
):
    return scaled(exact_irdft(x, n, dim, sign), n, scale)


def r2c(
    library,
    x,
    dim,
    sign,
    scale="none",
    out=None,
    others=(),
):
    dims = tuple(d % x.ndim for d in (*others, dim))
    return library.run(Call("r2c", dims, sign, scale), x, out)


def c2r(
    library,
    x,
    dim,
    n,
    sign,
    scale="none",
    out=None,
):
    return library.run(Call("c2r", (dim % x.ndim,), sign, scale, n), x, out)


def assert_close(
    actual,
    expected,
    dtype,
    name="",
):
    """Require a relative L2 error of some rounding errors, of long double too."""
    assert actual.dtype == np.dtype(dtype)
    assert relative_l2(actual, expected) <= 8 * np.finfo(dtype).eps, name


def layouts(x):
    """Copies of x whose elements lie in memory in different ways."""
    yield "C", x.copy()
    yield "F", x.copy(order="F")
    wide = np.zeros([2 * n + 1 for n in x.shape], dtype=x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    yield "every other", view
    mirrored = wide.copy()[tuple(slice(None, 0, -2) for _ in x.shape)]
    mirrored[...] = x
    yield "mirrored", mirrored
    record = np.zeros(x.shape, dtype=[("pad", np.int8, x.real.itemsize), ("x", x.dtype)])
    record["x"] = x
    yield "odd strides", record["x"]
    packed = np.zeros(x.shape, dtype=[("pad", np.int8), ("x", x.dtype)])
    packed["x"] = x
    yield "unaligned", packed["x"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_c2c(
    library,
    shape,
    dims,
    dtype,
):
    if np.dtype(dtype) not in library.dtypes:
        pytest.skip(f"{library.name} has no {np.dtype(dtype)}")
    x = random_array(shape, dtype, 0)
    for sign, scale in itertools.product(SIGNS, SCALES):
        expected = exact_c2c(x, dims, sign, scale)
        for name, given in layouts(x):
            result = library.c2c(given, dims, sign, scale)
            assert_close(result, expected, dtype, name)
            assert result is given, name


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_r2c_and_c2r(
    library,
    shape,
    dims,
    dtype,
):
    wide = np.result_type(dtype, np.complex64)
    if wide not in library.dtypes:
        pytest.skip(f"{library.name} has no {wide}")
    x = random_array(shape, dtype, 0)
    dim = dims[0]
    n = shape[dims[0]]
    half = random_array(np.take(x, range(n // 2 + 1), axis=dim).shape, wide, 1)
    for sign, scale in itertools.product(SIGNS, SCALES):
        expected = exact_r2c(x, dim, sign, scale)
        for name, given in layouts(x):
            given.flags.writeable = name == "C"
            assert_close(r2c(library, given, dim, sign, scale), expected, wide)
            np.testing.assert_array_equal(given, x)
        expected = exact_c2r(
            half,
            dim,
            n,
            sign,
            scale,
        )
        for name, given in layouts(half):
            given.flags.writeable = name == "C"
            assert_close(c2r(library, given, dim, n, sign, scale), expected, dtype)
            np.testing.assert_array_equal(given, half)


def test_read_only_complex_input_is_copied(library):
    x = random_array((6, 8), np.complex128, 0)
    original = x.copy()
    x.flags.writeable = False
    assert_close(library.c2c(x, (0,), -1), exact_c2c(original, (0,), -1, "none"), x.dtype)
    np.testing.assert_array_equal(x, original)
    line = np.broadcast_to(original[0], (6, 8))
    assert_close(library.c2c(line, (0, 1), 1), exact_c2c(line, (0, 1), 1, "none"), x.dtype)
    assert_close(r2c(library, line.real, 1, 1), exact_r2c(line.real, 1, 1, "none"), x.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((7, 12), (1,)),
        ((7, 12), (0, 1)),
        ((1, 5, 4), (1,)),
    ],
)
def test_c2c_of_real_values(
    library,
    dtype,
    shape,
    dims,
):
    x = random_array(shape, dtype, 0)
    original = x.copy()
    for sign, scale in itertools.product(SIGNS, SCALES):
        spectrum = library.c2c(x, dims, sign, scale)
        assert_close(spectrum, exact_c2c(x, dims, sign, scale), np.result_type(dtype, np.complex64))
    np.testing.assert_array_equal(x, original)
    assert library.c2c(x[:0], dims, -1).dtype.kind == "c"


def test_c2c_writes_to_out_and_only_reads(library):
    for dtype in (np.complex128, np.float64):
        x = random_array((6, 20), dtype, 0)
        original = x.copy()
        memory = np.full((20, 8), np.nan, complex)
        out = memory.T[:6]  # any strides
        spectrum = library.run(Call("c2c", (1,), -1, "ortho"), x, out)
        if library.supports_out:
            assert spectrum is out or np.shares_memory(spectrum, out)
            np.testing.assert_array_equal(x, original)
            assert np.isnan(memory[:, 6:]).all()
        assert_close(spectrum, exact_c2c(original, (1,), -1, "ortho"), np.complex128)


@pytest.mark.parametrize("dims", [(1,), (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_r2c_goes_on_over_other_axes(library, dims, dtype):
    """The last of the axes is the real one; the factor counts all of them."""
    x = random_array((6, 5, 9), dtype, 0)
    original = x.copy()
    *others, dim = dims
    wide = np.result_type(dtype, np.complex64)
    for sign, scale in itertools.product(SIGNS, SCALES):
        expected = exact_c2c(x, dims, sign, scale)
        expected = np.take(expected, range(x.shape[dim] // 2 + 1), axis=dim)
        room = np.full((*expected.shape, 2), np.nan, wide)
        for out in (None, room[..., 1]):
            spectrum = r2c(
                library,
                x,
                dim,
                sign,
                scale,
                out,
                tuple(others),
            )
            assert_close(spectrum, expected, wide)
            assert spectrum is out or out is None or not library.supports_out
        np.testing.assert_array_equal(x, original)
        assert np.isnan(room[..., 0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_c2r_writes_lines_that_share_sets_of_a_cache(library, dtype):
    if not library.supports_out:
        pytest.skip(f"{library.name} does not write to given memory")
    wide = np.result_type(dtype, np.complex64)
    spectra = random_array((2, 16, 513), wide, 0)
    results = np.full((16, 2, 1024), np.pi, dtype)  # every second row belongs to one spectrum
    call = Call("c2r", (0, 1), +1, "full", 1024)
    result = library.run(call, spectra[1], out=results[:, 1])
    assert np.shares_memory(result, results)
    expected = np.fft.irfftn(spectra[1].astype(complex), s=(16, 1024), axes=(0, 1))
    assert_close(results[:, 1], expected, dtype)
    assert (results[:, 0] == dtype(np.pi)).all()


def test_no_axes_and_nothing_to_transform(library, monkeypatch):
    x = random_array((3, 4), np.complex64, 0)
    assert library.c2c(x, (), -1, "full") is x
    idle = type("Idle", (FFTLibrary,), {"name": "idle", "license": ""})()  # cannot transform
    empty = np.empty((0, 4), np.complex64)
    assert idle.c2c(empty, (1,), -1) is empty
    half = r2c(idle, empty.real, 1, -1)
    assert (half.shape, half.dtype) == ((0, 3), np.complex64)
    back = c2r(idle, half, 1, 5, 1)
    assert (back.shape, back.dtype) == ((0, 5), np.float32)
    assert r2c(idle, np.empty((4, 0)), 1, -1).shape == (4, 1)
    assert c2r(idle, np.empty((4, 1), complex), 1, 0, 1).shape == (4, 0)


def test_threads_share_a_library(library):
    shapes = [(32, 32), (16, 64), (8, 45), (3, 101)] * 8
    arrays = [random_array(shape, np.complex128, seed) for seed, shape in enumerate(shapes)]
    reals = [x.real.copy() for x in arrays]
    expected = [exact_c2c(x, (1,), -1, "none") for x in arrays]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            spectra = pool.map(lambda x: library.c2c(x.copy(), (1,), -1), arrays)
            halves = pool.map(lambda x: r2c(library, x, 1, -1), reals)
            for result, exact in zip(spectra, expected, strict=True):
                assert_close(result, exact, np.complex128)
            for half, real in zip(halves, reals, strict=True):
                assert_close(half, exact_r2c(real, 1, -1, "none"), np.complex128)


def test_no_library_keeps_an_array_alive(library):
    class Watched(np.ndarray):
        """An array that can be watched."""

    x = random_array((16, 16), np.complex128, 0).view(Watched)
    gone = weakref.ref(x)
    library.c2c(x, (1,), -1)
    c2r(library, x[:, :9], 1, 16, 1)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("user_imports", [False, True])
def test_mkl_does_not_pose_as_fftw(user_imports):
    pytest.importorskip("mkl_fft")
    pytest.importorskip("pyfftw")
    code = f"""
import numpy as np
from dask_bigfft.errors import KernelError
from dask_bigfft.kernels.libraries import LIBRARIES, get_library
x = np.ones((8, 3, 5), complex, order="F")
LIBRARIES["mkl_fft"]().c2c(x.copy(), (1,), -1)
if {user_imports}:
    import pyfftw
try:
    print(get_library("pyfftw").c2c(x, (1,), -1)[0, :, 0].real.tolist())
except KernelError as error:
    print(error)
"""
    expected = "MKL's imitation" if user_imports else "[3.0, 0.0, 0.0]"
    assert expected in python("-c", code).stdout


def test_a_global_backend_of_scipy_does_not_take_the_calls():
    class Thief:
        __ua_domain__ = "numpy.scipy.fft"

        @staticmethod
        def __ua_function__(method, args, kwargs):
            return "stolen"

    x = random_array((8,), np.complex128, 0)
    expected = np.fft.fft(x)
    with scipy.fft.set_backend(Thief):
        assert scipy.fft.fft(x) == "stolen"
        result = get_library("scipy").c2c(x, (0,), -1)
    np.testing.assert_allclose(result, expected, atol=1e-13)


@pytest.mark.parametrize("call", ["library.c2c(x.copy(), (1,), -1)", "enter_ours()"])
def test_threads_that_have_the_number_of_one_that_has_ended(call):
    """SciPy keeps contexts of backends by that number, in memory that ends with the thread."""
    script = f"""
import threading
import numpy as np
import scipy.fft
import dask_bigfft
from dask_bigfft.kernels.libraries import get_library

threading.get_native_id = lambda: 1  # as the system gives it to one after the other
x, library = np.ones((2, 8), complex), get_library("scipy")

def enter_ours():
    with scipy.fft.set_backend(dask_bigfft.scipy_backend):
        pass

for _ in range(300):
    thread = threading.Thread(target=lambda: [{call} for _ in range(3)])
    thread.start()
    thread.join()
print("alive")
"""
    process = python("-c", script, timeout=300)
    assert (process.stdout, process.stderr) == ("alive\n", "")


def test_unknown_and_missing_names_say_what_is_installed(monkeypatch):
    with pytest.raises(ArgumentError, match="`kernel`='fftpack'"):
        get_library("fftpack")

    def absent():
        raise ImportError

    monkeypatch.setitem(libraries.LIBRARIES, "absent_fft_library", absent)
    with pytest.raises(ArgumentError, match="`kernel`='absent_fft_library'"):
        get_library("absent_fft_library")
    assert "absent_fft_library" not in available()


def test_nothing_optional_is_imported_unasked():
    code = (
        "import sys, dask_bigfft.kernels.libraries as m; m.available(); m.get_library();"
        "print(sorted({'mkl_fft', 'ducc0', 'pyfftw', 'numba', 'distributed'} & {*sys.modules}))"
    )
    assert python("-c", code).stdout.strip() == "[]"


def test_other_dtypes_are_refused(library):
    for x in [np.ones(4, ">f8"), np.ones(4, ">c16")]:
        with pytest.raises(KernelError, match="`dtype`"):
            library.c2c(x, (0,), -1)
    for x in [np.ones(4, int), np.ones(4, np.float16)]:
        with pytest.raises(KernelError, match="`dtype`"):
            r2c(library, x, 0, -1)
    if np.dtype(np.clongdouble) not in library.dtypes:
        with pytest.raises(KernelError, match=f"complex128.*{library.name}|{library.name}"):
            library.c2c(np.ones(4, np.clongdouble), (0,), -1)


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        ("c16", 2**18),
        ("c8", 2**19),
    ],
)
@pytest.mark.parametrize("scale", ["none", "ortho", "full"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_long_rows_one_by_one_are_what_they_are_together(
    dtype,
    n,
    scale,
    sign,
):
    """SciPy's; along columns they are done together."""
    x = random_array((3, n), dtype, 1)
    library = get_library("scipy")
    columns = np.ascontiguousarray(x.T)
    wanted = library.c2c(columns, (0,), sign, scale).T
    spectrum = library.c2c(x, (1,), sign, scale)
    assert spectrum is x
    error = np.linalg.norm(spectrum - wanted) / np.linalg.norm(wanted)
    assert error < 4 * np.finfo(x.dtype).eps


@pytest.mark.parametrize("n", [1, 6, 7])
def test_the_oracle_takes_half_a_spectrum_of_the_right_length(n):
    half = np.ones(n // 2 + 1)
    expected = scipy.fft.irfft(half, n, norm="forward")
    np.testing.assert_allclose(exact_irdft(half, n).astype(float), expected, atol=1e-14)
    for wrong in (half[1:], np.ones(n // 2 + 2)):
        with pytest.raises(ValueError, match="entries"):
            exact_irdft(wrong, n)

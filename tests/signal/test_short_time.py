"""Short-time transforms against `scipy.signal.ShortTimeFFT` on any chunking."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
from hypothesis import given, reject
from hypothesis import strategies as st
from records import CASES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, MemoryLimitError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("sync")

DTYPES = ["f8", "f4", "c16", "c8", "i2"]
PADDINGS = ["zeros", "edge", "even", "odd"]


def close_to(dtype):
    """Return the largest error of a result, relative to its largest value."""
    return 1e-5 if np.dtype(dtype).char in "fFe" else 1e-13


def require_close(
    result,
    expected,
    dtype,
):
    """Fail where values differ, or where the precision is not that of a dtype."""
    assert result.shape == expected.shape
    is_single = np.dtype(dtype).char in "fFe"
    assert result.dtype.itemsize * (2 if is_single else 1) == expected.dtype.itemsize
    values = result.compute()
    assert values.dtype == result.dtype
    assert values.shape == result.shape
    largest = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(
        values,
        expected,
        rtol=0,
        atol=close_to(dtype) * largest,
    )


@st.composite
def transforms(draw, is_complex):
    """Return a window and keywords of a short-time transform."""
    size = draw(st.sampled_from([1, 2, 3, 7, 8, 16, 31]))
    win = (
        random_array(
            (size,),
            "f8",
            5,
        )
        + 10
    )
    if is_complex and draw(st.booleans()):
        win = win + 1j * random_array(
            (size,),
            "f8",
            6,
        )
    elif draw(st.booleans()):
        win[0] = win[-1] = 0  # slices begin where the window does
        win[size // 2] = 1
    modes = ["twosided", "centered"]
    if not is_complex:
        modes += ["onesided", "onesided2X"]
    fft_mode = draw(st.sampled_from(modes))
    scalings = ["magnitude", "psd"]
    if fft_mode != "onesided2X":
        scalings.append(None)
    mfft = size + draw(st.sampled_from([0, 0, 1, 5]))
    shift = draw(st.sampled_from([None, 0, 0, mfft - 1, 1 - mfft]))
    keywords = {
        "fft_mode": fft_mode,
        "mfft": mfft,
        "scale_to": draw(st.sampled_from(scalings)),
        "phase_shift": shift,
    }
    return win, draw(st.integers(1, size + 3)), keywords


@st.composite
def records(
    draw,
    size,
    dtype,
    most=90,
):
    """Return an array, its chunks and the axis of its samples, at least half a window long."""
    n = draw(st.integers(-(-size // 2), most))
    ndim = draw(st.integers(1, 3))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 3)) for _ in range(ndim)]
    shape[axis] = n
    return (
        random_array(
            shape,
            dtype,
            draw(st.integers(0, 9)),
        ),
        draw(chunkings(shape)),
        axis,
    )


def of_lines(method, x, axis, *others, **options):
    """Return SciPy's result of lines; it pads arrays of three axes along the wrong one."""
    lines = [
        np.moveaxis(
            a,
            axis,
            -1,
        )
        for a in (x, *others)
    ]
    rows = lines[0].shape[:-1]
    spectra = method(*(a.reshape(-1, a.shape[-1]) for a in lines), **options)
    return np.moveaxis(
        spectra.reshape(*rows, *spectra.shape[1:]),
        -2,
        axis % x.ndim,
    )


@CASES
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_spectra_are_those_of_scipy(data, dtype):
    win, hop, keywords = data.draw(transforms(np.dtype(dtype).kind == "c"))
    x, chunks, axis = data.draw(records(len(win), dtype))
    transform = scipy.signal.ShortTimeFFT(
        win.copy(),
        hop,
        2.0,
        **keywords,
    )
    end = transform.p_max(x.shape[axis])
    p0 = data.draw(st.one_of(st.none(), st.integers(transform.p_min, end - 1)))
    p1 = data.draw(st.one_of(st.none(), st.integers((p0 or 0) + 1, end))) if end > 1 else None
    options = {"p0": p0, "p1": p1, "k_offset": data.draw(st.integers(-2, 2))}
    options["padding"] = data.draw(st.sampled_from(PADDINGS))
    a = da.from_array(x, chunks)
    try:
        spectra = signal.stft(
            a,
            win,
            hop,
            2.0,
            axis=axis,
            **keywords,
            **options,
        )
    except ArgumentError as error:
        assert "k_offset" in str(error)  # noqa: PT017
        reject()  # such a case does not count
    expected = of_lines(
        transform.stft,
        x,
        axis,
        **options,
    )
    require_close(
        spectra,
        expected,
        dtype,
    )


@CASES
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    detr=st.sampled_from([None, "constant", "linear", lambda segments: segments - 2]),
    is_cross=st.booleans(),
)
def test_spectrograms_are_those_of_scipy(
    data,
    dtype,
    detr,
    is_cross,
):
    win, hop, keywords = data.draw(transforms(np.dtype(dtype).kind == "c"))
    x, chunks, axis = data.draw(records(len(win), dtype))
    y = (
        random_array(
            x.shape,
            dtype,
            77,
        )
        if is_cross
        else None
    )
    transform = scipy.signal.ShortTimeFFT(
        win.copy(),
        hop,
        2.0,
        **keywords,
    )
    others = [] if y is None else [y]
    expected = of_lines(
        transform.spectrogram,
        x,
        axis,
        *others,
        detr=detr,
    )
    a = da.from_array(x, chunks)
    b = None if y is None else da.from_array(y, chunks)
    power = signal.spectrogram(
        a,
        win,
        hop,
        2.0,
        b,
        detr,
        axis=axis,
        **keywords,
    )
    require_close(
        power,
        expected,
        dtype,
    )


@CASES
@given(
    data=st.data(),
    dtype=st.sampled_from(["c16", "c8"]),
    has_dual=st.booleans(),
)
def test_samples_are_those_of_scipy(
    data,
    dtype,
    has_dual,
):
    win, hop, keywords = data.draw(transforms(False))
    hop = min(hop, max(1, len(win) - 2))
    dual = random_array(win.shape, "f8", 8) if has_dual else None
    transform = scipy.signal.ShortTimeFFT(
        win.copy(),
        hop,
        2.0,
        dual_win=dual,
        **keywords,
    )
    slices = transform.p_num(len(win)) + data.draw(st.integers(0, 20))
    shape = [data.draw(st.integers(1, 3)), transform.f_pts, slices]
    order = data.draw(st.permutations(range(3)))
    f_axis = order.index(1)
    t_axis = order.index(2)
    spectra = random_array(shape, dtype, 3).transpose(order)
    last = (slices + transform.p_min - 1) * hop + len(win) - len(win) // 2
    least = len(win) - len(win) // 2
    k0 = data.draw(st.integers(0, max(0, last - least)))
    k1 = None
    if last - k0 > least and data.draw(st.booleans()):
        k1 = data.draw(st.integers(k0 + least, last))
    try:
        expected = transform.istft(
            spectra,
            k0,
            k1,
            f_axis=f_axis,
            t_axis=t_axis,
        )
    except ValueError:  # SciPy adds slices behind the last sample, which does not work
        reject()
    a = da.from_array(spectra, data.draw(chunkings(spectra.shape)))
    places = {"k0": k0, "k1": k1, "f_axis": f_axis, "t_axis": t_axis}
    samples = signal.istft(
        a,
        win,
        hop,
        2.0,
        dual_win=dual,
        **places,
        **keywords,
    )
    require_close(
        samples,
        expected,
        dtype,
    )


@pytest.mark.parametrize("chunks", [1000, 64, (300, 7, 1, 692)])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_the_inverse_gives_the_record_back(chunks, dtype):
    x = random_array(
        (1000,),
        dtype,
        0,
    )
    window = {"win": scipy.signal.get_window("hann", 60), "hop": 17, "fs": 100.0}
    spectra = signal.stft(da.from_array(x, chunks), **window)
    for k0 in (-7, 0, 33):
        samples = signal.istft(
            spectra,
            k0=k0,
            k1=1000,
            **window,
        )
        padded = np.concatenate([np.zeros(max(0, -k0)), x[max(0, k0) :]])
        np.testing.assert_allclose(
            samples,
            padded,
            atol=1e-5 if dtype == "f4" else 1e-12,
        )


@pytest.mark.parametrize("chunks", [50, 1000])
def test_a_nan_stays_in_its_slices(chunks):
    x = random_array(
        (1000,),
        "f8",
        0,
    )
    x[500] = np.nan
    win = np.hanning(30)
    power = signal.spectrogram(
        da.from_array(x, chunks),
        win,
        10,
        1.0,
    ).compute()
    expected = scipy.signal.ShortTimeFFT(
        win.copy(),
        10,
        1.0,
    ).spectrogram(x)
    np.testing.assert_array_equal(np.isnan(power), np.isnan(expected))
    assert 0 < np.isnan(power[0]).sum() <= 4


def test_a_block_takes_the_slices_that_begin_in_a_block():
    x = da.zeros(2**16, chunks=2**12)
    spectra = signal.stft(
        x,
        np.ones(256),
        64,
        1.0,
    )
    assert spectra.numblocks == (1, 16)
    assert max(spectra.chunks[1]) <= 2**12 // 64 + 4
    samples = signal.istft(
        spectra,
        np.ones(256),
        64,
        1.0,
        k1=2**16,
    )
    assert max(samples.chunks[0]) <= 2**12 + 256


def test_memory_limits():
    x = da.zeros(
        2**20,
        chunks=2**17,
        dtype="f4",
    )
    window = (np.hanning(1024), 256, 1.0)
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        signal.stft(
            x,
            *window,
            memory_limit="1 MiB",
        )
    signal.stft(
        x,
        *window,
        memory_limit="100 MiB",
    )
    limit = dask.config.set({"bigfft.memory-limit": "1 MiB"})
    with limit, pytest.raises(MemoryLimitError, match="memory_limit"):
        signal.spectrogram(x, *window)


def test_blocks_are_only_read():
    x = random_array(
        (3, 500),
        "f8",
        0,
    )
    x.flags.writeable = False
    win = np.hanning(40)
    win.flags.writeable = False
    spectra = signal.stft(
        da.from_array(x, chunks=(2, 90)),
        win,
        9,
        1.0,
    )
    signal.istft(
        spectra,
        win,
        9,
        1.0,
    ).compute()
    own = spectra.compute()
    own.flags.writeable = False
    signal.istft(
        own,
        win,
        9,
        1.0,
        fft_mode="onesided2X",
        scale_to="psd",
    ).compute()


REFUSED = [
    (
        {"win": np.ones((2, 2))},
        ArgumentError,
        "win",
    ),
    (
        {"win": []},
        ArgumentError,
        "win",
    ),
    (
        {"win": [1.0, np.nan]},
        ArgumentError,
        "win",
    ),
    (
        {"win": "hann"},
        ArgumentTypeError,
        "win",
    ),
    (
        {"win": np.ones(300)},
        ArgumentError,
        "`x`",
    ),
    (
        {"hop": 0},
        ArgumentError,
        "hop",
    ),
    (
        {"hop": 1.5},
        ArgumentTypeError,
        "hop",
    ),
    (
        {"fs": -1},
        ArgumentError,
        "fs",
    ),
    (
        {"fft_mode": "half"},
        ArgumentError,
        "fft_mode",
    ),
    (
        {"fft_mode": "onesided2X"},
        ArgumentError,
        "scale_to",
    ),
    (
        {"win": np.ones(4) * 1j},
        ArgumentError,
        "fft_mode",
    ),
    (
        {"x": da.zeros(100, dtype=complex)},
        ArgumentError,
        "fft_mode",
    ),
    (
        {"mfft": 3},
        ArgumentError,
        "mfft",
    ),
    (
        {"scale_to": "density"},
        ArgumentError,
        "scale_to",
    ),
    (
        {"phase_shift": 10},
        ArgumentError,
        "phase_shift",
    ),
    (
        {"p0": -5},
        ArgumentError,
        "p0",
    ),
    (
        {"p1": 100},
        ArgumentError,
        "p1",
    ),
    (
        {"k_offset": 1000},
        ArgumentError,
        "k_offset",
    ),
    (
        {"padding": "wrap"},
        ArgumentError,
        "padding",
    ),
    (
        {"axis": 1},
        ArgumentError,
        "axis",
    ),
    (
        {"detr": "all"},
        ArgumentError,
        "detr",
    ),
    (
        {"y": da.zeros(5)},
        ArgumentError,
        "`y`",
    ),
    (
        {"workers": 2},
        ArgumentTypeError,
        "workers",
    ),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    changed,
    kind,
    named,
):
    arguments = {"x": da.zeros(100, chunks=30), "win": np.ones(10), "hop": 5, "fs": 1.0, **changed}
    with pytest.raises(kind, match=named):
        signal.spectrogram(**arguments)


REFUSED_BY_INVERSE = [
    ({"S": da.zeros(100)}, "`S`"),
    ({"S": da.zeros((5, 30))}, "`S`"),
    ({"S": da.zeros((6, 1))}, "`S`"),
    ({"hop": 11}, "hop"),
    ({"win": np.r_[np.zeros(5), np.ones(5)], "hop": 6}, "win"),
    ({"dual_win": np.ones(3)}, "dual_win"),
    ({"k0": -6}, "k0"),
    ({"k1": 1000}, "k1"),
    ({"k1": 3}, "k1"),
    ({"f_axis": -1}, "t_axis"),
    ({"f_axis": 2}, "f_axis"),
    ({"device_memory_limit": "1 GiB"}, "device_memory_limit"),
]


@pytest.mark.parametrize(("changed", "named"), REFUSED_BY_INVERSE)
def test_wrong_arguments_of_the_inverse_are_named(changed, named):
    arguments = {"S": da.zeros((6, 30), chunks=4), "win": np.ones(10), "hop": 5, "fs": 1.0}
    with pytest.raises(ArgumentError, match=named):
        signal.istft(**arguments | changed)


def test_the_inverse_keeps_to_a_memory_limit():
    spectra = da.zeros((513, 4096), chunks=(513, 512), dtype="c8")
    window = {"win": np.hanning(1024), "hop": 256, "fs": 1.0}
    plan = signal.plan_segments(spectra, function="istft", **window)
    needed = plan.expected.peak_host
    with dask.config.set(num_workers=plan.machine.threads):
        signal.istft(spectra, memory_limit=needed, **window)
        with pytest.raises(MemoryLimitError, match="memory_limit"):
            signal.istft(spectra, memory_limit=needed - 1, **window)
    assert "istft" in plan.explain()
    assert "istft" in repr(plan)

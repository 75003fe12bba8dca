"""Filters by name against the response that defines them."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, records, require_close

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("small")


def low_response(
    radius,
    cutoff,
    edge,
    order,
    width,
):
    """The response of a low-pass filter by its definition."""
    if edge == "sharp":
        return (radius <= cutoff).astype(float)
    if edge == "gaussian":
        return 0.5 ** ((radius / cutoff) ** 2)
    if edge == "butterworth":
        return (1 + (radius / cutoff) ** (2 * order)) ** -0.5
    start = cutoff * (1 - width / 2)
    end = cutoff * (1 + width / 2)
    inner = 0.5 + 0.5 * np.cos(np.pi * (radius - start) / (end - start))
    return np.where(
        radius < start,
        1,
        np.where(
            radius > end,
            0,
            inner,
        ),
    )


def high_response(
    radius,
    cutoff,
    edge,
    order,
    width,
):
    """The response of a high-pass filter by its definition."""
    if edge == "sharp":
        return (radius >= cutoff).astype(float)
    if edge != "butterworth":
        return 1 - low_response(
            radius,
            cutoff,
            edge,
            order,
            width,
        )
    power = radius ** (2 * order)
    return np.sqrt(power / (power + cutoff ** (2 * order)))


@CASES
@given(
    data=st.data(),
    name=st.sampled_from(["lowpass", "highpass", "bandpass", "bandstop"]),
    edge=st.sampled_from(["sharp", "gaussian", "butterworth", "cosine"]),
    by=st.sampled_from(["frequency", "wavelength", "period"]),
)
def test_filters_multiply_the_spectrum(
    data,
    name,
    edge,
    by,
):
    x, chunks, _ = data.draw(records(most=3))
    order = data.draw(st.integers(1, 6))
    width = data.draw(st.sampled_from([0.1, 1.0, 2.0]))
    spacing = [0.5 + 0.3 * axis for axis in range(x.ndim)]
    low = 0.231
    high = 0.633
    frequencies = [
        np.fft.fftfreq(n, d)
        for n, d in zip(
            x.shape,
            spacing,
            strict=True,
        )
    ]
    grid = np.meshgrid(*frequencies, indexing="ij")
    radius = np.sqrt(sum(f**2 for f in grid))
    shape = (edge, order, width)
    both = high_response(
        radius,
        low,
        *shape,
    ) * low_response(
        radius,
        high,
        *shape,
    )
    response = {
        "lowpass": low_response(
            radius,
            low,
            *shape,
        ),
        "highpass": high_response(
            radius,
            low,
            *shape,
        ),
        "bandpass": both,
        "bandstop": 1 - both,
    }[name]
    ends = [low, high] if by == "frequency" else [1 / low, 1 / high]
    cutoff = ends if name.startswith("band") else ends[0]
    options = {"spacing": spacing, "by": by, "edge": edge, "order": order, "width": width}
    result = getattr(signal, name)(
        da.from_array(x, chunks),
        cutoff,
        **options,
    )
    expected = np.fft.ifftn(np.fft.fftn(x.astype("c16")) * response)
    require_close(
        result,
        expected if x.dtype.kind == "c" else expected.real,
        x.dtype,
    )


REFUSED = [
    (
        signal.lowpass,
        {"cutoff": 0},
        ArgumentError,
        "cutoff",
    ),
    (
        signal.lowpass,
        {"cutoff": "low"},
        ArgumentTypeError,
        "cutoff",
    ),
    (
        signal.lowpass,
        {"cutoff": np.timedelta64(3, "D"), "by": "period"},
        ArgumentTypeError,
        "cutoff",
    ),
    (
        signal.highpass,
        {"cutoff": 0.1, "by": "length"},
        ArgumentError,
        "by",
    ),
    (
        signal.highpass,
        {"cutoff": 0.1, "edge": "steep"},
        ArgumentError,
        "edge",
    ),
    (
        signal.highpass,
        {"cutoff": 0.1, "order": 0},
        ArgumentError,
        "order",
    ),
    (
        signal.highpass,
        {"cutoff": 0.1, "width": 3},
        ArgumentError,
        "width",
    ),
    (
        signal.bandpass,
        {"band": 0.1},
        ArgumentError,
        "band",
    ),
    (
        signal.bandpass,
        {"band": (0.1, 0.1)},
        ArgumentError,
        "band",
    ),
    (
        signal.bandstop,
        {"band": (0.1, -0.1)},
        ArgumentError,
        "band",
    ),
    (
        signal.bandstop,
        {"band": (0.1, 0.2), "spacing": 0},
        ArgumentError,
        "spacing",
    ),
]


@pytest.mark.parametrize(("function", "changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    function,
    changed,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        function(**{"x": da.ones(20, chunks=6), **changed})


@pytest.mark.parametrize(
    ("name", "limits", "named"),
    [
        ("lowpass", 0.26, "cutoff"),
        ("highpass", 0.26, "cutoff"),
        ("bandpass", (0.2, 0.26), "band"),
        ("bandstop", (0.27, 0.26), "band"),
    ],
)
def test_limits_above_all_frequencies_are_warned_of(
    name,
    limits,
    named,
):
    """The highest frequency of samples 2 apart is 0.25; a sharp cutoff there keeps all of them."""
    x = np.random.default_rng(5).standard_normal(20)
    function = getattr(signal, name)
    with pytest.warns(UserWarning, match=rf"`{named}`.* 0\.26 .* 0\.25 ") as caught:
        function(x, limits, spacing=2.0)
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_allclose(signal.lowpass(x, 0.25, spacing=2.0, edge="sharp"), x)


@pytest.mark.parametrize("by", ["frequency", "period"])
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("lowpass", [1, 1, 0, 0, 0]),
        ("highpass", [0, 1, 1, 1, 1]),
        ("bandpass", [0, 1, 1, 1, 0]),
        ("bandstop", [1, 0, 0, 0, 1]),
    ],
)
def test_sharp_edges_keep_their_cutoffs(
    name,
    kept,
    by,
):
    """Waves of frequencies below, at, between, at and above the cutoffs."""
    limits = [0.1, 0.2] if by == "frequency" else [10, 5]
    cutoff = limits if name.startswith("band") else limits[0]
    samples = np.arange(100)
    for frequency, factor in zip([0.09, 0.1, 0.15, 0.2, 0.21], kept, strict=True):
        wave = np.cos(2 * np.pi * frequency * samples)
        filtered = getattr(signal, name)(wave, cutoff, by=by, edge="sharp")
        np.testing.assert_allclose(filtered, factor * wave, atol=1e-12)

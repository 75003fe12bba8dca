"""Filters by name against the response that defines them."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, records, require_close
from responses import NAMES, SHAPES, filtered

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.parametrize("name", NAMES)
@CASES
@given(
    data=st.data(),
    shape=SHAPES,
    by=st.sampled_from(["frequency", "wavelength", "period"]),
)
def test_filters_multiply_the_spectrum(
    name,
    data,
    shape,
    by,
):
    x, chunks, _ = data.draw(records(most=3))
    spacing = [0.5 + 0.3 * axis for axis in range(x.ndim)]
    limits = [0.231, 0.633]
    ends = limits if by == "frequency" else [1 / limit for limit in limits]
    result = getattr(signal, name)(
        da.from_array(x, chunks),
        ends if name.startswith("band") else ends[0],
        spacing=spacing,
        by=by,
        **shape,
    )
    expected = filtered(
        x,
        name,
        limits,
        spacing,
        range(x.ndim),
        **shape,
    )
    require_close(
        result,
        expected,
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

"""Responses of the filters by name, as their definitions have them."""

import numpy as np
from hypothesis import strategies as st

EDGES = ["sharp", "gaussian", "butterworth", "cosine"]
NAMES = ["lowpass", "highpass", "bandpass", "bandstop"]

#: Keywords for the edge of a filter.
SHAPES = st.fixed_dictionaries(
    {
        "edge": st.sampled_from(EDGES),
        "order": st.integers(1, 6),
        "width": st.sampled_from([0.1, 1.0, 2.0]),
    },
)


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


def response_of(
    name,
    radius,
    limits,
    **shape,
):
    """The response of a filter by its name; the first limit is a single cutoff."""
    low, high = limits
    if name == "lowpass":
        return low_response(radius, low, **shape)
    if name == "highpass":
        return high_response(radius, low, **shape)
    passed = high_response(
        radius,
        low,
        **shape,
    ) * low_response(
        radius,
        high,
        **shape,
    )
    return passed if name == "bandpass" else 1 - passed


def squared_frequencies(shape, axes, spacing):
    """Return the squared magnitude of the frequency along some axes of a spectrum."""
    squares = 0
    for axis, distance in zip(axes, spacing, strict=True):
        along = [1] * len(shape)
        along[axis] = -1
        frequency = np.fft.fftfreq(shape[axis], distance)
        squares = squares + frequency.reshape(along) ** 2
    return squares


def filtered(
    x,
    name,
    limits,
    spacing,
    axes,
    **shape,
):
    """Return an array after a filter by its name along some axes, in double precision."""
    squares = squared_frequencies(
        x.shape,
        axes,
        spacing,
    )
    response = response_of(
        name,
        np.sqrt(squares),
        limits,
        **shape,
    )
    spectrum = np.fft.fftn(x.astype("c16"), axes=axes)
    result = np.fft.ifftn(spectrum * response, axes=axes)
    return result if x.dtype.kind == "c" else result.real

"""Errors for keywords that a function does not have, with the keyword that was probably meant."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from dask_bigfft.errors import ArgumentTypeError, raise_invalid

#: Keywords for the distance of two samples, here and in other libraries.
_DISTANCES = ("spacing", "d", "delta", "dt", "dx", "pixel_size", "pixelsize", "resolution")

#: Keywords for the number of samples per unit.
_RATES = ("fs", "rate", "sample_rate", "samplerate", "sampling_frequency", "sampling_rate")

#: Keywords for what is worked along.
_DIMENSIONS = ("dims", "axis", "axes", "dimension", "dimensions")

#: Keywords of which functions have either the one or the other.
_SYNONYMS = {"window": "win", "win": "window", "detrend": "detr", "detr": "detrend"}

#: Keywords that only methods of `.bigfft` have.
_OF_XARRAY = ("detrend", "dim", "metres", "real_dim", "shift", "window", "window_correction")

#: Least similarity of a keyword to the one that was meant: "metres" is no "detrend".
_SIMILARITY = 0.7


def refuse_unknown(keywords: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise an error for the first keyword that a function does not have.

    Parameters
    ----------
    keywords
        Given keywords with their values.
    known
        Names of the function's keywords.

    Raises
    ------
    ArgumentTypeError
        With the names of all keywords, and the one that was probably meant.

    Examples
    --------
    >>> refuse_unknown({"pixel_size": 9.0}, ["cutoff", "spacing"])
    Traceback (most recent call last):
    dask_bigfft.errors.ArgumentTypeError: `pixel_size`=9.0 is not allowed: need one of the \
keywords cutoff, spacing; did you mean `spacing`?
    """
    for name, value in keywords.items():
        if name in known:
            continue
        allowed = f"one of the keywords {', '.join(known)}"
        if not known:
            allowed = "no keyword"
        meant = _meant(name, known)
        if meant is not None:
            allowed += f"; did you mean {meant}?"
        raise_invalid(name, value, allowed, kind=ArgumentTypeError)


def _meant(name: str, known: Collection[str]) -> str | None:
    """Return the keyword that was probably meant by another one, as text; None if none is like it.

    >>> _meant("d", ["window", "fs"]), _meant("cutof", ["cutoff"]), _meant("metre", ["detrend"])
    ('`fs`=1/d', '`cutoff`', None)
    """
    if name in _DIMENSIONS and "dim" in known:
        return "`dim`, with names of dimensions"
    if name in (*_DISTANCES, *_RATES):
        return _meant_distance(name, known)
    if _SYNONYMS.get(name) in known:
        return f"`{_SYNONYMS[name]}`"
    if name in _OF_XARRAY and "dim" not in known:
        return f"a method of `.bigfft` of arrays of xarray, of which some have `{name}`"
    nearest = difflib.get_close_matches(name, known, 1, _SIMILARITY)
    return f"`{nearest[0]}`" if nearest else None


def _meant_distance(name: str, known: Collection[str]) -> str | None:
    """Return the keywords for the distance of two samples, or for their rate, as text."""
    keywords = []
    for keyword in ("spacing", "d", "fs"):
        if keyword in known:
            is_inverse = (keyword == "fs") != (name in _RATES)
            keywords.append(f"`{keyword}`=1/{name}" if is_inverse else f"`{keyword}`")
    if keywords:
        return " or ".join(keywords)
    if "dim" in known:
        return "a coordinate of the dimension, as array.assign_coords sets it"
    return None

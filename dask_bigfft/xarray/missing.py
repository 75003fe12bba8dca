"""A warning for results that are NaN everywhere, when they are computed."""

import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft.dask_private import finished_by, is_expression


def with_nan_warning(data: Any) -> Any:
    """Return a lazy result that warns if `compute` finds NaN alone in it.

    No task is added. Results that are stored block by block are not looked at, nor are those of
    arrays that are expressions.
    """
    if not isinstance(data, da.Array) or is_expression(data) or data.dtype.kind not in "fc":
        return data
    function, arguments = data.__dask_postcompute__()
    return finished_by(
        data,
        _assembled,
        function,
        arguments,
    )


def _assembled(
    blocks: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    """Return the array that a function assembles from blocks; warn if it is NaN everywhere."""
    result = function(blocks, *arguments)
    is_nan_first = result.size > 0 and bool(np.isnan(result[(0,) * result.ndim]))
    if is_nan_first and bool(np.isnan(result).all()):
        text = "The result of a transform is NaN everywhere, because a NaN spreads over all of its "
        text += "line or plane: fill missing values first, or take convolve_masked, fill_gaps or "
        text += "power_spectrum(mask=), where True marks missing values"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return result

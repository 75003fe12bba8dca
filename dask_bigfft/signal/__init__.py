"""Convolution, spectra and derivatives of dask arrays of any size.

Functions that exist in `scipy.signal` have the same names and arguments. The modules::

    arguments, transforms (forward and inverse; frequencies of the places of a spectrum)
    convolution (by spectra) -> kernel_spectrum (of a short array); overlap (block by block)
    filters -> transfer (functions of frequencies, arrays); differentiation
    passbands (filters by name); sampling (shifts, other rates) -> analytic (signals, envelopes)
    holes (convolution without missing values) -> gaps (their filling)
    spectra (power, cross, radial); trends (of known values)
    segments (Welch's averages) -> segment_plan (blocks, memory); segment_tasks; ratios
    short_time (spectra of slices) -> inverse_short_time (and back); short_time_tasks
    plans (of segments and slices, with forecasts of memory)
    chirp_z (spectra at any points of a circle or a spiral)
"""

from dask_bigfft.signal import (
    analytic,
    chirp_z,
    convolution,
    differentiation,
    filters,
    gaps,
    holes,
    inverse_short_time,
    passbands,
    plans,
    ratios,
    sampling,
    segments,
    short_time,
    spectra,
)
from dask_bigfft.signal.analytic import *  # noqa: F403
from dask_bigfft.signal.chirp_z import *  # noqa: F403
from dask_bigfft.signal.convolution import *  # noqa: F403
from dask_bigfft.signal.differentiation import *  # noqa: F403
from dask_bigfft.signal.filters import *  # noqa: F403
from dask_bigfft.signal.gaps import *  # noqa: F403
from dask_bigfft.signal.holes import *  # noqa: F403
from dask_bigfft.signal.inverse_short_time import *  # noqa: F403
from dask_bigfft.signal.passbands import *  # noqa: F403
from dask_bigfft.signal.plans import *  # noqa: F403
from dask_bigfft.signal.ratios import *  # noqa: F403
from dask_bigfft.signal.sampling import *  # noqa: F403
from dask_bigfft.signal.segments import *  # noqa: F403
from dask_bigfft.signal.short_time import *  # noqa: F403
from dask_bigfft.signal.spectra import *  # noqa: F403

__all__ = [
    *analytic.__all__,
    *chirp_z.__all__,
    *convolution.__all__,
    *differentiation.__all__,
    *filters.__all__,
    *gaps.__all__,
    *holes.__all__,
    *inverse_short_time.__all__,
    *passbands.__all__,
    *plans.__all__,
    *ratios.__all__,
    *sampling.__all__,
    *segments.__all__,
    *short_time.__all__,
    *spectra.__all__,
]
__dir__ = __all__.copy  # so that completion shows these names alone

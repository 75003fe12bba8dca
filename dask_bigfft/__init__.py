"""FFTs of any size on dask arrays of any chunking."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_bigfft import config, fft
from dask_bigfft.decomposition.factors import transposed_index
from dask_bigfft.front import plan
from dask_bigfft.integrations import scipy_backend
from dask_bigfft.integrations.installation import install, installed, uninstall
from dask_bigfft.planner.plan import Plan

if TYPE_CHECKING:
    from dask_bigfft import cluster, signal, xarray
    from dask_bigfft.calibration import calibrate
    from dask_bigfft.observe import progress, report
    from dask_bigfft.runs import run

__version__ = "0.1.0"

__all__ = [
    "Plan",
    "__version__",
    "calibrate",
    "cluster",
    "fft",
    "install",
    "installed",
    "plan",
    "progress",
    "report",
    "run",
    "scipy_backend",
    "signal",
    "transposed_index",
    "uninstall",
    "xarray",
]


#: Functions of modules that are imported at their first use, because that is slow.
_MODULES = {"progress": "observe", "report": "observe", "calibrate": "calibration", "run": "runs"}


def __getattr__(name: str) -> Any:
    """Import slow modules at their first use."""
    if name in _MODULES:
        return getattr(import_module(f"dask_bigfft.{_MODULES[name]}"), name)
    if name in ("cluster", "signal", "xarray"):
        return import_module(f"dask_bigfft.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if config.get("bigfft.install"):
    install()

"""FFTs of any size on dask arrays of any chunking."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_bigfft import config

if TYPE_CHECKING:
    from dask_bigfft import cluster, errors, fft, signal, xarray
    from dask_bigfft.calibration import calibrate
    from dask_bigfft.cluster.observe import progress, report
    from dask_bigfft.integrations import scipy_backend
    from dask_bigfft.integrations.installation import install, installed, uninstall
    from dask_bigfft.planner.plan import Plan
    from dask_bigfft.plans import plan
    from dask_bigfft.runs import run
    from dask_bigfft.transforms.factors import transposed_index

__version__ = "0.1.0"

__all__ = [
    "Plan",
    "__version__",
    "calibrate",
    "cluster",
    "errors",
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


#: Modules of public names that are no modules themselves. They are imported at their first use: the
#: command line needs few.
_MODULES = {
    "Plan": "planner.plan",
    "calibrate": "calibration",
    "install": "integrations.installation",
    "installed": "integrations.installation",
    "plan": "plans",
    "progress": "cluster.observe",
    "report": "cluster.observe",
    "run": "runs",
    "scipy_backend": "integrations.scipy_backend",
    "transposed_index": "transforms.factors",
    "uninstall": "integrations.installation",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"dask_bigfft.{_MODULES.get(name, name)}")
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


__dir__ = __all__.copy  # so that completion shows these names alone

if config.get("bigfft.install"):
    __getattr__("install")()

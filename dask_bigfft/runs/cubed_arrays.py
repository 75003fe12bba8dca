"""Arrays of cubed as sources of runs, by way of a Zarr array beside the result.

cubed computes its array within the memory of its specification, and the run keeps to the same
limit.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dask_bigfft.errors import raise_invalid
from dask_bigfft.storage.targets import name_of_run, partial_of


def is_cubed(x: Any) -> bool:
    """Return whether a value is an array of cubed, without importing it."""
    kind = getattr(sys.modules.get("cubed"), "Array", None)
    return kind is not None and isinstance(x, kind)


def memory_of_tasks(spec: Any) -> int:
    """Return the memory in bytes that a specification leaves to the data of a task."""
    nbytes = int(spec.allowed_mem) - int(spec.reserved_mem)
    if nbytes <= 0:
        allowed = f"more than `reserved_mem`={spec.reserved_mem}, which it includes"
        raise_invalid("allowed_mem", spec.allowed_mem, allowed)
    return nbytes


@contextlib.contextmanager
def stored_beside(x: Any, destination: Path) -> Iterator[Path]:
    """Yield the path of a Zarr array with the values of an array of cubed; it is deleted then."""
    import cubed

    path = partial_of(destination, name_of_run())
    try:
        cubed.to_zarr(x, str(path))
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def cubed_result(path: Path, component: str | None, spec: Any) -> Any:
    """Return the array of cubed that reads a result."""
    import cubed

    return cubed.from_zarr(str(path), path=component, spec=spec)

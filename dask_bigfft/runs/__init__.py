"""Transforms from file to file, larger than memory, that can be resumed.

::

    request (what to do, its plan, and where it may write) -> resumable (a run, with or without a
    scratch folder; what a source and a finished result say)
        run_json (its record; files that are not what they were, and what is done again for them)

Imports `front`, `storage`, `graph` and what lies below.
"""

import os
from pathlib import Path
from typing import Unpack

from dask_bigfft.errors import ArgumentTypeError, parse_flag, refuse
from dask_bigfft.planning.arguments import Extras
from dask_bigfft.runs.request import Done, Request, planned_input
from dask_bigfft.runs.resumable import Store, execute
from dask_bigfft.runs.run_json import has_begun

__all__ = ["Done", "Request", "Store", "execute", "has_begun", "planned_input", "run"]

AnyPath = str | os.PathLike[str]


def run(
    source: AnyPath,
    destination: AnyPath,
    kind: str = "fftn",
    *,
    n: int | None = None,
    s: tuple[int, ...] | None = None,
    axis: int | None = None,
    axes: tuple[int, ...] | None = None,
    norm: str | None = None,
    component: str | None = None,
    scratch: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checksum: bool = False,
    block_size: int | str | None = None,
    inner_chunks: tuple[int, ...] | None = None,
    missing_chunks: str = "refuse",
    missing: str | float = "refuse",
    **extras: Unpack[Extras],
) -> Done:
    """Transform a stored array into a Zarr array, and wait until it is done.

    Packed variables of Zarr groups and HDF5 (NetCDF4) files are decoded, in the dtype that xarray
    would choose: `scale_factor`, `add_offset`, `_FillValue`, `missing_value` and `_Unsigned`.

    It runs where dask's settings say: on threads of this process, or on the cluster of the current
    client if that sees the files. Where memory is too small, blocks go through scratch files.

    Parameters
    ----------
    source : path
        Zarr array or group (version 2 or 3, sharded or not, in a folder or a ``.zip`` file), HDF5
        file, or ``.npy`` file.
    destination : path
        Zarr array to be made. It appears there when it is complete, and not before.
    kind : str
        Name of the transform, such as ``"rfftn"``.
    n, s, axis, axes, norm
        As the transform takes them.
    component : str, optional
        Array within a Zarr group or HDF5 file.
    scratch : path, optional
        Folder for this run's scratch files, empty or not there. If the run is killed it stays, and
        another run can go on from it.
    resume : bool
        Whether to go on with the run that `scratch` is of; if there is none, one begins. What is
        done is not done again, and the result is the same to the bit. What a loss of power has
        taken is found by its checksum, and made once more. Where `destination` holds
        the result of just this run, which had a scratch folder, nothing is done at all
        (``Done.already``), also where it has replaced `source`. That is not so where an argument,
        the source or a file of the result is another one since: all is then as without `resume`,
        but that a result in its source's place that has changed is refused.
    overwrite : bool
        Whether an array at `destination` may be replaced, once the new one is complete. That may be
        `source` itself, which is only read until then, and gone afterwards.
    checksum : bool
        Whether the source's contents are pinned by checksums, beside the size and time of each of
        its files; it is then read once more. Needs `scratch`. A run that was begun without is not
        gone on with; where this is False it is compared as it was pinned.
    block_size : int or str, optional
        Size of the blocks that are read, such as ``"64 MiB"``, which tasks merge where larger ones
        are wanted; by default 4 to 128 MiB, less where `memory_limit` has no room for these, more
        where scratch files would be written in small pieces.
    inner_chunks : tuple of int, optional
        Chunks of the result inside of shards (Zarr version 3), each of which is a dask block.
    missing_chunks : {"refuse", "fill"}
        What becomes of a Zarr array some of whose chunks have no file, or no place in their shard,
        and of a virtual HDF5 dataset that lacks a part: either they were lost, or whoever wrote the
        array has left out what holds nothing but the fill value, as zarr does by default. Only you
        know which. "refuse" (the default) is an error before anything is written; "fill" reads them
        as the fill value.
    missing : "refuse" or float
        Value that replaces the missing values of a variable, those that equal its `_FillValue` or
        `missing_value`. "refuse" (the default) is an error as soon as one is read, and there is no
        result. NaN keeps them NaN. A chunk without a file is another matter, see `missing_chunks`:
        where it reads as `_FillValue`, its values are missing.
    **extras
        `order`, `chunks`, `memory_limit` and the other keywords of transforms, see `fft`.

    Returns
    -------
    Done
        The plan, bytes and seconds, and whether all was done already.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed; also where values are missing, where a source, argument or library
        differs from those of the run that is resumed, and where the source has changed while it
        was read.
    ScratchError
        An `OSError`: the disk is full, or a file is not what was written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "in.npy", np.ones((8, 8)))
    >>> run(folder / "in.npy", folder / "out.zarr", "rfft2").plan.notation
    '{Y, X}'
    """
    for name, path in {"source": source, "destination": destination}.items():
        if not isinstance(path, str | os.PathLike):
            need = "the path of a stored array; dask arrays are transformed by dask_bigfft.fft, and"
            need += " stored by to_zarr"
            refuse(name, type(path).__name__, need, kind=ArgumentTypeError)
    if not isinstance(scratch, str | os.PathLike | None):
        refuse("scratch", scratch, "the path of a folder", kind=ArgumentTypeError)
    if not isinstance(component, str | None):
        refuse("component", component, "the name of an array", kind=ArgumentTypeError)
    for name, flag in {"resume": resume, "overwrite": overwrite, "checksum": checksum}.items():
        parse_flag(name, flag)
    what = kind, component, n, s, axis, axes, norm, dict(extras)
    how = block_size, inner_chunks, missing_chunks, missing
    folder = None if scratch is None else Path(scratch)
    again = folder, resume, overwrite, checksum
    request = Request(Path(source), Path(destination), *what, *how, *again)
    return execute(request)

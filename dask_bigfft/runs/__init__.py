"""Transforms from file to file, larger than memory, that can be resumed.

::

    labels (names of dimensions, attributes and coordinates); windows (as texts)
    request (arguments, plan, allowed paths) -> resumable (a run, with or without a scratch folder;
    identity of sources and results)
        run_json (its record; lost and damaged files, and what is repeated for them)
        transactions (arrays of Icechunk repositories); cubed_arrays
    growing (base of runs whose results grow) -> inverse_short_time (samples of spectra) ->
        short_time (spectra of slices; storing and continuation of both)
    sinks (to which results are stored)
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from dask_bigfft.api.arguments import Extras, explicit_signature
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.errors import ArgumentTypeError, parse_flag, parse_type, raise_invalid
from dask_bigfft.runs.cubed_arrays import is_cubed, memory_of_tasks, stored_beside
from dask_bigfft.runs.request import (
    Done,
    RunRequest,
    ShortTimeArguments,
    planned_input,
    request_of_variable,
)
from dask_bigfft.runs.resumable import execute
from dask_bigfft.runs.run_json import has_begun
from dask_bigfft.runs.short_time import planned as planned_slices
from dask_bigfft.runs.sinks import Store
from dask_bigfft.runs.texts import parse_transfer_text, parse_window_text
from dask_bigfft.runs.transactions import (
    array_in_repository,
    is_in_repository,
    write_in_one_commit,
)

__all__ = [
    "Done",
    "RunRequest",
    "ShortTimeArguments",
    "Store",
    "execute",
    "has_begun",
    "planned_input",
    "planned_slices",
    "request_of_variable",
    "run",
]
__dir__ = ["Done", "run"].copy  # other names of __all__ are for rooms of this package

AnyPath = str | os.PathLike[str]


def run(
    source: Any,
    destination: Any,
    kind: str = "fftn",
    *,
    n: int | None = None,
    s: tuple[int, ...] | None = None,
    axis: int | str | None = None,
    axes: tuple[int | str, ...] | None = None,
    norm: str | None = None,
    transfer: Any = None,
    name: str | None = None,
    spacing: Any = 1.0,
    at_zero: complex | None = None,
    real: bool | None = None,
    win: Any = None,
    hop: int | None = None,
    fs: float | None = None,
    fft_mode: str = "onesided",
    mfft: int | None = None,
    scale_to: str | None = None,
    phase_shift: int | None = 0,
    padding: str = "zeros",
    detr: str | None = None,
    dual_win: Any = None,
    k0: int = 0,
    k1: int | None = None,
    f_axis: int | str = -2,
    t_axis: int | str = -1,
    append: bool = False,
    dims: tuple[str, ...] | None = None,
    component: str | None = None,
    scratch: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checksum: bool = False,
    block_size: int | str | None = None,
    inner_chunks: tuple[int, ...] | None = None,
    missing_chunks: str = "refuse",
    missing: str | float = "refuse",
    compressors: Any = "auto",
    **extras: Unpack[Extras],
) -> Done:
    """Transform a stored array into a Zarr array, and wait until it is done.

    Packed variables of Zarr groups and HDF5 (NetCDF4) files are decoded, in the dtype that xarray
    would choose: `scale_factor`, `add_offset`, `_FillValue`, `missing_value` and `_Unsigned`.

    Tasks run on threads of this process, or on the cluster of the current client, by dask's
    settings. The cluster must see the files. If memory is too small, blocks go through scratch
    files.

    Parameters
    ----------
    source : path, dask.array.Array, xarray.DataArray, cubed.Array or zarr.storage.StorePath
        Zarr array or group (version 2 or 3, sharded or not, in a folder or a ``.zip`` file), HDF5
        file, or ``.npy`` file; or a lazy array, whose run cannot be resumed. An array of cubed is
        stored beside the result first; its ``allowed_mem`` without its ``reserved_mem`` is the
        default of `memory_limit`. A place in the store of an Icechunk session is an array of a
        repository.
    destination : path or zarr.storage.StorePath
        Zarr array to be made. It appears there when it is complete, and not before. It keeps the
        source's attributes and names of dimensions; a transformed ``x`` becomes ``freq_x``. If the
        source has coordinates, and xarray is installed, the array is made in a group with
        coordinates and units, which `xarray.open_zarr` reads; ``Done.component`` is its name.
        A place in the store of a writable Icechunk session, which has no uncommitted changes, gets
        the array alone. The run commits the session when the array is complete, and discards its
        changes if it fails before. They stay in the session if only the commit fails. An array that
        this session reads is not replaced.
    kind : str
        Name of the transform, such as ``"rfftn"``, or ``"fourier_filter"``, ``"stft"``,
        ``"spectrogram"`` or ``"istft"``.
    n, s, axis, axes, norm
        As the transform takes them. Axes may be names of the source's dimensions.
    transfer, spacing, at_zero, real
        Transfer function and other arguments of `signal.fourier_filter`, which takes `band` and
        `band_index`, too. A text describes a filter by name, such as ``"lowpass:0.1"`` or
        ``"bandpass:0.1:0.2:sharp"``, with limits in cycles per unit of `spacing`, and a shape of
        the edge as in `signal.lowpass`. The result keeps the source's dimensions.
    name : str, optional
        Identity of the transfer function, by which a resumed run knows that it is the same. The
        default is a hash of its code or its values.
    win, hop, fs, fft_mode, mfft, scale_to, phase_shift, padding, detr
        Arguments of `signal.stft` and `signal.spectrogram`, which also take `axis`, by default the
        last one. A window is an array of values, or a text as on the command line, such as
        ``"hann:1024"``. The sampling rate `fs` is by default that of the source's coordinate, or 1
        without one. `signal.istft` takes those of the window, too.
    dual_win, k0, k1, f_axis, t_axis
        Arguments of `signal.istft`. `k1` is by default the length of the original record if the
        frequencies have a coordinate that knows it, as results of `run` have.
    append : bool
        True continues the spectra of slices at `destination` with those of a record that has grown,
        or makes them if there is nothing. The result is that of a call on the whole record. Slices
        are computed from the first chunk on in which some change, which are those that reached
        beyond the old end. Samples that were there before must be the same. Arguments have to be
        those of the earlier call, and the record no shorter; otherwise an error names what differs.
        In the same way, the samples of ``"istft"`` are continued when the spectra have more slices.
        The last slices of before, which reached beyond the old end, may have changed: each call
        computes the chunks with their samples again.
        While it is written the result is marked as incomplete. After an interruption, another call
        with ``append=True`` completes it. While one call appends, another one is refused.
    dims : tuple of str, optional
        Names of the dimensions of a source that has none, such as ``("time",)``. With them the
        result of ``"stft"`` or ``"spectrogram"`` is made in a group with its frequencies and times,
        which begin at 0, in the unit of `fs` and its inverse.
    component : str, optional
        Array within a Zarr group or HDF5 file; by default the only one that is not the coordinate
        of a dimension.
    scratch : path, optional
        Folder for this run's scratch files: empty, or a new one. If the run is killed, the folder
        stays, and another call can resume the run.
    resume : bool
        True resumes the run in `scratch`, or begins one if there is none. Finished work is not
        repeated, and the result has the same bits. Data lost by a power failure is found by its
        checksum and computed again. If `destination` already holds the result of this run, and the
        run had a scratch folder, nothing is done (``Done.already``), even if the result has
        replaced `source`. If an argument, the source or a file of that result has changed since,
        the call acts as without `resume`. A changed result that has replaced its source is an
        error.
    overwrite : bool
        True allows replacing an array at `destination`, once the new one is complete. It may be
        `source` itself, which is only read until then, and gone afterwards.
    checksum : bool
        True identifies the source by checksums of its contents, beside the size and time of each
        file, which reads it once more. Needs `scratch`. A run that was begun without checksums
        cannot be resumed with them. False compares what the run has recorded.
    block_size : int or str, optional
        Size of the blocks that are read, such as ``"64 MiB"``. Tasks merge them if larger blocks
        are needed. The default is 4 to 128 MiB, less if `memory_limit` is small, and more if
        scratch files would be written in small parts.
    inner_chunks : tuple of int, optional
        Chunks of the result inside of shards (Zarr version 3). Each shard is a dask block.
    missing_chunks : {"refuse", "fill"}
        Treatment of chunks without a file, or without a place in their shard, and of missing parts
        of a virtual HDF5 dataset. Either they were lost, or the writer has left out chunks of
        nothing but the fill value, as zarr does by default. "refuse" (the default) raises an error
        before anything is written; "fill" reads them as the fill value.
    missing : "refuse" or float
        Value that replaces the missing values of a variable, which equal its `_FillValue` or
        `missing_value`. "refuse" (the default) raises an error as soon as one is read, and there is
        no result. NaN keeps them NaN. With ``missing_chunks="fill"``, a missing chunk that reads as
        `_FillValue` has missing values.
    compressors : "auto", None, or one or several codecs
        Compressors of the result, as `zarr.create_array` takes them. "auto" (the default) is zarr's
        default, zstd; None is none. The task that stores a chunk compresses it as a whole. That
        takes time, and memory for one chunk more, which the plan counts. Spectra of noise hardly
        shrink; None writes them fastest, by direct I/O. Scratch files are never compressed.
    **extras
        `order`, `chunks`, `memory_limit` and the other keywords of transforms, see `fft`.

    Returns
    -------
    Done
        The plan, bytes and seconds, and a flag for a result that was there already.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, values are missing, or the source changes while it is read.
        Also if a source, argument or library differs from that of the resumed run.
    ScratchError
        An `OSError`: the disk is full, or a file is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "in.npy", np.ones((8, 8)))
    >>> run(folder / "in.npy", folder / "out.zarr", "rfft2").plan.notation
    '{Y, X}'
    """
    refuse_unknown(extras, explicit_signature(run).parameters)
    array = _lazy_source(source)
    _refuse_other_types(source, array, destination)
    path = "." if array is not None else source
    file_arguments = {
        "scratch": scratch,
        "component": component,
        "block_size": block_size,
    }
    _parse_file_arguments(array, file_arguments)
    _parse_flags(resume=resume, overwrite=overwrite, checksum=checksum, append=append)
    request = request_of_variable(
        Path(path),
        _path_of(destination),
        kind,
        component=component,
        n=n,
        s=s,
        axis=axis,
        axes=axes,
        norm=norm,
        transfer=parse_transfer_text(transfer),
        name=name,
        spacing=spacing,
        at_zero=at_zero,
        real=real,
        options=dict(extras),
        block_size=block_size,
        inner_chunks=inner_chunks,
        missing_chunks=missing_chunks,
        missing=missing,
        compressors=_parse_compressors(compressors),
        scratch=None if scratch is None else Path(scratch),
        resume=resume,
        overwrite=overwrite,
        checksum=checksum,
        array=array,
        repository=destination if is_in_repository(destination) else None,
        slices=ShortTimeArguments(
            win=parse_window_text("win", win),
            hop=hop,
            fs=fs,
            fft_mode=fft_mode,
            mfft=mfft,
            scale_to=scale_to,
            phase_shift=phase_shift,
            padding=padding,
            detr=detr,
            dual_win=parse_window_text("dual_win", dual_win),
            k0=k0,
            k1=k1,
            f_axis=f_axis,
            t_axis=t_axis,
        ),
        append=append,
        dims=dims,
    )
    if request.repository is not None:
        return write_in_one_commit(request)
    return _run_of_cubed(request) if is_cubed(array) else execute(request)


def _parse_flags(**flags: Any) -> None:
    """Raise an error for a flag that is neither True nor False."""
    for argument, flag in flags.items():
        parse_flag(argument, flag)


def _lazy_source(source: Any) -> Any:
    """Return the lazy array that a source is, or that a repository has; None for a path."""
    if is_in_repository(source):
        return array_in_repository(source)
    return source if hasattr(source, "__dask_graph__") or is_cubed(source) else None


def _path_of(destination: Any) -> Path:
    """Return the path of a result, in a repository its name."""
    return Path(destination.path if is_in_repository(destination) else destination)


def _parse_compressors(compressors: Any) -> Any:
    """Return compressors that can be read several times."""
    if not isinstance(compressors, Iterable) or isinstance(compressors, str | Mapping):
        return compressors
    try:
        return tuple(compressors)
    except TypeError:  # an array of no dimensions
        raise_invalid("compressors", compressors, "'auto', None, or one or several codecs")


def _run_of_cubed(request: RunRequest) -> Done:
    """Do a run of an array of cubed within its memory, and return its report."""
    x = request.array
    options = dict(request.options)
    if options.get("memory_limit") is None:
        options["memory_limit"] = memory_of_tasks(x.spec)
    with stored_beside(x, request.destination) as source:
        stored_request = replace(
            request,
            source=source,
            array=None,
            options=options,
        )
        return replace(execute(stored_request), spec=x.spec)


def _parse_file_arguments(array: Any, arguments: Mapping[str, Any]) -> None:
    """Raise an error for arguments of files of a wrong type, or beside an array."""
    for argument, value in arguments.items():
        if array is not None and value is not None:
            raise_invalid(argument, value, "None for an array: only files are resumed")
    parse_type(
        "scratch",
        arguments["scratch"],
        str | os.PathLike | None,
        "the path of a folder",
    )
    parse_type(
        "component",
        arguments["component"],
        str | None,
        "the name of an array",
    )


def _refuse_other_types(source: Any, array: Any, destination: Any) -> None:
    """Raise an error if the source is neither a path nor an array, or the result no path."""
    if array is None and not isinstance(source, str | os.PathLike):
        need = "the path of a stored array, a dask array or a chunked xarray.DataArray"
        if hasattr(source, "store_path"):
            need += "; for a zarr.Array its path, or its `store_path` in a session of Icechunk"
        raise_invalid(
            "source",
            type(source).__name__,
            need,
            kind=ArgumentTypeError,
        )
    if is_cubed(getattr(array, "data", None)):
        name = f"{type(array).__name__} of an array of cubed"
        need = "its `data`, the array of cubed, or one of dask"
        raise_invalid(
            "source",
            name,
            need,
            kind=ArgumentTypeError,
        )
    if is_cubed(array) and is_in_repository(destination):
        need = "the path of a Zarr array, for an array of cubed, which Icechunk's runs do not take"
        raise_invalid(
            "destination",
            destination.path,
            need,
            kind=ArgumentTypeError,
        )
    if not isinstance(destination, str | os.PathLike) and not is_in_repository(destination):
        need = "the path of the result"
        raise_invalid(
            "destination",
            type(destination).__name__,
            need,
            kind=ArgumentTypeError,
        )

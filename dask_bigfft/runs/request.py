"""Request of a run from file to file, its plan, its allowed paths, and its report."""

import contextlib
import errno
import json
import os
import stat
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.utils import format_bytes, format_time

from dask_bigfft import config
from dask_bigfft.api import calls
from dask_bigfft.api.arguments import Extras, parse_array, parse_limit
from dask_bigfft.api.kinds import as_dask
from dask_bigfft.carriers.disk import scratch_place
from dask_bigfft.dask_private import functions_of
from dask_bigfft.errors import (
    ArgumentTypeError,
    PlanError,
    ScratchError,
    parse_choice,
    parse_type,
    raise_invalid,
)
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.files import URL, check_free_space
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.runs.cubed_arrays import cubed_result
from dask_bigfft.runs.labels import labels_of, labels_of_array, numbers, transformed
from dask_bigfft.signal.arguments import SignalOptions, parse_signal_options
from dask_bigfft.signal.filters import Filter, parse_filter
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.sources import array_folder, local_store, zarr_package
from dask_bigfft.storage.targets import Labels
from dask_bigfft.transforms.spec import parse_name, with_dims

#: Kind of a filter.
FILTER = "fourier_filter"

#: Kind of the inverse of the spectra of slices.
INVERSE = "istft"

#: Kinds of short-time transforms.
SHORT_TIME = ("stft", "spectrogram", INVERSE)

#: Arguments that only filters take, and their defaults.
_FILTER_DEFAULTS = {
    "transfer": None,
    "name": None,
    "spacing": 1.0,
    "at_zero": None,
    "real": None,
}

#: Default compressor of zarr.
ZARR_DEFAULT = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


@dataclass(frozen=True)
class ShortTimeArguments:
    """Arguments of a run that only short-time transforms take, as `run` has them."""

    win: Any = None
    hop: Any = None
    fs: Any = None
    fft_mode: Any = "onesided"
    mfft: Any = None
    scale_to: Any = None
    phase_shift: Any = 0
    padding: Any = "zeros"
    detr: Any = None
    dual_win: Any = None
    k0: Any = 0
    k1: Any = None
    f_axis: Any = -2
    t_axis: Any = -1

    def refuse_for(self, kind: str) -> None:
        """Raise an error if an argument is given to a kind of run that does not take it."""
        for own in fields(self):
            kinds = _kinds_with(own.name)
            value = getattr(self, own.name)
            is_default = isinstance(value, type(own.default)) and value == own.default
            if kind not in kinds and not is_default:
                allowed = f"no such argument for {kind}: only {' and '.join(kinds)} take it"
                raise_invalid(own.name, value, allowed, kind=ArgumentTypeError)

    def require_for(self, kind: str) -> None:
        """Raise an error if an argument that a short-time transform needs is absent."""
        for name in ("win", "hop"):
            if getattr(self, name) is None:
                raise_invalid(name, None, f"a value for {kind}", kind=ArgumentTypeError)
        parse_type("detr", self.detr, str | None, "'constant', 'linear' or None for run()")


def _refuse_other_names(dims: Any) -> None:
    """Raise an error unless names of dimensions are a tuple of different strings."""
    allowed = "a tuple of different names, one for each axis of the source"
    if not isinstance(dims, tuple):
        raise_invalid("dims", dims, allowed, kind=ArgumentTypeError)
    are_names = all(isinstance(name, str) and name for name in dims)
    if not are_names or len(set(dims)) < len(dims):
        raise_invalid("dims", dims, allowed)


def _kinds_with(argument: str) -> tuple[str, ...]:
    """Return the kinds of short-time transforms that take an argument."""
    if argument in ("dual_win", "k0", "k1", "f_axis", "t_axis"):
        return (INVERSE,)
    if argument == "padding":
        return ("stft", "spectrogram")
    if argument == "detr":
        return ("spectrogram",)
    return SHORT_TIME


@dataclass(frozen=True)
class RunRequest:
    """Arguments of a run, see `run`.

    Parameters
    ----------
    source, destination : Path
        Array to read, and Zarr array to make.
    kind, component, n, s, axis, axes, norm
        As `run` takes them.
    transfer, name, spacing, at_zero, real
        As `run` takes them, for a filter.
    options : mapping
        The keywords of transforms, such as ``order`` and ``chunks``.
    block_size, inner_chunks, missing_chunks, missing, compressors
        As `run` takes them.
    scratch, resume, overwrite, checksum
        As `run` takes them.
    array : dask.array.Array or xarray.DataArray, optional
        Source in the place of a stored one; `source` is then the working folder.
    repository : zarr.storage.StorePath, optional
        Place of the result in an Icechunk repository; `destination` is then its name there.
    slices : ShortTimeArguments
        Arguments of short-time transforms.
    append : bool
        As `run` takes it.
    dims : tuple of str, optional
        As `run` takes it.
    """

    source: Path
    destination: Path
    kind: str = "fftn"
    component: str | None = None
    n: int | None = None
    s: tuple[int, ...] | None = None
    axis: int | str | None = None
    axes: tuple[int | str, ...] | None = None
    norm: str | None = None
    transfer: Any = None
    name: str | None = None
    spacing: Any = 1.0
    at_zero: complex | None = None
    real: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    block_size: int | str | None = None
    inner_chunks: tuple[int, ...] | None = None
    missing_chunks: str = "refuse"
    missing: str | float = "refuse"
    compressors: Any = "auto"
    scratch: Path | None = None
    resume: bool = False
    overwrite: bool = False
    checksum: bool = False
    array: Any = None
    repository: Any = None
    slices: ShortTimeArguments = ShortTimeArguments()
    append: bool = False
    dims: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        parse_choice(
            "missing_chunks",
            self.missing_chunks,
            "refuse",
            "fill",
        )
        if self.is_short_time:
            self._refuse_arguments_of_filters()
            self._refuse_arguments_of_whole_transforms()
        elif self.is_filter:
            self._refuse_arguments_of_transforms()
        else:
            parse_name(self.kind, others=(FILTER, *SHORT_TIME))
            self._refuse_arguments_of_filters()
        self.slices.refuse_for(self.kind)
        if self.append and not self.is_short_time:
            allowed = f"False for {self.kind}: only {' and '.join(SHORT_TIME)} are continued"
            raise_invalid("append", True, allowed, kind=ArgumentTypeError)
        if self.dims is not None:
            _refuse_other_names(self.dims)
        parse_type(
            "s",
            self.s,
            Sequence | None,
            "a sequence of integers",
        )
        kind = stat.S_IFREG
        with contextlib.suppress(OSError, ValueError):  # impossible paths are refused later
            kind = self.source.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise_invalid("source", str(self.source), "a regular file or a folder; this is neither")

    @property
    def is_filter(self) -> bool:
        """True for a filter, which is a transform, a product, and the inverse transform."""
        return self.kind == FILTER

    @property
    def is_short_time(self) -> bool:
        """True for spectra of slices and their inverse, which can be continued."""
        return self.kind in SHORT_TIME

    def _refuse_arguments_of_whole_transforms(self) -> None:
        """Raise an error for arguments that a short-time transform does not take, or missing ones.

        It has no exchanges, and so no scratch files.
        """
        self.slices.require_for(self.kind)
        allowed = f"None for {self.kind}"
        for name in ("n", "s", "axes", "norm", "scratch"):
            if getattr(self, name) is not None:
                raise_invalid(name, getattr(self, name), allowed, kind=ArgumentTypeError)
        if self.kind == INVERSE and self.axis is not None:
            allowed += ", which takes f_axis and t_axis"
            raise_invalid("axis", self.axis, allowed, kind=ArgumentTypeError)
        for name in ("resume", "checksum"):
            if getattr(self, name):
                allowed = f"False for {self.kind}, which append=True continues"
                raise_invalid(name, True, allowed, kind=ArgumentTypeError)
        if self.repository is not None:
            raise_invalid(
                "destination",
                self.destination,
                f"a path for {self.kind}, not a place in a repository",
                kind=ArgumentTypeError,
            )
        if self.append and self.overwrite:
            raise_invalid("overwrite", True, "False for append=True", kind=ArgumentTypeError)
        parse_signal_options({n: v for n, v in self.options.items() if v is not None})

    def _refuse_arguments_of_transforms(self) -> None:
        """Raise an error for arguments that a filter does not take, or a missing one."""
        if self.transfer is None:
            allowed = f"a transfer function for {FILTER}"
            raise_invalid("transfer", None, allowed, kind=ArgumentTypeError)
        for name in ("n", "axis", "norm"):
            if getattr(self, name) is not None:
                allowed = f"None for {FILTER}, which takes s and axes"
                raise_invalid(name, getattr(self, name), allowed, kind=ArgumentTypeError)
        parse_signal_options(self.filter_options)

    def _refuse_arguments_of_filters(self) -> None:
        """Raise an error for arguments that only a filter takes."""
        for name, default in _FILTER_DEFAULTS.items():
            value = getattr(self, name)
            if value is not default and value != default:
                allowed = f"{default} for a transform; it is an argument of {FILTER}"
                raise_invalid(name, value, allowed, kind=ArgumentTypeError)

    def filter_of(self, x: da.Array) -> Filter | None:
        """Return the filter of the source array; None for a transform."""
        if not self.is_filter:
            return None
        return parse_filter(
            x,
            self.transfer,
            self.where["axes"],
            s=self.s,
            spacing=self.spacing,
            at_zero=self.at_zero,
            real=self.real,
            **self.bands,
        )

    def result(
        self,
        x: da.Array,
        plan: Plan,
        place: ScratchPlace | None = None,
    ) -> da.Array:
        """Return the lazy result of the source array, a transform or a filter.

        Parameters
        ----------
        x : dask array
            Source array.
        plan : Plan
            Its plan.
        place : ScratchPlace, optional
            Scratch files of the exchanges; by default they are temporary.
        """
        if place is None and self.array is None and plan.from_rows:
            place = replace(scratch_place(plan), rows=self.reader())
        own_filter = self.filter_of(x)
        operand = None if own_filter is None else own_filter.operand
        return calls.applied(x, plan, place, operand)

    @property
    def filter_options(self) -> SignalOptions:
        """The keywords of a filter, but for its bands."""
        own_options = {
            name: value
            for name, value in self.options.items()
            if value is not None and name not in ("band", "band_index")
        }
        return cast("SignalOptions", own_options)

    @cached_property
    def transfer_token(self) -> str:
        """Identity of the transfer function: its name, or a hash of its contents."""
        if self.name is not None:
            return f"name {self.name}"
        try:
            return str(tokenize(self.transfer, ensure_deterministic=True))
        except RuntimeError:  # dask's TokenizationError
            if self.scratch is None:
                return str(tokenize(self.transfer))
            allowed = "the name of the transfer function, which tells a resumed run that it is the "
            raise_invalid("name", None, f"{allowed}same; its contents cannot be hashed")

    @property
    def where(self) -> dict[str, Any]:
        """Keywords of the transform for axes, by numbers, and lengths.

        Default axes are the last two, the last `len(s)`, or all.
        """
        axes = self.axes
        if axes is None and self.kind.endswith("2"):
            axes = -2, -1
        elif axes is None and self.kind.endswith("n") and self.s is not None:
            axes = tuple(range(-len(self.s), 0))
        named = partial(numbers, dims=self.dim_names)
        axis = None if self.axis is None else named((self.axis,))[0]
        return {
            "n": self.n,
            "axis": axis,
            "s": self.s,
            "axes": named(axes),
        }

    @property
    def bands(self) -> dict[str, Any]:
        """The keywords for bands of the spectrum, by numbers of axes."""
        bands = {}
        for name in ("band", "band_index"):
            band = self.options.get(name)
            if isinstance(band, Mapping):
                axes = numbers(tuple(band), self.dim_names, name)
                keys = (int(axis) if isinstance(axis, Integral) else axis for axis in axes)
                band = dict(zip(keys, band.values(), strict=True))
            if band is not None:
                bands[name] = band
        return bands

    @property
    def block_nbytes(self) -> int | None:
        """Size of the blocks that are read in bytes, if it was given."""
        return None if self.block_size is None else parse_limit("block_size", self.block_size)

    @property
    def filled(self) -> float | None:
        """Value that replaces missing ones; None if they are refused."""
        if isinstance(self.missing, str) and self.missing == "refuse":
            return None
        if not isinstance(self.missing, Real) or isinstance(self.missing, bool):
            raise_invalid(
                "missing",
                self.missing,
                "'refuse' or a number",
                kind=ArgumentTypeError,
            )
        return float(self.missing)

    @property
    def pinned(self) -> dict[str, Any]:
        """Arguments that a resumed run must repeat, as JSON values with sizes in bytes.

        Omitted keywords have the values of dask's settings.
        """
        keywords = {name: config.argument(name) for name in Extras.__annotations__}
        keywords |= self.where
        keywords |= {name: value for name, value in self.options.items() if value is not None}
        keywords |= self.bands
        for name in ("memory_limit", "device_memory_limit"):
            keywords[name] = parse_limit(name, keywords[name])
        arguments = {
            "kind": self.kind,
            "norm": self.norm,
            "block_size": self.block_nbytes,
            "inner_chunks": self.inner_chunks,
            "destination": str(self.destination.resolve()),
            "missing_chunks": self.missing_chunks,
            "missing": "refuse" if self.filled is None else repr(self.filled),
            "compressors": targets.parse_compressors(self.compressors, np.dtype("c16")),
        }
        keywords["dims"] = self.dims
        arguments |= {name: value for name, value in keywords.items() if value is not None}
        if self.is_filter:
            arguments |= {
                "transfer": self.transfer_token,
                "spacing": repr(self.spacing),
                "at_zero": repr(self.at_zero),
                "real": self.real,
            }
        return dict(json.loads(json.dumps(arguments, default=_plain)))

    def writing(self, dtype: np.dtype[Any]) -> ResultWriting:
        """Return the memory that writing a chunk of the result takes, for a source of a dtype."""
        codecs = [ZARR_DEFAULT]
        if self.compressors != "auto":  # plans of other files than Zarr arrays need no zarr
            codecs = targets.parse_compressors(self.compressors, np.dtype("c16"))
        in_shards = self.inner_chunks is not None
        return targets.writing_of(codecs, in_shards=in_shards, is_cast=dtype.char == "e")

    @property
    def in_place(self) -> bool:
        """True if the result replaces its source."""
        folder = array_folder(self.source.resolve(), self.component)
        return folder.resolve() == self.destination.resolve()

    @property
    def library(self) -> str:
        """Module with the functions of arrays like the source; that of dask for files."""
        array = getattr(self.array, "data", self.array)
        return str(functions_of(array).__name__)

    def open(self, plan: Plan | None = None) -> da.Array:
        """Return the lazy source array in blocks of whole stored chunks, or in a plan's blocks."""
        if self.array is not None:
            kind = "fft" if self.is_filter or self.is_short_time else self.kind
            return parse_array(as_dask(getattr(self.array, "data", self.array)), kind)
        reader = self.reader()
        chunks = None
        if plan is not None:
            reader.few = plan.reopened
            chunks = plan.chunks_in
        keep = self.options.get("chunks") == "preserve" and self.block_size is None
        return reader.array(self.block_nbytes, keep=keep, chunks=chunks)

    def reader(self) -> sources.Reader:
        """Return a reader of the source, which can read single rows."""
        return sources.open_reader(self.source, self.component, self.filled)

    def dim_names(self) -> tuple[str, ...]:
        """Return the names of the source's dimensions; none if they are not known."""
        if self.dims is not None:
            return self.source_labels().names
        if self.array is not None:
            return tuple(map(str, getattr(self.array, "dims", ())))
        return self.reader().dims

    def labels(self, plan: Plan) -> Labels:
        """Return the names, attributes and coordinates of the result."""
        return self.without_group(transformed(self.source_labels(), plan))

    def source_labels(self) -> Labels:
        """Return the names, attributes and coordinates of the source; names may be given."""
        if self.array is None:
            labels = labels_of(self.source, self.component)
            ndim = self.reader().ndim
        else:
            labels = labels_of_array(self.array)
            ndim = self.array.ndim
        if self.dims is None:
            return labels
        own = labels.names
        if own and own != self.dims:
            raise_invalid("dims", self.dims, f"None, or those of the source: {own}")
        if len(self.dims) != ndim:
            raise_invalid("dims", self.dims, f"{ndim} names, one for each axis of the source")
        if own:
            return labels
        return replace(labels, names=self.dims, variable=Path(labels.variable).stem)

    def without_group(self, labels: Labels) -> Labels:
        """Return labels of the result, without coordinates if it becomes part of a group.

        Such an array, for instance one that replaces its source, is a single one.
        """
        if self.repository is not None:
            return replace(labels, coordinates={})
        parent = self.destination.resolve().parent
        if any((parent / name).exists() for name in ("zarr.json", ".zgroup")):
            return replace(labels, coordinates={})
        return labels

    def done(self, plan: Plan, started: float, already: bool = False) -> "Done":
        """Return the report of a run that began at `started`."""
        seconds = time.perf_counter() - started
        if self.repository is None:
            component = targets.read_attributes(self.destination).get("array")
        else:
            component = None
        return Done(
            path=self.repository or self.destination,
            plan=plan,
            dtype=str(np.dtype(plan.spec.dtype)),
            read=plan.spec.nbytes,
            written=plan.spec.out_nbytes,
            seconds=seconds,
            already=already,
            component=component,
            library=self.library,
        )


def request_of_variable(source: Path, *args: Any, **arguments: Any) -> RunRequest:
    """Return a request whose component is by default the only variable of a group.

    Parameters
    ----------
    source
        Path of the source.
    *args, **arguments
        Other arguments of the request.
    """
    if arguments.get("component") is None and arguments.get("array") is None:
        arguments["component"] = sources.only_variable(source)
    return RunRequest(source, *args, **arguments)


def _plain(value: Any) -> Any:
    """Return a JSON value for another type: an integer for one of NumPy, else its repr."""
    return int(value) if isinstance(value, Integral) else repr(value)


@dataclass(frozen=True)
class Done:
    """Report of a run.

    Parameters
    ----------
    path : Path or zarr.storage.StorePath
        Path of the Zarr array, or its place in an Icechunk repository.
    plan : Plan, SegmentPlan or OverlapAddPlan
        Plan of the transform; the others for spectra of slices and for their inverse.
    dtype : str
        Type of the source's values.
    read, written : int
        Bytes of the source's decoded values, and of the result before it is compressed.
    seconds : float
        Elapsed time.
    already : bool
        True if an earlier call had made the result: this one computed and wrote nothing.
    component : str or None
        Name of the array in a group with its coordinates; None for an array alone.
    columns : tuple of int or None
        Of spectra of slices, the first slice that was computed, and the number of all; of their
        inverse, the same of samples.
    spec : cubed.Spec or None
        Specification of the source, if that was an array of cubed.
    library : str
        Module with the `from_array` of lazy arrays like the source: ``"dask.array"`` or
        ``"dask_array"``.
    """

    path: Any
    plan: Any
    dtype: str
    read: int
    written: int
    seconds: float
    already: bool = False
    component: str | None = None
    columns: tuple[int, int] | None = None
    spec: Any = None
    library: str = "dask.array"

    def open(self) -> Any:
        """Return the result as a lazy array, of the kind of a source that is one, else of dask."""
        if self.spec is not None:
            return cubed_result(self.path, self.component, self.spec)
        place = self.path
        if not self.is_in_repository:
            place = local_store(Path(place), read_only=True)
        stored = zarr_package().open_array(place, path=self.component or "", mode="r")
        from_array = import_module(self.library).from_array
        return from_array(stored, chunks=stored.shards or stored.chunks)

    @property
    def is_in_repository(self) -> bool:
        """Return whether the result is in an Icechunk repository."""
        return not isinstance(self.path, Path)

    @property
    def name(self) -> str:
        """Name of the transform."""
        return str(self.plan.spec.name if self.columns is None else self.plan.function)

    def __repr__(self) -> str:
        if self.already:
            return f"<Done {self.path}: {self.name}, already done, {self.plan.notation}>"
        sizes = f"{format_bytes(self.read)} read, {format_bytes(self.written)} written"
        return (
            f"<Done {self.path}: {self.name} in {format_time(self.seconds)}, "
            f"{sizes}, {self.plan.notation}>"
        )


# --- plans ----------------------------------------------------------------------------------


def planned_input(request: RunRequest) -> tuple[da.Array, Plan]:
    """Return the source array, in the blocks of its plan, and the plan.

    If no plan fits, blocks are halved, unless their size was given.
    """
    x = request.open()
    is_fixed = request.block_size is not None or request.options.get("chunks") == "preserve"
    block_nbytes = None
    first_error = None
    while True:
        try:
            plan = _planned(request, x)
            return request.open(plan), plan
        except PlanError as error:
            first_error = first_error or error
            block_nbytes = (block_nbytes or sources.block_bytes(int(x.nbytes))) // 2
            if is_fixed or block_nbytes < sources.SMALLEST:
                raise first_error from None
        x = replace(request, block_size=block_nbytes).open()


def _planned(request: RunRequest, x: da.Array) -> Plan:
    """Return the plan, with chunks that a Zarr array can hold."""
    is_plain = x.dtype.isnative and x.dtype.char in "fdFD"  # others are cast, which is a copy
    stored = None
    if request.array is None:
        stored = replace(
            request.reader().described,
            reopened=request.block_size is None and is_plain,
            resumable=request.scratch is not None,
        )

    own_filter = request.filter_of(x)

    def plan_with(options: Mapping[str, Any]) -> Plan:
        dims = getattr(request.array, "dims", ())
        if own_filter is not None:
            return with_dims(
                dims,
                own_filter.plan,
                x,
                replace(request, options=options).filter_options,
                request.transfer_token,
                stored,
                request.writing(x.dtype),
            )
        return with_dims(
            dims,
            calls.plan_of_stored,
            x,
            stored,
            request.kind,
            request.where,
            cast("calls.Norm", request.norm),
            cast("Extras", {**options, **request.bands}),
            request.writing(x.dtype),
        )

    plan = plan_with(request.options)
    if targets.uniform(plan.chunks) is not None:
        return plan
    chunks = tuple(max(cut, default=1) or 1 for cut in plan.chunks)
    return plan_with({**request.options, "chunks": chunks})


def attributes(plan: Plan, norm: str | None) -> dict[str, Any]:
    """Return the attributes of the result."""
    spec = plan.spec
    forward = any(order != "natural" for order in spec.orders_out)
    places = {str(axis): spec.spectrum(axis).indices(band) for axis, band in spec.bands.items()}
    return {
        **({"band_index": places} if places else {}),
        "version": config.own_version(),
        "kind": spec.name,
        "axes": list(spec.axes),
        "lengths": list(spec.lengths),
        "norm": norm or "backward",
        "order": list(spec.orders_out if forward else spec.orders_in),
        "order_of": "input" if not forward and "transposed" in spec.orders_in else "result",
        "rounds": plan.notation,
        "factors": [list(program.factors) for program in plan.programs],
        "variant": plan.variant,
        "kernel": plan.kernel,
        "input_shape": list(spec.shape),
        "input_dtype": spec.dtype,
    }


def layout_of_result(plan: Plan, x: da.Array) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Return shape, block shape and stored dtype of a result: half precision stays half."""
    half = x.dtype.char == "e" and plan.spec.kind == "c2r"
    dtype = x.dtype.newbyteorder("=") if half else plan.spec.out_dtype
    return plan.spec.out_shape, targets.uniform(plan.chunks) or (), np.dtype(dtype)


def check_space_of_result(request: RunRequest, nbytes: int, dtype: np.dtype[Any]) -> None:
    """Raise an error if the disk is too small for a result, or warn if that is compressed."""
    try:
        check_free_space(request.destination, nbytes, "the result takes")
    except OSError as error:
        if not targets.parse_compressors(request.compressors, dtype):
            raise
        text = f"{error.strerror}, before it is compressed: {request.destination}"
        warnings.warn(text, RuntimeWarning, stacklevel=6)


# --- paths ----------------------------------------------------------------------------------


def refuse_places(request: RunRequest) -> None:
    """Raise an error for impossible paths, and for paths inside of each other.

    Raises
    ------
    ArgumentError
        With the name of the argument.
    """
    source = _resolved("source", request.source)
    if request.component is not None and source.is_dir():  # the array's folder may be a link
        source = _resolved("component", array_folder(source, request.component))
    result = _resolved("destination", request.destination)
    if source.is_dir() and source in result.parents:
        outside = f"a path outside of the source, {request.source}"
        raise_invalid("destination", str(request.destination), outside)
    if request.scratch is not None:
        _refuse_scratch_place(
            request,
            request.scratch,
            source,
            result,
        )


def _refuse_scratch_place(
    request: RunRequest,
    scratch: Path,
    source: Path,
    result: Path,
) -> None:
    """Raise an error for a scratch folder that is in another path of the run, or holds it."""
    if URL.match(str(scratch)):
        raise_invalid("scratch", str(scratch), "a local path")
    folder = _resolved("scratch", scratch)
    for name, path in {"source": source, "destination": result}.items():
        if path in (folder, *folder.parents) and not path.is_file():
            raise_invalid("scratch", str(scratch), f"a folder outside of the {name}, {path}")
    if folder in result.parents:
        need = f"a path outside of the scratch folder, {scratch}, which is deleted at the end"
        raise_invalid("destination", str(request.destination), need)


def _resolved(argument: str, path: Path) -> Path:
    """Return the absolute path of an argument; an error if no file can have it."""
    try:
        absolute = path.resolve()
        absolute.exists()
    except (OSError, ValueError, RuntimeError) as error:  # also null bytes, or a cycle of links
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            raise
        reason = getattr(error, "strerror", error)
        raise_invalid(argument, str(path), f"a path that a file can have ({reason})")
    return absolute


def lock_folder_of(
    argument: str,
    path: Path,
    folder: Path,
    *,
    purpose: str,
    allowed: str,
) -> int:
    """Lock a folder for this run, and return the handle of its lock.

    Parameters
    ----------
    argument : str
        Name of the argument that needs the folder, for errors.
    path : Path
        Value of the argument.
    folder : Path
        The folder, which is made if it is missing.
    purpose : str
        What the path cannot do or be without the lock.
    allowed : str
        The paths that no other run has locked.

    Raises
    ------
    ScratchError
        If the folder cannot be made or locked.
    ArgumentError
        If another run has locked it.
    """
    try:
        handle = folders.make_and_lock_folder(folder)
    except OSError as error:
        code = error.errno or errno.EIO
        text = f"`{argument}`={str(path)!r} cannot {purpose}: {os.strerror(code)}"
        raise ScratchError(code, text, str(folder)) from error
    if handle is None:
        raise_invalid(argument, str(path), allowed)
    return handle

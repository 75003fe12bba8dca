"""Common part of all transforms in `dask_bigfft.fft`: from a call to a dask array, and docstrings.

A call is normalised, planned and turned into a graph. The algorithms are elsewhere.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial, update_wrapper
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    cast,
)

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras, explicit_signature, parse_array
from dask_bigfft.api.captures import captured
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.api.plans import described, make_plan, reader_of
from dask_bigfft.api.slicing import Slicing, slicing_of
from dask_bigfft.dask_private import functions_of, is_expression
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.gpu.dispatch import open_early
from dask_bigfft.graph.layer import origin, transformed_array
from dask_bigfft.kernels.views import empty_like
from dask_bigfft.machine import environment
from dask_bigfft.memory.limits import configure_arena
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.rows import BY_CALLER, ResultWriting, Stored
from dask_bigfft.planner.shifted import has_all_values, rearranging_plan, shift_of, shifted_plan
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.spec import parse_name, parse_scale, takes_axes

N = SupportsIndex | None
S = Sequence[SupportsIndex | None] | None
Axes = Sequence[SupportsIndex] | None
Norm = Literal["backward", "ortho", "forward"] | None
P = ParamSpec("P")
Result = TypeVar("Result")


def transforms_by(
    work: Callable[Concatenate[str, P], Result],
) -> Callable[[Callable[[], None]], Callable[P, Result]]:
    """Return a decorator that makes a function of a name and a docstring.

    As a decorator of `work` itself, it binds the name of `work` to the returned decorator, which is
    then written above an empty function: ``@forward`` above ``def fft()`` makes a function `fft`
    that calls `forward` with "fft" as its first argument. It has the other parameters of `work`,
    with the keywords of its options written out, and refuses others. A docstring without parameters
    gets those of `transform`, whose docstring describes the arguments of all transforms.
    """
    signature = explicit_signature(work)
    _, *parameters = signature.parameters.values()
    names = [parameter.name for parameter in parameters]

    def decorator(described: Callable[[], None]) -> Callable[P, Result]:
        def function(*args: P.args, **kwargs: P.kwargs) -> Result:
            refuse_unknown(kwargs, names)
            return work(described.__name__, *args, **kwargs)

        shown: Any = update_wrapper(function, described)
        shown.__signature__ = signature.replace(parameters=parameters)
        text = inspect.cleandoc(described.__doc__ or "")
        if text and "Parameters\n" not in text:  # none with python -OO
            shown.__doc__ = _with_shared_parts(text, shown.__signature__.parameters)
        return function

    return decorator


def _with_shared_parts(text: str, parameters: Mapping[str, Any]) -> str:
    """Return a docstring with the sections of the docstring of `transform`."""
    shared_text = inspect.cleandoc(transform.__doc__ or "")
    _, heading, sections = shared_text.partition("Parameters\n")
    all_parameters, returns, results = sections.partition("\nReturns\n")
    entries = re.split(r"\n(?=\w)", all_parameters)
    own_entries = [entry for entry in entries if entry.split(" ")[0] in parameters]
    summary, title, examples = text.partition("Examples\n--------\n")
    shared = "\n".join([f"{heading}----------", *own_entries]) + returns + results
    return f"{summary}{shared}\n\n{title}{examples}\n"


def transform(
    name: str,
    a: Any,
    lengths: Any,
    axes: Any,
    norm: Any,
    out: None,
    extras: Extras,
) -> da.Array:
    """Return the lazy result of a transform by its name; warnings point at its caller.

    The arguments are described here for all transforms (see `transforms_by`): `lengths` is `n` or
    `s`, `axes` also `axis`, and `extras` holds the keywords from `order` on.

    Parameters
    ----------
    a : dask array or array-like
        Input; it is only read, unless `overwrite_x` is true.
    n : int, optional
        Length of the transform: of the result for `irfft` and `hfft`, of the input otherwise. The
        input is cropped or padded with zeros. The default follows from the input's length.
    axis : int
        The axis, of any chunking.
    s : sequence of int, optional
        Length of the transform along each of `axes`, -1 for the array's own. The input is cropped
        or padded with zeros.
    axes : sequence of int
        The axes, each once, of any chunking. The last one is the real axis of real transforms. With
        no axes complex transforms return the array unchanged.
    norm : {"backward", "ortho", "forward"}, optional
        Scaling by 1/N: of the inverse (default), of both by its square root, or of the forward.
    out : None
        Accepted for compatibility; must be None, because the result is lazy.
    order : {"natural", "transposed"} or one per axis, optional
        Order of the spectrum: of the result of forward transforms, of the input of inverse ones.
        Transposed order saves an exchange; `dask_bigfft.transposed_index` gives the permutation.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result. "auto" takes those of the last round: about as large as the input's,
        or whole transforms if these are small (a few MiB), or of 1 MiB if the input's are tiny and
        numerous; on one GPU, like the input's. "preserve" takes the input's chunks.
    memory_limit : int or str, optional
        Bytes that one process may use, such as ``"4 GiB"``. A plan that needs more is refused.
    rounds : sequence of mappings of axis to factor, optional
        Decomposition, in place of the planner's choice; -1 stands for the remaining factor:
        ``[{0: 64}, {0: -1, 1: -1}]``. In transposed order the factors must be the digits of the
        spectrum; inverse transforms take them from the last to the first.
    digits : sequence of int or mapping of axis to them, optional
        Digits of the spectrum in transposed order. By default they follow from the length alone, so
        spectra of equal lengths can be multiplied. Other digits must be given wherever the spectrum
        is used: to the transform, its inverse, `fftfreq` and `dask_bigfft.transposed_index`.
    band : pair of float, or mapping of axis to pair, optional
        Lowest and highest frequency that is kept, ends included, in cycles per sample as in
        `fftfreq`: ``{0: (-0.1, 0.1)}``. Half a spectrum has no negative ones. The spectrum is in
        ascending order along these axes, and in natural order along others. It is the result of
        forward transforms. Inverse ones take it as their input, need the lengths of these axes, and
        count all other frequencies as zeros.
    band_index : pair of int, or mapping of axis to pair, optional
        The same by places in ascending order, as in ``fftshift(fft(a))[start:stop]``.
    variant : {"auto", "dif", "dit", "stockham", "pease"}, optional
        Data movement within a split axis: "dif" and "dit" reorder after or before the rounds,
        "stockham" in each exchange, and "pease" repeats the same exchange. "auto" lets the planner
        choose.
    kernel : str, optional
        FFT library for blocks: "scipy", "mkl_fft", "ducc0", "pyfftw", or "auto" for the fastest
        installed one; on a cluster all workers must have it.
    device : {"auto", "cpu", "gpu", "hybrid"}, optional
        Device for the rounds. Blocks stay in host memory; a GPU takes them tile by tile. "auto"
        takes a GPU if there is one. A block that does not fit a GPU is done on the CPU. With
        "hybrid" the CPU and a GPU share blocks, by forecast speeds or as `bigfft.hybrid.cpu-share`
        is set; workers without a GPU use the CPU.
    device_memory_limit : int or str, optional
        Usable bytes of each GPU; larger blocks cross the bus several times.
    overwrite_x : bool, optional
        True if the contents of `a` may be destroyed. An array in one chunk is then transformed in
        place if dtype and shape stay the same; read-only blocks are copied, which `memory_limit`
        does not count. Other users of its blocks, such as those of a persisted array, see the
        changed values.
    verify : {"none", "energy", "checksum"}, optional
        Check of the rounds. "energy" (Parseval) finds changes of magnitude. "checksum" adds linear
        checksums, and checksums of all exchanged shards, and so finds changes of sign, phase and
        place, too. A wrong round is repeated once before it is an error; a wrong shard is an error
        at once.
    planner : {"estimate", "measure"}, optional
        "estimate" takes the cheapest plan by the cost model. "measure" runs the few best plans on
        an array of ones and remembers the fastest for transforms of this class.

    Returns
    -------
    dask.array.Array
        Lazy array of the kind and shape of the result in `numpy.fft` or `scipy.fft` (in transposed
        order half a spectrum is a rectangle, see `rfftfreq`). Half and single precision input gives
        single precision (real results of one axis stay half); otherwise the result has double or
        long double precision.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A `ValueError` or `TypeError` for an argument that is not allowed, or for a memory limit
        that no plan can meet, when the graph is built.

    Notes
    -----
    An axis in several chunks is split into digits. They are transformed one after the other, with
    twiddles and rechunks between them (Cooley and Tukey, Math. Comp. 19, 1965; for several axes at
    a time Gu, Siegel and Li, Proc. ICS, 2011). Lengths that cannot be split become convolutions
    (Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970).
    """
    if out is not None:
        allowed = "None: a lazy result has no memory to be put into"
        raise_invalid(
            "out",
            type(out).__name__,
            allowed,
            kind=ArgumentTypeError,
        )
    if axes is None and name.endswith("2"):  # None was asked for, which numpy.fft takes as all
        name = f"{name[:-1]}n"
    _warn(
        name,
        lengths,
        axes,
        stacklevel=5,
    )
    open_early(extras.get("device"))
    array = parse_array(a, name)
    if _has_no_axes(
        name,
        lengths,
        axes,
        norm,
    ):
        return array
    plan = make_plan(
        array,
        name,
        lengths,
        axes,
        norm,
        stored=described(array),
        **extras,
    )
    capture = captured(array, plan, extras)
    if capture.transfer is not None:
        return _lazily(capture.array, capture.plan, transfer=capture.transfer)
    if capture.spectrum is not None:
        capture.spectrum.is_transformed = True
    source, plan = take_over(array, capture.plan)
    slicing = slicing_of(extras) if is_expression(array) else None
    return _lazily(source, plan, slicing)


def _has_no_axes(
    name: str,
    lengths: Any,
    axes: Any,
    norm: Any,
) -> bool:
    """Return True if no axis is to be transformed, so that the array is its own transform.

    Real transforms need an axis, as in NumPy and SciPy.
    """
    if name not in ("fft2", "ifft2", "fftn", "ifftn") or not isinstance(axes, Sequence) or axes:
        return False
    if lengths is not None and np.size(lengths):
        raise_invalid("s", lengths, "as many lengths as axes (0)")
    parse_scale(norm, not name.startswith("i"))
    return True


def transform_as_planned(
    name: str,
    array: da.Array,
    lengths: Any,
    axes: Any,
    norm: Any,
    plan: Plan,
) -> da.Array:
    """Return the lazy result of a transform by a plan that was made before.

    Raises
    ------
    ArgumentError
        If the plan is for another transform, or other chunks.
    """
    allowed = f"one for {name} of {array.shape} in chunks {array.chunks}"
    spec = plan.spec
    raise_other = partial(
        raise_invalid,
        "plan",
        f"{spec.name} of {spec.shape}",
        allowed,
    )
    axis_count = 1
    if takes_axes(name):
        axis_count = array.ndim if axes is None else len(axes)
    if len(spec.axes) != axis_count:
        raise_other()
    array = parse_array(array, name)
    expected = make_plan(
        array,
        name,
        lengths,
        axes,
        norm,
        order=spec.orders_out if spec.sign < 0 else spec.orders_in,
        digits=dict(spec.digits),
    )
    unnamed_spec = replace(spec, name="", dims=())
    expected_spec = replace(expected.spec, name="", dims=())
    if unnamed_spec != expected_spec or plan.source != expected.source:
        raise_other()
    return _lazily(array, plan)


def _lazily(
    array: da.Array,
    plan: Plan,
    slicing: Slicing | None = None,
    transfer: Any = None,
) -> da.Array:
    """Return the lazy result of a plan, which may read its array from files.

    `transfer` is as in `transformed_array`.
    """
    reader = reader_of(array) if plan.from_rows else None
    place = None
    if reader is not None:
        from dask_bigfft.carriers.disk import scratch_place

        place = replace(scratch_place(plan), rows=reader)
    result = applied(
        array,
        plan,
        place,
        transfer,
        slicing=slicing,
    )
    is_half_precision = array.dtype.char == "e"  # in any byte order
    # Of several axes, all but the last give NumPy complex64.
    if is_half_precision and plan.spec.kind == "c2r" and len(plan.spec.axes) == 1:
        result = result.astype(np.float16)
    return result


def _warn(
    name: str,
    lengths: Any,
    axes: Any,
    stacklevel: int,
) -> None:
    """Warn of arguments that NumPy 2 has deprecated."""
    if lengths is None or not takes_axes(name):
        return
    if axes is None and name.endswith("n"):
        text = "`axes` should not be `None` if `s` is not `None` (Deprecated in NumPy 2.0): "
        text += "the last axes are taken; name them to keep that"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
    if isinstance(lengths, Sequence) and any(n is None for n in lengths):
        text = "`s` should not hold `None` (Deprecated in NumPy 2.0): -1 is the array's own length"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def plan_of_stored(
    a: Any,
    stored: Stored | None,
    kind: str,
    where: Mapping[str, Any],
    norm: Norm,
    extras: Extras,
    writing: ResultWriting = BY_CALLER,
) -> Plan:
    """Return the plan of a transform from file to file, or of an array.

    Parameters
    ----------
    a : dask array or array-like
        Input of the transform.
    stored : Stored, optional
        Layout of the input in its files.
    kind, norm, extras
        Arguments of `plan`.
    where : mapping
        `n` and `axis`, or `s` and `axes`.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    """
    own_names = ("n", "axis")
    other_names = ("s", "axes")
    if takes_axes(parse_name(kind)):
        own_names, other_names = other_names, own_names
    for name in other_names:
        if where.get(name) is not None:
            text = f"None for {kind}, which takes {' and '.join(own_names)}"
            raise_invalid(
                name,
                where[name],
                text,
                kind=ArgumentTypeError,
            )
    lengths, axes = (where.get(name) for name in own_names)
    _warn(
        kind,
        lengths,
        axes,
        stacklevel=4,
    )
    array = parse_array(a, kind)
    refuse_unknown(extras, Extras.__annotations__)
    stored = stored or described(array)
    plan = make_plan(
        array,
        kind,
        lengths,
        axes,
        norm,
        stored=stored,
        writing=writing,
        **extras,
    )
    capture = captured(array, plan, extras)
    if capture.transfer is not None:
        return capture.plan
    _, plan = take_over(array, capture.plan)
    return plan


#: Plans that were applied within `plans_of_call`; None outside of it.
_applied_plans: ContextVar[list[Any] | None] = ContextVar("bigfft_applied_plans", default=None)


def plans_of_call(function: Callable[..., Any], *args: Any, **keywords: Any) -> list[Any]:
    """Return the plans in the lazy result of a function, in order.

    These are plans of transforms, and of averages over segments and short-time transforms.
    """
    plans: list[Any] = []
    context = copy_context()
    context.run(_applied_plans.set, plans)
    context.run(function, *args, **keywords)
    return plans


def note_plan(plan: Any) -> None:
    """Add a plan to those that `plans_of_call` returns, within its call."""
    plans = _applied_plans.get()
    if plans is not None:
        plans.append(plan)


def applied(
    array: Any,
    plan: Plan,
    place: Any = None,
    transfer: Any = None,
    slicing: Slicing | None = None,
) -> da.Array:
    """Return the lazy result of a plan on an array; for the parameters see `transformed_array`."""
    if plan.is_transform:
        note_plan(plan)
    configure_arena()
    return transformed_array(
        array,
        plan,
        config.get("bigfft.exchange.carrier"),
        place=place,
        transfer=transfer,
        slicing=slicing,
    )


def rearranged(
    array: da.Array,
    source: Layout,
    result: Layout,
    name: str = "shift",
) -> da.Array:
    """Return the lazy array in other blocks, or in another order, by one exchange.

    Parameters
    ----------
    array : dask.array.Array
        The array.
    source, result : Layout
        Blocks before and after.
    name : str
        Name of the tasks.
    """
    on_disk = environment.possible_storage() == "disk"
    plan = rearranging_plan(
        source,
        result,
        array.dtype.str,
        name,
        machine=environment.current_machine(None, is_limited=False),
        storage="disk" if on_disk else "memory",
    )
    return applied(array, plan)


def by_block(work: Callable[..., Any], /, *arrays: Any, dtype: Any, **keywords: Any) -> da.Array:
    """Return the lazy result of a function of blocks; it has the axes of the first array.

    Keywords are those of `dask.array.map_blocks` and of the function. The function is not called to
    infer the dtype; its blocks are on a GPU if those of the first array are, unless `meta` differs.
    """
    keywords.setdefault("meta", empty_like(arrays[0]._meta, arrays[0].ndim, dtype))
    map_blocks = functions_of(arrays[0]).map_blocks
    return cast(
        "da.Array",
        map_blocks(
            work,
            *arrays,
            dtype=dtype,
            **keywords,
        ),
    )


def take_over(array: da.Array, plan: Plan) -> tuple[da.Array, Plan]:
    """Return an array and its plan; a shifted array is replaced by its source, with a new plan.

    Parameters
    ----------
    array : dask.array.Array
        Input of a transform.
    plan : Plan
        Plan for this array.
    """
    shifted = origin(array)
    if shifted is None:
        return array, plan
    offsets = shift_of(shifted.plan)
    if offsets is None:
        return array, plan
    # Only the shifted blocks may be overwritten, and neither padding nor a band is shifted.
    if plan.overwrite or plan.spec.windows_in:
        return array, plan
    if not all(has_all_values(plan.source.axes[axis]) for axis in offsets):
        return array, plan
    # The shifted array begins with value `first` of its source, so that the source begins with
    # value N - `first` of the shifted array.
    before = {axis: array.shape[axis] - first for axis, first in offsets.items()}
    plan_of_source = shifted_plan(plan, before, {})
    if not plan_of_source.fits_memory:
        return array, plan
    return shifted.array, plan_of_source

"""What all transforms of `dask_bigfft.fft` share: the way from a call to a dask array, and words.

Chains normalise -> plan -> graph; the algorithms are elsewhere. Imports `planning`, `shifts`,
`graph` and `config`.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any, Concatenate, Literal, ParamSpec, SupportsIndex, Unpack

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.graph.dask_private import original_of
from dask_bigfft.graph.layer import origin, scratch_place, transformed_array
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan import Plan, ShiftPlan, shifted_plan, whole_axes
from dask_bigfft.planner.rows import Stored
from dask_bigfft.planning.arguments import Extras, make_plan, parse_array, parse_options
from dask_bigfft.shifts import too_large
from dask_bigfft.storage.sources import Reader, stored_reader
from dask_bigfft.transforms.spec import parse_name, parse_scale

N = SupportsIndex | None
Axis = SupportsIndex
S = Sequence[SupportsIndex | None] | None
Axes = Sequence[SupportsIndex] | None
Norm = Literal["backward", "ortho", "forward"] | None
P = ParamSpec("P")


def transforms_by(
    work: Callable[Concatenate[str, P], da.Array],
) -> Callable[[Callable[[], None]], Callable[P, da.Array]]:
    """Return a decorator that makes a function of a name and a docstring.

    The function calls `work` with its name and has the other parameters of `work`, with the
    keywords in `Extras` written out. A docstring without parameters gets those of `transform`,
    whose docstring describes the arguments of all transforms.
    """
    signature = inspect.signature(work)
    _, *parameters = signature.parameters.values()
    if parameters[-1].annotation == Unpack[Extras]:
        parameters[-1:] = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in Extras.__annotations__.items()
        ]

    def decorator(described: Callable[[], None]) -> Callable[P, da.Array]:
        def function(*args: P.args, **kwargs: P.kwargs) -> da.Array:
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
    _, heading, rest = inspect.cleandoc(transform.__doc__ or "").partition("Parameters\n")
    described, returns, results = rest.partition("\nReturns\n")
    entries = re.split(r"\n(?=\w)", described)
    used = [entry for entry in entries if entry.split(" ")[0] in parameters]
    summary, title, examples = text.partition("Examples\n--------\n")
    shared = "\n".join([f"{heading}----------", *used]) + returns + results
    return f"{summary}{shared}\n\n{title}{examples}\n"


def transform(
    name: str, a: Any, lengths: Any, axes: Any, norm: Any, out: None, extras: Extras
) -> da.Array:
    """Return the lazy result of a transform called by its name, at which warnings point.

    The arguments are described here for all transforms (see `transforms_by`): `lengths` is `n` or
    `s`, `axes` also `axis`, and `extras` holds the keywords from `order` on.

    Parameters
    ----------
    a : dask array or array-like
        What is transformed; only read, unless `overwrite_x` is true.
    n : int, optional
        Length of the transform: of its result for `irfft` and `hfft`, of its input for the others.
        The input is cropped or padded with zeros; by default its own length decides.
    axis : int
        The axis, of any chunking.
    s : sequence of int, optional
        Length of the transform along each of `axes`, -1 for the array's own. The input is cropped
        or padded with zeros.
    axes : sequence of int
        The axes, each once, of any chunking. The last one is the real one of real transforms. With
        none of them complex transforms return the array as it is.
    norm : {"backward", "ortho", "forward"}, optional
        Which direction is scaled by 1/N: the inverse (default), both by its root, the forward.
    out : None
        Accepted for compatibility; must be None, because the result is lazy.
    order : {"natural", "transposed"} or one per axis, optional
        Order of the spectrum: of the result of forward transforms, of the input of inverse ones.
        Transposed order saves an exchange; `dask_bigfft.transposed_index` tells what lies where.
    chunks : "auto", "preserve", mapping or dask chunks, optional
        Chunks of the result: what the last round gives (about as large as the input's, or of 1 MiB
        where those are tiny and very many), the input's, or any.
    memory_limit : int or str, optional
        Bytes that one process may use, such as ``"4 GiB"``. A plan that needs more is refused.
    rounds : sequence of mappings of axis to factor, optional
        The decomposition, where the planner should not choose it, -1 standing for what is left:
        ``[{0: 64}, {0: -1, 1: -1}]``. In transposed order the factors have to be the digits of the
        spectrum, which inverse transforms take from the last to the first.
    digits : sequence of int or mapping of axis to them, optional
        Digits of the spectrum in transposed order. By default they follow from the length alone, so
        spectra of equal lengths can be multiplied. Others have to be named wherever the spectrum is
        used: by the transform, its inverse, `fftfreq` and `dask_bigfft.transposed_index`.
    variant : {"auto", "dif", "dit", "stockham", "pease"}, optional
        How data move within a split axis: "dif" and "dit" reorder after or before the rounds,
        "stockham" on the way, "pease" has the same exchange every time. "auto" is the planner's.
    kernel : str, optional
        FFT library that works inside blocks: "scipy", "mkl_fft", "ducc0", "pyfftw", or "auto" for
        the fastest of those installed, on a cluster everywhere.
    device : {"auto", "cpu", "gpu", "hybrid"}, optional
        Where rounds are done. Blocks stay in host memory; a GPU takes them piece by piece. "auto"
        takes one where there is one. A block that a GPU has no room for is done on the CPU. With
        "hybrid" the CPU and a GPU share blocks; workers of a cluster without a GPU do theirs on
        the CPU.
    device_memory_limit : int or str, optional
        Bytes of each GPU that may be used; larger blocks cross the bus several times.
    overwrite_x : bool, optional
        Whether the contents of `a` may be destroyed: an array in one chunk is then transformed in
        its own memory where dtype and shape stay. Others that use its blocks, such as those of a
        persisted array, would find them changed.
    verify : {"none", "energy", "checksum"}, optional
        Whether rounds are checked while they work: their energy (Parseval), which finds changes of
        magnitude; or also linear checksums and those of all shards that travel, which find
        changes of sign, phase and place, too. A round that is wrong is done once more, then an
        error; a shard that is wrong is an error at once.
    planner : {"estimate", "measure"}, optional
        Whether the cheapest plan by the cost model is taken, or the few that look best are run
        on an array of ones, and the fastest is remembered for transforms of this class.

    Returns
    -------
    dask.array.Array
        Lazy, real or complex and of the shape that the function of this name in `numpy.fft` or
        `scipy.fft` returns (in transposed order half a spectrum is a rectangle, see `rfftfreq`). Of
        single precision where the input is of half or single (real results of one axis stay half),
        else of double or long double.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A `ValueError`, a `TypeError`: an argument that is not allowed, or a memory limit that no
        plan can meet, when the graph is built.

    Notes
    -----
    An axis that does not lie whole in a chunk falls apart into digits that are transformed one
    after the other, with twiddles and rechunks between them (Cooley and Tukey, Math. Comp. 19,
    1965; for several axes at a time Gu, Siegel and Li, Proc. ICS, 2011); lengths that do not
    split become convolutions (Bluestein, IEEE Trans. Audio Electroacoust. 18, 1970).
    """
    if out is not None:
        allowed = "None: a lazy result has no memory to be put into"
        refuse("out", type(out).__name__, allowed, kind=ArgumentTypeError)
    if axes is None and name.endswith("2"):  # None was asked for, which numpy.fft takes as all
        name = f"{name[:-1]}n"
    _warn(name, lengths, axes, stacklevel=5)
    array = parse_array(a, name)
    parse_options(extras, Extras)
    if _nothing_asked(name, lengths, axes, norm):
        return array
    found = make_plan(array, name, lengths, axes, norm, stored=_described(array), **extras)
    return _lazily(*take_over(array, found))


def _nothing_asked(name: str, lengths: Any, axes: Any, norm: Any) -> bool:
    """Whether no axis is to be transformed: the array is then its own transform, in its dtype.

    As in NumPy and SciPy, whose real transforms want an axis.
    """
    if name not in ("fft2", "ifft2", "fftn", "ifftn") or not isinstance(axes, Sequence) or axes:
        return False
    if lengths is not None and np.size(lengths):
        refuse("s", lengths, "as many lengths as axes (0)")
    parse_scale(norm, not name.startswith("i"))
    return True


def transform_as_planned(
    name: str, array: da.Array, lengths: Any, axes: Any, norm: Any, given: Plan
) -> da.Array:
    """Return the lazy result of a transform by a plan that was made before.

    Raises
    ------
    ArgumentError
        If the plan is for another transform, or other chunks.
    """
    allowed = f"one for {name} of {array.shape} in chunks {array.chunks}"
    other = partial(refuse, "plan", f"{given.spec.name} of {given.spec.shape}", allowed)
    one = not name.endswith(("2", "n"))
    if len(given.spec.axes) != (1 if one else array.ndim if axes is None else len(axes)):
        other()
    array, digits = parse_array(array, name), dict(given.spec.digits)
    order = given.spec.orders_out if given.spec.sign < 0 else given.spec.orders_in
    found = make_plan(array, name, lengths, axes, norm, order=order, digits=digits)
    wanted, made = replace(found.spec, name=""), replace(given.spec, name="")
    if wanted != made or given.source != found.source:
        other()
    return _lazily(array, given)


def _described(array: da.Array) -> Stored | None:
    """How an array lies in files, if it is one that can be read from there."""
    reader = _reader(array)
    return None if reader is None else reader.described


def _reader(array: da.Array) -> Reader | None:
    """What reads an array straight from its files, if it lies in some."""
    found = original_of(array)
    return None if found is None or type(found) is np.ndarray else stored_reader(found, array)


def _lazily(array: da.Array, found: Plan) -> da.Array:
    rows = _reader(array) if found.from_rows else None
    place = None if rows is None else replace(scratch_place(found), rows=rows)
    result: da.Array = applied(array, found, place)
    one = len(found.spec.axes) == 1  # of several, all but the last give NumPy complex64
    half = array.dtype.char == "e" and found.spec.kind == "c2r" and one  # in any byte order
    return result.astype(np.float16) if half else result


def _warn(name: str, lengths: Any, axes: Any, stacklevel: int) -> None:
    """Warn of what NumPy 2 has deprecated."""
    if lengths is None or not name.endswith(("2", "n")):
        return
    if axes is None and name.endswith("n"):
        text = "`axes` should not be `None` if `s` is not `None` (Deprecated in NumPy 2.0): "
        text += "the last axes are taken; name them to keep that"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
    if isinstance(lengths, Sequence) and any(n is None for n in lengths):
        text = "`s` should not hold `None` (Deprecated in NumPy 2.0): -1 is the array's own length"
        warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def plan(
    a: Any,
    kind: str = "fftn",
    *,
    n: N = None,
    s: S = None,
    axis: SupportsIndex | None = None,
    axes: Axes = None,
    norm: Norm = None,
    **extras: Unpack[Extras],
) -> Plan:
    """Return the plan of a transform, without touching data.

    Parameters
    ----------
    a : dask array or array-like
        What would be transformed.
    kind : str
        Name of the transform, such as ``"fftn"`` or ``"irfft"``: one of those of `numpy.fft`, no
        cosine or sine transform.
    n, axis
        As transforms of one axis take them.
    s, axes
        As the other transforms take them.
    norm
        As all transforms take it.
    **extras
        `order`, `chunks`, `memory_limit`, `rounds`, `digits`, `variant`, `kernel`, `device`,
        `device_memory_limit`, `overwrite_x`, `verify` and `planner`, see `fft`.

    Returns
    -------
    Plan
        Print it, ask it to ``explain()``, or show it in a notebook.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As the transform does.

    Examples
    --------
    >>> x = da.zeros(4096, chunks=256, dtype=complex)
    >>> plan(x, "fft").notation
    '{X1} {X2}'
    """
    where = {"n": n, "s": s, "axis": axis, "axes": axes}
    return plan_of_stored(a, None, kind, where, norm, extras)


def plan_of_stored(
    a: Any, stored: Stored | None, kind: str, where: Mapping[str, Any], norm: Norm, extras: Extras
) -> Plan:
    """Return the plan of a transform from file to file, or of an array.

    Parameters
    ----------
    a : dask array or array-like
        What would be transformed.
    stored : Stored, optional
        How it lies in its files.
    kind, norm, extras
        As `plan` takes them.
    where : mapping
        `n` and `axis`, or `s` and `axes`.
    """
    one = not parse_name(kind).endswith(("2", "n"))
    taken, others = (("n", "axis"), ("s", "axes")) if one else (("s", "axes"), ("n", "axis"))
    for name in others:
        if where.get(name) is not None:
            text = f"None for {kind}, which takes {' and '.join(taken)}"
            refuse(name, where[name], text, kind=ArgumentTypeError)
    lengths, along = (where.get(name) for name in taken)
    _warn(kind, lengths, along, stacklevel=4)
    array = parse_array(a, kind)
    parse_options(extras, Extras)
    stored = stored or _described(array)
    found = make_plan(array, kind, lengths, along, norm, stored=stored, **extras)
    return take_over(array, found)[1]


def applied(array: Any, plan: Plan | ShiftPlan, place: Any = None) -> Any:
    """Return the lazy result of a plan on an array."""
    configure_arena()
    return transformed_array(array, plan, config.get("bigfft.exchange.carrier"), place=place)


def by_block(work: Callable[..., Any], /, *arrays: Any, dtype: Any, **keywords: Any) -> Any:
    """Return the lazy result of a function of the arrays' blocks, of which the first has its axes.

    Keywords are those of `dask.array.map_blocks` and of the function. It is not called to find
    out what it makes.
    """
    meta = np.empty((0,) * arrays[0].ndim, dtype)
    return da.map_blocks(work, *arrays, dtype=dtype, meta=meta, **keywords)


def take_over(array: da.Array, plan: Plan) -> tuple[da.Array, Plan]:
    """Return an array and its plan, or for a shifted array what it was made from and a plan for it.

    Parameters
    ----------
    array : dask.array.Array
        What a transform is asked of.
    plan : Plan
        For this array.
    """
    found = origin(array)
    if found is None or not isinstance(found.plan, ShiftPlan) or not found.plan.is_shift:
        return array, plan
    offsets = found.plan.offsets
    if plan.overwrite or not set(offsets) <= whole_axes(plan.source):
        return array, plan  # only the shifted blocks may be overwritten; or these are padded
    before = {axis: array.shape[axis] - first for axis, first in offsets.items()}
    folded = shifted_plan(plan, before, {})
    return (array, plan) if too_large(folded) else (found.array, folded)

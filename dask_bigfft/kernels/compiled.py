"""The decorator that compiles this room's loops and reports what compiling took; sums of squares.

Compilation happens once on a machine, and later processes read the code from disk. The first call
in a process waits for either of these. That time is not counted as part of a phase.

Imports `events`, and numba only when a loop is called or soon will be: that takes 0.1 s. Without
numba (`has_numba`) NumPy does the work of all loops.
"""

import threading
import time
import warnings
from collections.abc import Callable
from functools import cache, cached_property, partial, update_wrapper
from typing import Any

from dask_bigfft.errors import FallbackWarning
from dask_bigfft.events import emit, interrupted

#: Name of this package.
_PACKAGE = __name__.partition(".")[0]


class compiled:
    """Function that numba compiles at its first call, without the GIL, and caches on disk.

    Without a writeable cache folder, each process compiles it. Without numba it is the function.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._options = {"nogil": True, **options}
        update_wrapper(self, function)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba has it."""
        numba = load_numba()
        function = vars(self)["__wrapped__"]
        if numba is None:
            return function
        try:
            return numba.njit(cache=True, **self._options)(function)
        except RuntimeError:  # numba's "cannot cache function": neither beside the file nor at home
            return numba.njit(**self._options)(function)

    @property
    def _numba_type_(self) -> Any:
        """Type by which other compiled functions call this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return self.dispatcher(*arguments)


class _Here(threading.local):
    """State of this thread: number of requests for numba's lock, their start and their function."""

    depth = 0
    started = 0.0
    compiles = False


_here = _Here()


#: Held while numba is imported. Two threads that begin with different modules of it may each see
#: the other's half done, and then numba's own lock is never released.
_loading = threading.Lock()


def load_numba() -> Any:
    """Return the package numba, or None where it cannot be imported.

    Every module takes it from here, because tasks import it first.

    Warns
    -----
    FallbackWarning
        Once, if numba is missing or does not work with this Python or this NumPy.
    """
    with _loading:
        return _numba()


def has_numba() -> bool:
    """Return whether loops can be compiled. Every caller has NumPy do their work otherwise."""
    return load_numba() is not None


@cache
def load_types(context: str) -> None:
    """Load the types of a context of numba, ``"typing_context"`` or ``"target_context"``.

    Each takes 0.1 to 0.2 s, which the first call of a loop would otherwise wait for.
    """
    core = load_numba().core
    target = core.registry.cpu_target
    # As in numba, contexts are made before the compiler's lock is taken: making one takes it, too.
    contexts = {name: getattr(target, name) for name in ("typing_context", "target_context")}
    with core.compiler_lock.global_compiler_lock:
        contexts[context].refresh()


@cache
def _numba() -> Any:
    """Import numba, and report from then on how long loops are compiled."""
    try:
        import numba
        from numba.core import event
    except (ImportError, OSError) as error:  # OSError: llvmlite without its library
        text = f"numba cannot be imported ({error}): NumPy copies and multiplies in place of "
        text += "compiled loops. Large transforms take up to twice as long, and those of large "
        text += "prime lengths four times"
        warnings.warn(text, FallbackWarning, stacklevel=2)
        return None

    class Listener(event.Listener):  # type: ignore[misc, unused-ignore]
        """Listener that reports compilation of our loops and waits for numba's compiler."""

        def on_start(self, event: Any) -> None:
            """Note a request for the lock, or report once that a loop is compiled under it."""
            if event.kind == "numba:compiler_lock":
                _here.depth += 1
                if _here.depth == 1:
                    _here.started = time.perf_counter()
                    _here.compiles = False
                return
            function = getattr(event.data.get("dispatcher"), "py_func", None)
            ours = (getattr(function, "__module__", None) or "").partition(".")[0] == _PACKAGE
            if ours and _here.depth and not _here.compiles:
                _here.compiles = True
                emit("compiling")

        def on_end(self, event: Any) -> None:
            """Report the time that a thread waited for the lock and held it."""
            if event.kind != "numba:compiler_lock":
                return
            _here.depth -= 1
            if _here.depth == 0:
                seconds = time.perf_counter() - _here.started
                interrupted(seconds)
                if _here.compiles:
                    emit("compile", seconds=seconds)

    for kind in ("numba:compiler_lock", "numba:compile"):
        event.register(kind, Listener())
    return numba


# --- sums of squares, of which energies are made --------------------------------------------

#: Number of values summed in their own precision before the partial sum is added in double.
STRETCH = 4096

#: Optimisations allowed in sums. The assumption that NaN cannot occur is not among them.
FAST = {"reassoc", "contract", "nsz", "arcp"}


@partial(compiled, fastmath=FAST)
def squares(x):  # type: ignore[no-untyped-def]
    """Return the sum of squares of a one-dimensional real array, in its own precision."""
    total = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        total += v * v
    return total


@compiled
def added(total, lost, more):  # type: ignore[no-untyped-def]
    """Return a sum after one more value, and what its rounding has lost (Kahan's summation).

    The rounding errors of thousands of additions would exceed the tolerance of a check.
    """
    value = more - lost
    larger = total + value
    return larger, (larger - total) - value


@compiled
def squares_of_line(x):  # type: ignore[no-untyped-def]
    """Return the sum of squares of a line, in double precision."""
    total = 0.0
    lost = 0.0
    for start in range(0, len(x), STRETCH):
        total, lost = added(total, lost, float(squares(x[start : start + STRETCH])))
    return total

"""Who transforms the data: our kernels, and other libraries called as their users would.

=================  ================================================================================
name               how
=================  ================================================================================
scipy              `scipy.fft` in place in a copy made outside the clock (real input: into new
                   memory), with as many workers as threads; ``scipy-1``: with one
da.fft             `dask.array.fft` between the rechunks that a user would write; ``persist()``
ducc0              ``out=`` that exists, ``nthreads``
mkl_fft            ``out=`` that exists, MKL's own threads
fftw-estimate      pyFFTW, plan made outside the clock for memory that exists, ``threads``
fftw-measure       the same; its planner stops after a while, and remembers
KERNEL/persist     ours with that FFT library, result in blocks
KERNEL/compute     the same, result assembled in one array
=================  ================================================================================

Once MKL has run, it offers the process its own functions under FFTW's names: pyFFTW must be
imported before. `contenders` does so, by the same door as the kernels.

Imports `data`, the front door and `kernels`.
"""

import importlib
import importlib.util
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft import fft as bigfft
from dask_bigfft.bench.data import Data
from dask_bigfft.errors import refuse
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.kernels.libraries import available, get_library, usable

__all__ = [
    "PEERS", "PLANNING_SECONDS", "Contender", "Ours", "assembled", "contenders", "dask_input",
    "fftw_wisdom",
]

Array = npt.NDArray[Any]
Mode = Literal["persist", "compute"]

#: Seconds after which FFTW's planner stops trying, unless others are named.
PLANNING_SECONDS = 60.0
#: From this size of the data on, memory for results is given back before dask makes its own.
_LARGE_NBYTES = 1 << 30


class Contender(Protocol):
    """One way to transform the data of a problem."""

    name: str
    library: str  # whose code computes: the answer is held against another's

    def prepare(self, data: Data) -> None:
        """Make plans and graphs. May overwrite the data, which are made again afterwards."""

    def before(self, data: Data) -> None:
        """What happens outside the clock before every run."""

    def run(self, data: Data) -> Any:
        """What the clock sees."""

    def answer(self, data: Data, result: Any) -> Array:
        """The result as one array."""


class _Direct:
    """What the libraries without dask have in common."""

    name = library = ""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def prepare(self, data: Data) -> None:
        """Nothing."""

    def before(self, data: Data) -> None:
        """The memory for the result exists."""
        data.room.touch()

    def answer(self, data: Data, result: Any) -> Array:
        """What was returned."""
        return np.asarray(result)


class _Scipy(_Direct):
    """`scipy.fft`."""

    name = library = "scipy"

    def prepare(self, data: Data) -> None:
        """Import it."""
        self._fft = importlib.import_module("scipy.fft")

    def before(self, data: Data) -> None:
        """Copy complex input to where it may be overwritten."""
        data.room.touch()
        if not data.problem.real:
            np.copyto(data.out, data.x)

    def run(self, data: Data) -> Any:
        """Transform."""
        function = getattr(self._fft, data.problem.kind)
        if data.problem.real:
            return function(data.x, workers=self.threads)
        return function(data.out, overwrite_x=True, workers=self.threads)


class _ScipyOne(_Scipy):
    """`scipy.fft` with one worker."""

    name = "scipy-1"

    def __init__(self, threads: int) -> None:
        super().__init__(1)


class _Ducc(_Direct):
    """`ducc0.fft`."""

    name = library = "ducc0"

    def prepare(self, data: Data) -> None:
        """Import it."""
        self._fft = importlib.import_module("ducc0").fft

    def run(self, data: Data) -> Any:
        """Transform."""
        axes = tuple(range(data.x.ndim))
        function = self._fft.r2c if data.problem.real else self._fft.c2c
        return function(data.x, axes=axes, out=data.out, nthreads=self.threads)


class _Mkl(_Direct):
    """`mkl_fft`."""

    name = library = "mkl_fft"

    def prepare(self, data: Data) -> None:
        """Import it."""
        self._fft = importlib.import_module("mkl_fft")

    def run(self, data: Data) -> Any:
        """Transform."""
        return getattr(self._fft, data.problem.kind)(data.x, out=data.out)


class _FftwEstimate(_Direct):
    """FFTW through pyFFTW's plan objects."""

    name = "fftw-estimate"
    library = "pyfftw"
    flag = "FFTW_ESTIMATE"
    planning_seconds = PLANNING_SECONDS

    def prepare(self, data: Data) -> None:
        """Plan for the arrays of the problem."""
        fftw = importlib.import_module("pyfftw")
        self._plan = fftw.FFTW(
            data.x, data.out, axes=tuple(range(data.x.ndim)), flags=(self.flag,),
            threads=self.threads, planning_timelimit=self.planning_seconds,
        )

    def run(self, data: Data) -> Any:
        """Transform."""
        self._plan.execute()
        return data.out


class _FftwMeasure(_FftwEstimate):
    """FFTW with a plan found by measuring."""

    name = "fftw-measure"
    flag = "FFTW_MEASURE"


def fftw_wisdom(known: Sequence[str] | None = None) -> list[str]:
    """Return what FFTW's planner has found out so far, after it was told what is `known`."""
    fftw = sys.modules.get("pyfftw")
    if fftw is None:
        return []
    if known:
        fftw.import_wisdom(tuple(text.encode("ascii") for text in known))
    return [text.decode("ascii") for text in fftw.export_wisdom()]


class _Dask:
    """What the contenders that return dask arrays have in common."""

    name = library = ""
    mode: Mode = "persist"
    graph: da.Array

    def before(self, data: Data) -> None:
        """Leave the memory to dask."""
        if data.problem.nbytes >= _LARGE_NBYTES:
            data.room.release()

    def run(self, data: Data) -> Any:
        """Compute the graph that was built before."""
        return self.graph.persist() if self.mode == "persist" else self.graph.compute()

    def answer(self, data: Data, result: Any) -> Array:
        """The blocks of the result, assembled in the memory that is there for results."""
        return assembled(result, data.out) if self.mode == "persist" else np.asarray(result)


class _DaskFft(_Dask):
    """`dask.array.fft`: first the axes that are whole, then the one that is cut."""

    # NumPy has the same pocketfft inside as SciPy: the answer is held against another library.
    name, library = "da.fft", "scipy"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def prepare(self, data: Data) -> None:
        """Build the graph."""
        x = dask_input(data)
        if x.ndim == 1:
            self.graph = da.fft.fft(x.rechunk({0: -1}))
            return
        inner = tuple(range(1, x.ndim))
        function = da.fft.rfftn if data.problem.real else da.fft.fftn
        y = function(x, axes=inner)
        self.graph = da.fft.fft(y.rechunk({0: -1, **dict.fromkeys(inner, "auto")}), axis=0)


class Ours(_Dask):
    """`dask_bigfft.fft` with one FFT library.

    Parameters
    ----------
    kernel : str
        The library.
    mode : {"persist", "compute"}
        What is called.
    """

    def __init__(self, kernel: str, mode: Mode) -> None:
        self.name, self.library, self.mode = f"{kernel}/{mode}", kernel, mode
        self.phases: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def prepare(self, data: Data) -> None:
        """Build the graph."""
        transform = getattr(bigfft, data.problem.kind)
        self.graph = transform(dask_input(data), kernel=self.library)

    def run(self, data: Data) -> Any:
        """Compute, with seconds per phase, summed over threads, left in `phases`."""
        self.phases = defaultdict(float)
        add_sink(self._note)
        try:
            return super().run(data)
        finally:
            remove_sink(self._note)

    def _note(self, name: str, numbers: Mapping[str, float]) -> None:
        if "seconds" in numbers:
            with self._lock:
                self.phases[f"{name}{numbers.get('index', '')}"] += numbers["seconds"]


def dask_input(data: Data) -> da.Array:
    """Return the input as a dask array whose chunks are views of it, in memory."""
    problem = data.problem
    name, start, graph = f"bench-{problem.name}", 0, {}
    for i, length in enumerate(problem.chunks[0]):
        graph[(name, i, *(0,) * (data.x.ndim - 1))] = data.x[start : start + length]
        start += length
    return da.Array(graph, name, problem.chunks, dtype=data.x.dtype)


def assembled(result: da.Array, out: Array) -> Array:
    """Return `out` with the blocks of a persisted array copied into it."""
    blocks = result.__dask_graph__()
    for index in np.ndindex(*result.numblocks):
        place = tuple(
            slice(int(sum(cut[:i])), int(sum(cut[: i + 1])))
            for cut, i in zip(result.chunks, index, strict=True)
        )
        out[place] = _block(blocks[(result.name, *index)])
    return out


def _block(value: Any) -> Array:
    """A block out of the graph of a persisted array, where dask may have put it into a node."""
    return np.asarray(getattr(value, "value", value))


#: Peers by name, and the module that each needs.
PEERS: dict[str, tuple[type[Any], str]] = {
    "scipy": (_Scipy, "scipy"),
    "scipy-1": (_ScipyOne, "scipy"),
    "ducc0": (_Ducc, "ducc0"),
    "mkl_fft": (_Mkl, "mkl_fft"),
    "fftw-estimate": (_FftwEstimate, "pyfftw"),
    "fftw-measure": (_FftwMeasure, "pyfftw"),
    "da.fft": (_DaskFft, "dask"),
}


def contenders(
    threads: int, peers: Iterable[str] | None = None, kernels: Iterable[str] | None = None,
    planning_seconds: float = PLANNING_SECONDS,
) -> list[Contender]:
    """Return the peers that are installed and then ours with each kernel that is used here.

    Parameters
    ----------
    threads : int
        How many each may use.
    peers, kernels : iterable of str, optional
        Only these; all by default.
    planning_seconds : float
        After which FFTW's planner stops trying.
    """
    if "pyfftw" in available():
        get_library("pyfftw")  # before MKL runs; refuses what only looks like FFTW
    chosen = list(PEERS) if peers is None else list(peers)
    for name in chosen:
        if name not in PEERS:
            refuse("peers", name, f"one of {', '.join(PEERS)}")
    found: list[Contender] = [
        PEERS[name][0](threads)
        for name in chosen
        if importlib.util.find_spec(PEERS[name][1]) is not None
    ]
    for peer in found:
        if isinstance(peer, _FftwEstimate):
            peer.planning_seconds = planning_seconds
    for kernel in usable() if kernels is None else kernels:
        found += [Ours(kernel, "persist"), Ours(kernel, "compute")]
    return found

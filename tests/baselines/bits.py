"""Digests of the bits of small results, with each FFT library.

Only public functions are called, so that this program runs on any version of the package. Bits
depend on the processor and on the versions of libraries: digests name both.
"""

import contextlib
import hashlib
import importlib.metadata
import platform
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft, signal
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

from .environments import empty_folder, fixed_settings
from .requests import FAMILIES, REAL_INPUT, draw_axes, draw_chunks, draw_lengths, draw_shape

#: Number of small transforms.
COUNT = 200

LIBRARIES = ("scipy", "ducc0", "mkl_fft", "pyfftw")

#: Distributions whose versions may change the last bit of a result.
PACKAGES = ("numpy", "scipy", "numba", "ducc0", "mkl_fft", "pyfftw")

#: Digest of a library that refuses to be used.
UNUSABLE = "unusable"


def machine() -> dict[str, str]:
    """Return what decides the last bit of results: processor and versions."""
    versions = {name: version for name in PACKAGES if (version := installed(name))}
    return {
        "processor": processor(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "system": f"{platform.system()} {platform.machine()}",
        **versions,
    }


def installed(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def processor() -> str:
    """Return the model of the processor, and a digest of its instruction sets."""
    words: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            words.setdefault(name.strip(), value.strip())
    flags = hashlib.sha256(words.get("flags", "").encode()).hexdigest()[:8]
    return f"{words.get('model name', platform.processor())} {flags}"


# --- transforms -----------------------------------------------------------------------------


def digest(array: np.ndarray) -> str:
    """Return a digest of the dtype, the shape and the bits of an array."""
    header = f"{array.dtype.str} {array.shape} "
    content = np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(header.encode() + content).hexdigest()[:16]


def lazy_input(
    rng: random.Random,
    number: int,
    shape: tuple[int, ...],
    dtype: str,
) -> da.Array:
    """Return an array of random values in random chunks."""
    chunks = draw_chunks(
        rng,
        shape,
        40,
        range(len(shape)),
    )
    return da.from_array(random_array(shape, dtype, number), chunks=chunks)


def transform(rng: random.Random, number: int, extras: Mapping[str, Any]) -> da.Array:
    """Return a Fourier transform."""
    family = rng.choice(FAMILIES)
    dtype = rng.choice(["f8", "f4", "i2"] if family in REAL_INPUT else ["c16", "c16", "c8", "f8"])
    array = lazy_input(
        rng,
        number,
        draw_shape(rng, 12, 4),
        dtype,
    )
    axes = draw_axes(rng, array.ndim)
    arguments: dict[str, Any] = {"axes": axes, **extras}
    if rng.random() < 0.2:
        arguments["s"] = draw_lengths(rng, array.shape, axes)
    if rng.random() < 0.4:
        arguments["norm"] = rng.choice(["ortho", "forward"])
    if family not in ("irfft", "hfft") and rng.random() < 0.3:
        arguments["order"] = "transposed"
    result: da.Array = getattr(fft, f"{family}n")(array, **arguments)
    return result


def host_transform(rng: random.Random, number: int) -> da.Array:
    """Return a transform by the CPU, in any of the ways that a call can choose."""
    extras: dict[str, Any] = {"device": "cpu"}
    if rng.random() < 0.3:
        extras["variant"] = rng.choice(["dif", "dit", "stockham"])
    if rng.random() < 0.2:
        extras["verify"] = rng.choice(["energy", "checksum"])
    if rng.random() < 0.2:
        extras["overwrite_x"] = True
    return transform(rng, number, extras)


def gpu_transform(rng: random.Random, number: int) -> da.Array:
    """Return a transform by the GPU."""
    return transform(rng, number, {"device": "gpu"})


def cosine_transform(rng: random.Random, number: int) -> da.Array:
    """Return a cosine or sine transform."""
    array = lazy_input(
        rng,
        number,
        draw_shape(rng, 11, 4),
        rng.choice(["f8", "f4", "c16"]),
    )
    name = rng.choice(["dctn", "idctn", "dstn", "idstn"])
    kind = rng.choice([1, 2, 3, 4])
    axes = tuple(axis for axis in draw_axes(rng, array.ndim) if array.shape[axis] > 1)
    result: da.Array = getattr(fft, name)(array, type=kind, axes=axes or None)
    return result


def shifted_transform(rng: random.Random, number: int) -> da.Array:
    """Return a transform with shifts around it."""
    array = lazy_input(
        rng,
        number,
        draw_shape(rng, 11, 4),
        "c16",
    )
    axes = draw_axes(rng, array.ndim)
    if rng.random() < 0.5:
        return fft.fftshift(fft.fftn(array, axes=axes), axes=axes)
    return fft.ifftn(fft.ifftshift(array, axes=axes), axes=axes)


def signal_transform(rng: random.Random, number: int) -> da.Array:
    """Return a function that is made of several transforms."""
    array = lazy_input(
        rng,
        number,
        draw_shape(rng, 10, 4),
        rng.choice(["f8", "c16", "f4"]),
    )
    name = rng.choice(["fftconvolve", "correlate", "laplacian", "power_spectrum"])
    if name in ("laplacian", "power_spectrum"):
        result: da.Array = getattr(signal, name)(array)
        return result
    shape = tuple(max(1, size // rng.choice([1, 2, 5])) for size in array.shape)
    second = da.from_array(random_array(shape, array.dtype, number + 1), chunks=-1)
    more = {"method": "fft"} if name == "correlate" else {}
    result = getattr(signal, name)(
        array,
        second,
        mode=rng.choice(["full", "same"]),
        **more,
    )
    return result


#: Makers of lazy results, and the share of each in twenty.
SHARES = (
    (host_transform, 9),
    (gpu_transform, 4),
    (cosine_transform, 3),
    (shifted_transform, 1),
    (signal_transform, 3),
)


@contextlib.contextmanager
def environment(rng: random.Random, folder: Path, library: str) -> Iterator[None]:
    """Set the settings of a small transform, and simulate a GPU with little memory."""
    settings = {
        "bigfft.kernel": library,
        "bigfft.planner.small": 0,
        "bigfft.planner.whole-axis-floor": rng.choice([1, "4 MiB"]),
        "bigfft.planner.min-chunk": 0,
        "bigfft.memory-limit": "1 GiB",
        "bigfft.exchange.carrier": rng.choice(["auto", "auto", "tasks", "disk"]),
        "bigfft.exchange.in-place": rng.random() < 0.7,
    }
    nbytes = rng.choice([1 << 15, 1 << 18, 1 << 21])
    with (
        fixed_settings(folder, 2, **settings),
        simulated_devices(nbytes, limits=TileLimits(nbytes, least=256)),
        dask.config.set(scheduler="sync"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def small_digest(number: int, library: str, folder: Path) -> str:
    """Return the digest of one small transform, or the class of its error."""
    rng = random.Random(f"bits {number}")
    makers = [maker for maker, share in SHARES for _ in range(share)]
    maker = makers[number % len(makers)]
    with environment(rng, folder, library):
        try:
            return digest(maker(rng, number).compute())
        except Exception as error:
            return type(error).__name__


def usable(library: str, folder: Path) -> bool:
    """Return whether a library is installed, and answers as it should on this machine."""
    if not installed(library):
        return False
    with environment(random.Random(0), folder, library):
        for dtype in ("c8", "c16"):
            x = da.ones(8, chunks=8, dtype=dtype)
            try:
                fft.fft(x, kernel=library, device="cpu").compute()
            except Exception:
                return False
    return True


def digests(numbers: Iterable[int] = range(COUNT)) -> dict[str, dict[str, str]]:
    """Return the digests of small transforms by library and number."""
    by_library = {}
    with empty_folder() as folder:
        for library in LIBRARIES:
            if usable(library, folder):
                by_library[library] = {str(n): small_digest(n, library, folder) for n in numbers}
    return by_library


def unlike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return what differs between two machines; nothing if bits can be compared.

    >>> unlike({"numpy": "2.1"}, {"numpy": "2.2"})
    ['numpy: 2.1 here, 2.2 there']
    """
    differences = []
    for name in sorted({*ours, *theirs}):
        mine = ours.get(name, "none")
        other = theirs.get(name, "none")
        if mine != other:
            differences.append(f"{name}: {mine} here, {other} there")
    return differences

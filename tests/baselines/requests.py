"""Random requests of transforms: request N is the same on every machine.

Each is drawn from a generator seeded with its own number, so that a new kind of request leaves the
others as they are. Arrays are lazy, so they may be larger than any machine.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

#: Requests that are left out: to refuse this one takes a minute.
LEFT_OUT = frozenset({600})

#: Numbers of the 1,000 requests.
NUMBERS = tuple(number for number in range(1001) if number not in LEFT_OUT)

MIB = 1 << 20
GIB = 1 << 30

Chunks = tuple[int, ...]

#: Environments by the last two digits of a request's number: the share of each is fixed.
SHARES = (
    ("host", 35),
    ("gpu", 16),
    ("hybrid", 5),
    ("blocks on gpus", 8),
    ("cluster", 10),
    ("files", 5),
    ("cosines", 6),
    ("shifts", 6),
    ("signal", 5),
    ("refused", 4),
)

FAMILIES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
REAL_INPUT = ("rfft", "ihfft")
REAL_OUTPUT = ("irfft", "hfft")

#: Families whose result is a spectrum.
FORWARD = ("fft", "rfft", "hfft")


@dataclass(frozen=True)
class Request:
    """One call of a public function on lazy arrays.

    Parameters
    ----------
    number : int
        Seed of the request.
    kind : str
        One of `SHARES`: where the arrays are, or what is asked.
    function : str
        Public function, such as ``"fft.rfftn"``; two functions around each other have " of "
        between them. A run from file to file is ``"run fft.rfftn"``, or ``"resumable run ..."``.
    shape, chunks, dtype
        Properties of the array.
    arguments : mapping
        Keyword arguments of the call.
    settings : mapping
        Values of settings that differ from their defaults.
    threads, workers : int
        Threads of each process; processes, where it is a cluster.
    gpus, gpu_nbytes : int
        Number of GPUs of each process, and bytes of each.
    second : tuple of int
        Shape of a second array, for functions that take two; empty without.
    """

    number: int
    kind: str
    function: str
    shape: tuple[int, ...]
    chunks: tuple[Chunks, ...]
    dtype: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 4
    workers: int = 1
    gpus: int = 0
    gpu_nbytes: int = 0
    second: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The request in one line."""
        blocks = " x ".join(runs_text(sizes) for sizes in self.chunks)
        words = [f"{self.function}({self.dtype} {self.shape} in chunks {blocks}"]
        words += [f"second {self.second}"] if self.second else []
        words += [f"{name}={value!r}" for name, value in self.arguments.items()]
        place = f"{self.kind}, {self.workers} processes of {self.threads} threads"
        if self.gpus:
            place += f" and {self.gpus} GPUs of {self.gpu_nbytes} bytes"
        settings = "".join(f", {key}={value}" for key, value in self.settings.items())
        return f"{', '.join(words)}); {place}{settings}"


def runs_text(values: Sequence[int]) -> str:
    """Return integers with the lengths of runs of equal ones.

    >>> runs_text((64, 64, 64, 40)), runs_text(())
    ('3*64+40', '0')
    """
    runs = [(value, len(list(run))) for value, run in itertools.groupby(values)]
    return "+".join(f"{count}*{value}" if count > 1 else f"{value}" for value, count in runs) or "0"


def kind_of(number: int) -> tuple[str, int]:
    """Return the kind of a request, and the number of the request among those of its kind."""
    # 37 and 100 have no common factor: kinds alternate, and the shares hold in every hundred.
    hundreds, rest = divmod(number, 100)
    place = rest * 37 % 100
    for kind, share in SHARES:
        if place < share:
            return kind, hundreds * share + place
        place -= share
    raise ValueError(f"the shares are {100 - place} in a hundred")


def request(number: int) -> Request:
    """Return the request of a number."""
    rng = random.Random(f"request {number}")
    kind, ordinal = kind_of(number)
    if kind == "cosines":
        return cosine_request(number, rng)
    if kind == "shifts":
        return shift_request(number, rng)
    if kind == "signal":
        return signal_request(number, rng)
    if kind == "refused":
        return refused_request(number, ordinal)
    return transform_request(number, kind, rng)


# --- shapes and chunks ----------------------------------------------------------------------


def is_prime(number: int) -> bool:
    """Return whether a number is prime, by trial division."""
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


LENGTHS = ("power", "power", "smooth", "smooth", "square", "prime", "any")


def draw_length(rng: random.Random, bits: float, style: str = "") -> int:
    """Return a length of an axis of about 2**bits: smooth, square, prime or arbitrary."""
    about = max(1, round(2**bits))
    style = style or rng.choice(LENGTHS)
    if style == "power":
        return 1 << round(bits)
    if style == "smooth":
        threes = rng.randrange(4)
        fives = rng.randrange(3)
        odd = 3**threes * 5**fives
        return odd << max(0, round(bits - math.log2(odd)))
    if style == "square":
        return max(1, round(math.sqrt(about))) ** 2
    length = max(1, rng.randint(about // 2 + 1, about))
    if style == "prime" and bits < 27:
        while not is_prime(length):
            length += 1
    return length


def draw_shape(rng: random.Random, most_bits: float, least_bits: float = 6) -> tuple[int, ...]:
    """Return a shape of 1 to 4 axes with about 2**least_bits to 2**most_bits elements."""
    axes = rng.choice([1, 1, 2, 2, 3, 3, 4])
    bits = rng.uniform(least_bits, most_bits)
    weights = [rng.uniform(0.2, 1.0) for _ in range(axes)]
    return tuple(draw_length(rng, bits * weight / sum(weights)) for weight in weights)


def even_chunks(length: int, count: int) -> Chunks:
    """Return about `count` equal chunks, the last one shorter."""
    width = -(-length // max(1, count))
    starts = range(0, length, max(1, width))
    return tuple(min(width, length - start) for start in starts) or (0,)


def irregular_chunks(rng: random.Random, length: int, count: int) -> Chunks:
    """Return at most `count` chunks of random lengths, one of them empty at times."""
    inner = [rng.randint(1, max(1, length)) for _ in range(count - 1)]
    ends = sorted({*inner, length})
    chunks = [end - start for start, end in itertools.pairwise((0, *ends))]
    if rng.random() < 0.1:
        chunks.insert(rng.randrange(len(chunks) + 1), 0)
    return tuple(chunks)


def draw_chunks(
    rng: random.Random,
    shape: Sequence[int],
    most_blocks: int,
    first_axes: Sequence[int] = (),
) -> tuple[Chunks, ...]:
    """Return chunks of all axes, in at most about `most_blocks` blocks.

    In most cases `first_axes`, which are transformed, are cut before the others.
    """
    chunks: list[Chunks] = [(length,) for length in shape]
    blocks = 1
    order = rng.sample(range(len(shape)), len(shape))
    if rng.random() < 0.7:
        order.sort(key=lambda axis: axis not in first_axes)
    for axis in order:
        most = min(shape[axis], most_blocks // blocks)
        style = rng.choice(["whole", "even", "even", "even", "irregular", "tiny"])
        if most < 2 or style == "whole":
            continue
        count = min(most, rng.choice([2, 3, 4, 8, 16, 16, 32, 64]))
        if style == "irregular":
            chunks[axis] = irregular_chunks(rng, shape[axis], min(count, 12))
        else:
            chunks[axis] = even_chunks(shape[axis], most if style == "tiny" else count)
        blocks *= len(chunks[axis])
    return tuple(chunks)


# --- arguments ------------------------------------------------------------------------------


def input_nbytes(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of an array."""
    return math.prod(shape) * int(dtype[1:])


def draw_axes(rng: random.Random, ndim: int) -> tuple[int, ...]:
    """Return some axes of an array in any order."""
    return tuple(rng.sample(range(ndim), rng.randint(1, ndim)))


def draw_family(rng: random.Random) -> tuple[str, str]:
    """Return a family of transforms and a dtype of their input."""
    family = rng.choice([*FAMILIES, "fft", "rfft", "irfft"])
    if family in REAL_INPUT:
        return family, rng.choice(["f8", "f8", "f4", "i2"])
    return family, rng.choice(["c16", "c16", "c16", "c8", "c8", "f8", "f4"])


def draw_lengths(rng: random.Random, shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return lengths of a transform that crop some axes and pad others."""
    lengths = []
    for axis in axes:
        factor = rng.choice([1, 1, 1, 0.7, 1.5, 2])
        lengths.append(max(1, round(shape[axis] * factor)))
    return tuple(lengths)


def draw_memory_limit(
    rng: random.Random,
    shape: Sequence[int],
    chunks: Sequence[Chunks],
    dtype: str,
) -> int | str:
    """Return a memory limit: none to speak of, a part of the array, or a few blocks."""
    if rng.random() < 0.65:
        return "1 PiB"
    nbytes = input_nbytes(shape, dtype)
    if rng.random() < 0.5:
        limit = nbytes * rng.choice([0.4, 0.8, 1.5, 3, 8])
    else:
        block = input_nbytes([max(sizes) for sizes in chunks], dtype)
        limit = block * rng.uniform(6, 40)
    return max(4 * MIB, int(limit))


def draw_factors(rng: random.Random, length: int) -> list[int] | None:
    """Return two factors of a length, in this order; None for primes."""
    factors = [n for n in range(2, min(length, 3000)) if length % n == 0 and n < length]
    if not factors:
        return None
    first = rng.choice(factors)
    return [first, length // first]


def draw_rounds(
    rng: random.Random,
    family: str,
    axes: Sequence[int],
    lengths: Sequence[int],
) -> list[dict[int, int]] | None:
    """Return two rounds that split the first axis, or one round; None for a prime length."""
    whole = dict(zip(axes, lengths, strict=True))
    if rng.random() < 0.3:
        return [whole]
    factors = draw_factors(rng, lengths[0])
    if factors is None:
        return None
    real_axis_first = family in REAL_INPUT
    if real_axis_first or (family not in REAL_OUTPUT and rng.random() < 0.5):
        return [{**whole, axes[0]: factors[0]}, {axes[0]: factors[1]}]
    return [{axes[0]: factors[0]}, {**whole, axes[0]: factors[1]}]


def digits_of_rounds(
    rounds: Sequence[Mapping[int, int]], family: str
) -> dict[int, tuple[int, ...]]:
    """Return the digits that a spectrum in transposed order has after, or before, some rounds."""
    digits: dict[int, tuple[int, ...]] = {}
    for factors in rounds if family in FORWARD else rounds[::-1]:
        for axis, factor in factors.items():
            digits[axis] = (*digits.get(axis, ()), factor)
    return digits


def draw_order(rng: random.Random, family: str, count: int) -> str | tuple[str, ...] | None:
    """Return the order of a spectrum, or of each of its axes; None for the setting."""
    if family in REAL_OUTPUT:  # the shape of half a spectrum depends on its digits
        return None
    if rng.random() < 0.25:
        return "transposed"
    if rng.random() < 0.1:
        return tuple(rng.choice(["natural", "transposed"]) for _ in range(count))
    return None


def draw_extras(
    rng: random.Random,
    family: str,
    shape: Sequence[int],
    axes: Sequence[int],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """Return the keywords of transforms beside those of `numpy.fft`, most of them left out."""
    extras: dict[str, Any] = {}
    order = draw_order(rng, family, len(axes))
    if order is not None:
        extras["order"] = order
    if rng.random() < 0.15:
        extras["chunks"] = "preserve"
    elif rng.random() < 0.1:
        extras["chunks"] = {axes[0]: max(1, shape[axes[0]] // rng.choice([1, 2, 5, 16]))}
    if rng.random() < 0.12:
        extras["variant"] = rng.choice(["dif", "dit", "stockham", "pease"])
    if rng.random() < 0.12:
        extras["verify"] = rng.choice(["energy", "checksum"])
    if rng.random() < 0.12:
        extras["overwrite_x"] = True
    if rng.random() < 0.12:
        rounds = draw_rounds(rng, family, axes, lengths)
        if rounds is not None:
            extras["rounds"] = rounds
            digits = digits_of_rounds(rounds, family)
            if "order" in extras:
                extras["order"] = "transposed"
                extras["digits"] = digits
    if rng.random() < 0.05:
        extras["kernel"] = "ducc0"
    return extras


def draw_settings(rng: random.Random) -> dict[str, Any]:
    """Return values of settings of the planner, most of them the default."""
    settings: dict[str, Any] = {}
    if rng.random() < 0.7:  # blocks that hold whole transforms would hide the other choices
        settings["bigfft.planner.small"] = 0
    if rng.random() < 0.3:
        settings["bigfft.planner.whole-axis-floor"] = 1
    if rng.random() < 0.3:
        settings["bigfft.planner.min-chunk"] = rng.choice([0, "16 MiB"])
    if rng.random() < 0.1:
        settings["bigfft.planner.max-rounds"] = rng.choice([1, 2, 3])
    if rng.random() < 0.1:
        settings["bigfft.exchange.in-place"] = False
    return settings


def carriers_of(kind: str) -> tuple[str, ...]:
    """Return carriers that a kind of request may name."""
    if kind == "cluster":
        return "auto", "tasks", "p2p", "p2p", "disk"
    if kind == "blocks on gpus":
        return ("auto",)
    if kind == "files":
        return "auto", "disk", "disk"
    return "auto", "auto", "auto", "auto", "shared", "tasks", "disk"


# --- requests -------------------------------------------------------------------------------


def transform_request(number: int, kind: str, rng: random.Random) -> Request:
    """Return a request of a Fourier transform."""
    family, dtype = draw_family(rng)
    shape = draw_shape(rng, 34, 22 if kind == "files" else 6)
    if rng.random() < 0.12:  # one long axis, which is split, or of a length that cannot be
        shape = (draw_length(rng, rng.uniform(18, 26), rng.choice(["prime", "prime", "any"])),)
    axes = draw_axes(rng, len(shape))
    shape, lengths, arguments = draw_sizes(rng, family, shape, axes)
    for name, value in draw_extras(rng, family, shape, axes, lengths).items():
        if "digits" not in arguments or name != "rounds":
            arguments[name] = value
    most_blocks = [12, 24, 64] if kind == "cluster" else [24, 64, 200, 200, 600]
    chunks = draw_chunks(
        rng,
        shape,
        rng.choice(most_blocks),
        axes,
    )
    nbytes = input_nbytes(shape, dtype)
    arguments["memory_limit"] = draw_memory_limit(rng, shape, chunks, dtype)
    settings = draw_settings(rng)
    carrier = rng.choice(carriers_of(kind))
    if carrier != "auto":
        settings["bigfft.exchange.carrier"] = carrier
    request = Request(
        number=number,
        kind=kind,
        function=f"fft.{family}n",
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        arguments=arguments,
        settings=settings,
        threads=rng.choice([1, 2, 4, 16]),
        workers=rng.choice([2, 5]) if kind == "cluster" else 1,
    )
    if kind in ("gpu", "hybrid", "blocks on gpus"):
        return on_gpus(request, rng, nbytes)
    if kind == "files":
        return in_files(request, rng, nbytes)
    return request


def draw_sizes(
    rng: random.Random,
    family: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return the shape and the lengths of a transform, and the arguments that name them.

    The shape changes where half a spectrum is in transposed order, which depends on its digits.
    """
    arguments: dict[str, Any] = {}
    lengths = tuple(shape[axis] for axis in axes)
    if family in REAL_OUTPUT:
        lengths = (*lengths[:-1], max(1, 2 * lengths[-1] - 2))
    factors = draw_factors(rng, lengths[0]) if len(axes) == 1 else None
    if rng.random() < 0.25:
        lengths = draw_lengths(rng, shape, axes)
        arguments["s"] = lengths
    elif family in REAL_OUTPUT and factors is not None and rng.random() < 0.3:
        half_spectrum = list(shape)
        half_spectrum[axes[0]] = (factors[0] // 2 + 1) * factors[1]
        shape = tuple(half_spectrum)
        arguments |= {"s": lengths, "order": "transposed", "digits": {axes[0]: factors}}
    arguments["axes"] = axes
    if rng.random() < 0.4:
        arguments["norm"] = rng.choice(["backward", "ortho", "forward"])
    return shape, lengths, arguments


def on_gpus(request: Request, rng: random.Random, nbytes: int) -> Request:
    """Return a request with GPUs, whose input has a number of bytes."""
    arguments = dict(request.arguments)
    settings = dict(request.settings)
    gpu_nbytes = rng.choice([256 * MIB, 2 * GIB, 16 * GIB, 80 * GIB])
    if request.kind == "blocks on gpus":
        transports = ["auto", "host", "staged", "swap", "direct", "none"]
        settings["bigfft.gpu.peer-transport"] = rng.choice(transports)
    elif rng.random() < 0.4:
        least = max(64 * MIB, nbytes // rng.choice([4, 16, 64]))
        arguments["device_memory_limit"] = min(gpu_nbytes, least)
    if request.kind == "hybrid":
        arguments["device"] = "hybrid"
        settings["bigfft.hybrid.min-speedup"] = rng.choice([0, 1.1])
        if rng.random() < 0.3:
            settings["bigfft.hybrid.cpu-share"] = rng.choice([0, 0.3, 1])
    if request.kind == "gpu":
        arguments["device"] = rng.choice(["auto", "gpu", "gpu"])
        settings |= draw_gpu_settings(rng)
        if request.dtype[0] == "c" and rng.random() < 0.3:
            arguments["overwrite_x"] = True
    return replace(
        request,
        arguments=arguments,
        settings=settings,
        gpus=rng.choice([1, 1, 2, 4]),
        gpu_nbytes=gpu_nbytes,
    )


def in_files(request: Request, rng: random.Random, nbytes: int) -> Request:
    """Return a request of an array in files, or of a run from file to file."""
    arguments = dict(request.arguments)
    arguments.pop("overwrite_x", None)
    chunks = request.chunks
    if len(request.shape) == 1:  # far larger than the memory
        chunks = (even_chunks(request.shape[0], rng.choice([64, 256, 1024])),)
        arguments["memory_limit"] = max(64 * MIB, nbytes // rng.choice([16, 40, 64]))
    row_size = rng.choice([512, "1 MiB"])
    return replace(
        request,
        function=rng.choice(["", "run ", "resumable run "]) + request.function,
        chunks=chunks,
        arguments=arguments,
        settings={**request.settings, "bigfft.scratch.row-size": row_size},
    )


def draw_gpu_settings(rng: random.Random) -> dict[str, Any]:
    """Return settings of the pipelines of a GPU, most of them the default."""
    settings: dict[str, Any] = {}
    if rng.random() < 0.2:
        settings["bigfft.gpu.buffers"] = rng.choice([2, 3, 4])
    if rng.random() < 0.2:
        settings["bigfft.gpu.tiles"] = rng.choice([4, 16])
    if rng.random() < 0.2:
        settings["bigfft.gpu.streams"] = rng.choice(["role", "tile"])
    return settings


def cosine_request(number: int, rng: random.Random) -> Request:
    """Return a request of a cosine or sine transform."""
    shape = draw_shape(rng, 26)
    several = rng.random() < 0.5
    function = rng.choice(["dct", "idct", "dst", "idst"])
    arguments: dict[str, Any] = {"type": rng.choice([1, 2, 2, 3, 4])}
    if several:
        arguments["axes"] = draw_axes(rng, len(shape))
    else:
        arguments["axis"] = rng.randrange(len(shape))
    if rng.random() < 0.4:
        arguments["norm"] = rng.choice(["backward", "ortho", "forward"])
    if not several and rng.random() < 0.2:
        arguments["n"] = draw_lengths(rng, shape, [arguments["axis"]])[0]
    dtype = rng.choice(["f8", "f8", "f4", "c16"])
    axes = arguments["axes"] if several else (arguments["axis"],)
    chunks = draw_chunks(
        rng,
        shape,
        rng.choice([16, 64, 200]),
        axes,
    )
    arguments["memory_limit"] = draw_memory_limit(rng, shape, chunks, dtype)
    return Request(
        number=number,
        kind="cosines",
        function=f"fft.{function}{'n' if several else ''}",
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        arguments=arguments,
        settings=draw_settings(rng),
        threads=rng.choice([1, 4, 16]),
    )


def shift_request(number: int, rng: random.Random) -> Request:
    """Return a request of a shift: alone, of a spectrum, or of a transform's input."""
    shape = draw_shape(rng, 28)
    dtype = rng.choice(["c16", "c8", "f8"])
    function = rng.choice(
        [
            "fft.fftshift",
            "fft.ifftshift",
            "fft.fftshift of fft.fftn",
            "fft.fftshift of fft.fftn",
            "fft.ifftshift of fft.ifftn",
            "fft.ifftn of fft.ifftshift",
            "fft.fftn of fft.ifftshift",
        ]
    )
    return Request(
        number=number,
        kind="shifts",
        function=function,
        shape=shape,
        chunks=draw_chunks(rng, shape, rng.choice([16, 64, 200])),
        dtype=dtype,
        arguments={"axes": draw_axes(rng, len(shape))},
        settings={"bigfft.memory-limit": "1 PiB", **draw_settings(rng)},
        threads=rng.choice([1, 4, 16]),
    )


def signal_request(number: int, rng: random.Random) -> Request:
    """Return a request of a function that is made of several transforms."""
    shape = draw_shape(rng, 26)
    dtype = rng.choice(["c16", "f8", "f8", "f4"])
    function = rng.choice(
        [
            "signal.fftconvolve",
            "signal.convolve",
            "signal.correlate",
            "signal.oaconvolve",
            "signal.laplacian",
            "signal.poisson",
            "signal.power_spectrum",
            "signal.cross_spectrum",
        ]
    )
    arguments: dict[str, Any] = {}
    second: tuple[int, ...] = ()
    if function == "signal.cross_spectrum":
        second = shape
    elif "conv" in function or "corr" in function:
        second = tuple(rng.choice([n, max(1, n // 3), max(1, n // 20), min(n, 9)]) for n in shape)
        arguments["mode"] = rng.choice(["full", "same", "valid"])
    if function in ("signal.convolve", "signal.correlate"):
        arguments["method"] = "fft"
    return Request(
        number=number,
        kind="signal",
        function=function,
        shape=shape,
        chunks=draw_chunks(rng, shape, rng.choice([16, 64, 200])),
        dtype=dtype,
        arguments=arguments,
        settings={"bigfft.memory-limit": "1 PiB", **draw_settings(rng)},
        threads=rng.choice([1, 4, 16]),
        second=second,
    )


#: Arguments that no transform of a complex array of shape (24, 36) takes, or that no plan meets.
REFUSED: tuple[dict[str, Any], ...] = (
    {"axes": (0, 0)},
    {"axes": (2,)},
    {"axes": (0.5,)},
    {"s": (0, 4), "axes": (0, 1)},
    {"s": (4,), "axes": (0, 1)},
    {"norm": "none"},
    {"order": "digits"},
    {"order": ("natural",), "axes": (0, 1)},
    {"chunks": (5, 5)},
    {"chunks": ((24,), (30,))},
    {"chunks": {3: 4}},
    {"memory_limit": -1},
    {"memory_limit": "much"},
    {"memory_limit": 100},
    {"memory_limit": [1]},
    {"rounds": []},
    {"rounds": "two"},
    {"rounds": [{0: 5}, {0: 5, 1: -1}]},
    {"rounds": [{0: 4}, {0: 6}]},
    {"rounds": [{0: 4}, {0: 6, 1: -1}], "order": "transposed"},
    {"rounds": [{0: 4, 1: 6}, {0: 6, 1: 6}], "variant": "pease"},
    {"digits": {0: (5, 5)}, "order": "transposed"},
    {"digits": {0: (4, 6)}},
    {"variant": "bluestein"},
    {"variant": "pease"},
    {"kernel": "fftpack"},
    {"kernel": 3},
    {"device": "tpu"},
    {"device": "gpu"},
    {"device_memory_limit": 0},
    {"overwrite_x": "yes"},
    {"verify": "hash"},
    {"planner": "guess"},
    {"out": 3},
    {"workers": 2},
)


def refused_request(number: int, ordinal: int) -> Request:
    """Return a request that is refused."""
    arguments = REFUSED[ordinal % len(REFUSED)]
    return Request(
        number=number,
        kind="refused",
        function=("fft.fftn", "fft.rfftn", "fft.ifftn")[ordinal % 3],
        shape=(24, 36),
        chunks=((6, 6, 6, 6), (12, 12, 12)),
        dtype="f8",
        arguments={"memory_limit": "1 GiB", **arguments},
        settings={"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1},
    )

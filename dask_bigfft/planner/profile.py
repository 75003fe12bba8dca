"""`Profile`: the measured speeds of a machine, or those of a common one.

A profile has about ten numbers for each kind of executor and carrier. Calibration measures it, and
it is stored as JSON. Speeds are those of one thread while all threads of a process are busy, as in
a transform.
"""

import dataclasses
import itertools
import json
import sys
import types
import typing
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from dask_bigfft.errors import raise_invalid
from dask_bigfft.transforms.layout import Digit, Group, Range


def encode(value: Any) -> dict[str, Any]:
    """Return a dataclass as a mapping: the `default` of `json.dumps`.

    Fields whose metadata say `optional` are left out if they are not set.
    """
    entries = {}
    for field in fields(value):
        entry = getattr(value, field.name)
        if entry or not field.metadata.get("optional"):
            entries[field.name] = entry
    if not isinstance(value, Group):
        return entries
    runs = itertools.groupby(value.chunks)
    entries["chunks"] = [[size, len(list(run))] for size, run in runs]
    return {name: entry for name, entry in entries.items() if entry}


def decode(hint: Any, value: Any) -> Any:
    """Return the value that `encode` has written, given its annotated type.

    Raises
    ------
    ValueError, TypeError, KeyError, AttributeError
        If the annotation does not allow it.
    """
    if hint is Group:
        return _decode_group(value)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value)
    if hint in (int, float):
        return _decode_number(hint, value)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), value)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(typing.get_args(hint), value)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {choices}")
        return value
    if not isinstance(value, hint):
        raise TypeError(f"{value!r} is not {hint}")
    return value


def _decode_group(value: Any) -> Group:
    """Return a group, whose chunks are stored as runs of equal ones."""
    chunks: list[int] = []
    for size, count in value["chunks"]:
        chunks += [int(size)] * int(count)
    return Group(
        digits=decode(tuple[Digit, ...], value["digits"]),
        chunks=tuple(chunks),
        offset=int(value.get("offset", 0)),
        arrangement=decode(tuple[Range, ...], value.get("arrangement", [])),
    )


def _decode_dataclass(hint: Any, value: Any) -> Any:
    """Return a dataclass, given a mapping of its fields; fields that are left out are defaults."""
    hints = typing.get_type_hints(hint)
    unknown = set(value) - set(hints)
    if unknown:
        raise ValueError(f"unknown entries {sorted(unknown)}")
    return hint(**{name: decode(hints[name], entry) for name, entry in value.items()})


def _decode_tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Return a tuple, given the annotated types of its entries; an ellipsis repeats the first."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    return tuple(decode(hint, entry) for hint, entry in zip(hints, value, strict=True))


def _decode_optional(hints: tuple[Any, ...], value: Any) -> Any:
    """Return a value that may be None, given the types of a union; the first other one counts."""
    if value is None:
        return None
    hint = next(hint for hint in hints if hint is not type(None))
    return decode(hint, value)


def _decode_number(hint: type[int] | type[float], value: Any) -> int | float:
    """Return a number; whole ones are also allowed for floats."""
    allowed = (int, float) if hint is float else (int,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise TypeError(f"{value!r} is not {hint}")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError("a number that is too large")
    return hint(value)


#: Version of the JSON. A profile of another version is not read.
SCHEMA = 8

#: Bounds of a plausible speed. They keep forecasts finite.
LEAST = 1e-30
MOST = 1e30

#: Assumed bytes per second between GPUs; those of two H200 with NVLink reach 352e9.
LINK = 3e11

#: Prices in seconds, which may be 0. Other numbers are speeds, sizes and indices.
PRICES = frozenset(
    {"run", "call", "move", "start", "task", "tile", "shard", "exchange", "pair"}
    | {"sent_task", "sent_shard", "shared_round"}
)


class _Prices:
    """Mixin that rejects implausible numbers: negative ones, and 0 for names not in `PRICES`."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            least = 0 if field.name in PRICES else LEAST
            if field.type in (int, float) and not least <= value <= MOST:
                raise ValueError(f"{type(self).__name__}.{field.name} is {value!r}")


#: Libraries that can write to another array, for machines where they were not measured.
WITH_OUT = ("scipy", "ducc0")


@dataclass(frozen=True)
class LibrarySpeeds(_Prices):
    """Speed of one thread of an FFT library inside a round, while others are busy.

    Parameters
    ----------
    name, dtype : str
        Name of the library, and complex dtype.
    flops : float
        Flops per second in tiles that fit a cache; 5 n log2 n flops for n complex values.
    large_flops : float
        Flops per second in blocks that are not cut into tiles, or that the library reads
        directly.
    supports_out : bool
        Whether the library can write its result to another array.
    """

    name: str
    dtype: str
    flops: float
    large_flops: float
    supports_out: bool = False


@dataclass(frozen=True)
class DeviceProfile(_Prices):
    """Speeds of a GPU; by default those measured on an NVIDIA H200.

    Parameters
    ----------
    h2d, d2h : float
        Bytes per second over the bus in each direction, while both are busy.
    run : float
        Seconds per contiguous run of host memory in a copy.
    memory : float
        Bytes per second of the device's memory, reads and writes together.
    flops : float
        Flops per second of FFTs.
    call : float
        Seconds that the host takes to start one operation.
    name : str
        Name of the GPU.
    nbytes : int
        Bytes of its memory.
    """

    h2d: float = 50.6e9
    d2h: float = 50.6e9
    run: float = 0.17e-6
    memory: float = 3.9e12
    flops: float = 5e12
    call: float = 3e-6
    name: str = "NVIDIA H200"
    nbytes: int = 139 << 30


@dataclass(frozen=True)
class Profile(_Prices):
    """Speeds of a machine, or of the machines of a cluster.

    Parameters
    ----------
    name : str
        Name of the measured machine; empty for the common one.
    threads : int
        Threads that were busy during calibration.
    copy : float
        Bytes per second that one thread copies in long rows.
    run : float
        Seconds for each contiguous run that a gather reads.
    move : float
        Seconds for each byte that an exchange moves between blocks, beside copying it.
    flops : float
        Flops per second of a library that was not measured.
    libraries : tuple of LibrarySpeeds
        Measured FFT libraries.
    energy, checksum : float
        Bytes per second of blocks verified in this mode, input and output together.
    start : float
        Seconds for each graph.
    task, tile, shard : float
        Seconds of Python for each task, tile, and shard of a gather; threads wait for the GIL.
    exchange : float
        Seconds that threads are idle at the barrier of an exchange.
    pair : float
        Seconds of dask's ordering for each pair of blocks of an exchange.
    sent_task, sent_shard : float
        Seconds of a cluster's scheduler for a task, and of a worker for a shard that it sends.
    network : float
        Bytes per second that a process receives while all processes do.
    write, read : float
        Bytes per second of the disk, shared by all processes of a machine.
    devices : tuple of DeviceProfile
        GPUs of a process.
    together : float
        Fraction of their speeds that CPU threads and GPUs keep while both work.
    shared_round : float
        Extra seconds of a round that CPU threads and GPUs share.
    """

    name: str = ""
    threads: int = 2
    copy: float = 1 / 1.5e-10
    run: float = 1e-8
    move: float = 4e-10
    flops: float = 1e10
    libraries: tuple[LibrarySpeeds, ...] = ()
    energy: float = MOST
    checksum: float = MOST
    start: float = 0.0
    task: float = 3e-4
    tile: float = 0.0
    shard: float = 3e-5
    exchange: float = 2e-2
    pair: float = 2.5e-8
    sent_task: float = 3e-4
    sent_shard: float = 1e-4
    network: float = 1e9
    write: float = 1e9
    read: float = 1e9
    devices: tuple[DeviceProfile, ...] = ()
    together: float = 0.75
    shared_round: float = 3e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.together > 1:
            raise ValueError(f"Profile.together is {self.together!r}, a part of 1")

    def library(self, name: str, dtype: str) -> LibrarySpeeds:
        """Return the speeds of a library in a complex dtype, or in another one as a fallback."""
        measured = [library for library in self.libraries if library.name == name]
        if not measured:
            return LibrarySpeeds(
                name,
                dtype,
                flops=self.flops,
                large_flops=0.95 * self.flops,
                supports_out=name in WITH_OUT,
            )
        return min(measured, key=lambda library: library.dtype != dtype)

    @cached_property
    def inside_gpus(self) -> "Profile":
        """Speeds of GPUs on blocks in their own memory; each counts as a thread."""
        gpu = self.devices[0] if self.devices else DeviceProfile()
        # Results are counted as fresh memory, whichever library would do them on the CPU.
        libraries = tuple(
            LibrarySpeeds(
                name,
                dtype,
                flops=gpu.flops,
                large_flops=0.95 * gpu.flops,
            )
            for name in WITH_OUT
            for dtype in ("complex64", "complex128")
        )
        return Profile(
            gpu.name,
            threads=1,
            copy=gpu.memory / 2,
            run=0.0,
            move=1 / LINK,
            flops=gpu.flops,
            libraries=libraries,
            task=self.task,
            shard=gpu.call,
            exchange=0.0,
        )

    def to_json(self) -> str:
        """Return the profile as JSON, from which `from_json` makes it again."""
        return json.dumps({"schema": SCHEMA, "profile": self}, default=encode, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Return the profile that `to_json` wrote.

        Raises
        ------
        ArgumentError
            If the text is not such a profile, or its version is another one.
        """
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA:
                raise ValueError(f"schema {document['schema']!r} is not {SCHEMA}")
            missing = {field.name for field in fields(cls)} - set(document["profile"])
            if missing:
                raise ValueError(f"no entries {sorted(missing)}")
            profile: Profile = decode(cls, document["profile"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise_invalid("text", text[:60], f"the JSON of a profile ({error})")
        return profile


#: Speeds of a common machine of a few cores, for plans without measurements.
DEFAULT = Profile()

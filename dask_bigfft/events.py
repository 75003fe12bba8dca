"""What the rooms report while they work, and the hook through which it leaves them.

Imports nothing but the standard library and `errors`. The set of events is closed: `EVENTS`
declares each name with the unit of each of its numbers, and `emit` refuses any other, with or
without a sink. A sink is installed by whoever watches: the cluster's worker plugin, a progress
bar, a test.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dask_bigfft.errors import refuse

__all__ = ["EVENTS", "PHASES", "SUBPHASES", "Sink", "emit", "set_sink"]

#: Called as ``sink(name, numbers)``.
Sink = Callable[[str, Mapping[str, float]], object]

#: The phases of a run, named alike in task names, events, errors and the dashboard.
PHASES = ("round", "pack", "send", "barrier", "unpack")

#: What happens inside the phase *round*.
SUBPHASES = ("gather", "h2d", "fft", "twiddle", "d2h", "scatter")

_WORK = MappingProxyType({"index": "ordinal", "nbytes": "byte", "seconds": "second"})
_MEMORY = MappingProxyType({"nbytes": "byte"})

#: Each event's numbers and their units; `index` is the number of the round or exchange in its plan.
EVENTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(PHASES + SUBPHASES, _WORK),
        # memory
        "arena_lend": _MEMORY,
        "arena_return": _MEMORY,
        "arena_overflow": _MEMORY,  # lent as ordinary memory, the arena being at its limit
        "arena_trim": _MEMORY,  # given back to the system
        # decisions
        "plan": MappingProxyType({"candidates": "count", "seconds": "second"}),
        "fallback": _WORK,  # a slower way was taken, and what it cost
    }
)

_sink: Sink | None = None


def set_sink(sink: Sink | None) -> Sink | None:
    """Install `sink` for this process and return the one it replaces.

    Parameters
    ----------
    sink
        Called as ``sink(name, numbers)`` in the thread that emits, so it must be quick and safe to
        call from several threads; None installs no sink.
    """
    global _sink
    previous, _sink = _sink, sink
    return previous


def emit(name: str, **numbers: float) -> None:
    """Hand one event to the sink, if there is one.

    Raises
    ------
    ArgumentError
        If the event or one of its numbers is not declared in `EVENTS`.

    Examples
    --------
    >>> previous = set_sink(lambda name, numbers: print(name, numbers))
    >>> emit("round", index=1, nbytes=4096)
    round {'index': 1, 'nbytes': 4096}
    >>> _ = set_sink(previous)
    """
    declared = EVENTS.get(name)
    if declared is None:
        refuse("name", name, f"one of {', '.join(EVENTS)}")
    if not numbers.keys() <= declared.keys():
        unknown = ", ".join(sorted(numbers.keys() - declared.keys()))
        refuse("numbers", unknown, f"some of {', '.join(declared)} for the event {name!r}")
    sink = _sink
    if sink is not None:
        sink(name, numbers)

"""`ArenaCounters`: what an arena holds at one moment, and what it has done so far."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArenaCounters:
    """What an arena holds at one moment, and what it has done so far.

    Sizes are those of the buffers, up to a half above those of their blocks. Requests below
    `SMALL_NBYTES`, and those with a dtype that is not numeric, never reach the arena and are not
    counted.

    Attributes
    ----------
    lent_bytes
        Memory of the arena that live blocks hold now.
    idle_bytes
        Memory of the arena that waits for the next block now.
    peak_bytes
        The most that `lent_bytes` and `idle_bytes` ever were together.
    fresh_bytes
        Memory taken from the system since the arena was made.
    reused_bytes
        Memory lent again since the arena was made.
    overflow_bytes
        Ordinary memory lent since the arena was made, because the limit was reached.
    prefaulted_bytes
        Fresh memory that was faulted in before anybody wrote there, since the arena was made.
    lends
        Blocks lent, of every kind.
    reuses
        Blocks lent in memory that was idle.
    overflows
        Blocks lent in ordinary memory because the limit was reached.
    """

    lent_bytes: int
    idle_bytes: int
    peak_bytes: int
    fresh_bytes: int
    reused_bytes: int
    overflow_bytes: int
    prefaulted_bytes: int
    lends: int
    reuses: int
    overflows: int

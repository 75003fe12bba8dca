"""`Machine`, which a plan is made for, and `Forecast`, its cost there.

Pure: imports this room.
"""

from dataclasses import dataclass

from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile

__all__ = ["Forecast", "Machine", "RoundForecast"]


@dataclass(frozen=True)
class Machine:
    """Processes, memory and speeds that a plan is made for.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that one process may use; None where nothing is known.
    threads : int
        Tasks that run at a time in one process.
    workers : int
        Number of processes.
    buffers : int or None
        Bytes of shards that a process may hold in memory while they travel by a shuffle; None
        where they do not travel so.
    profile : Profile
        How fast it is.
    cards : int
        Devices of each process that rounds may be done on.
    shared : bool
        Whether all tasks run in one process, so that blocks may lie together.
    by_cards : tuple of (int, int)
        Numbers of devices, fewest first, and how many processes have so many, where that is known
        and matters: where they are unlike, and each is to use its own. `cards` is the most.
    """

    memory_limit: int | None = None
    threads: int = 1
    workers: int = 1
    buffers: int | None = None
    profile: Profile = DEFAULT
    cards: int = 0
    shared: bool = False
    by_cards: tuple[tuple[int, int], ...] = ()

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Speeds of each device of a process; one that was not measured is like the others."""
        known = self.profile.devices or (DeviceProfile(),)
        return tuple(known[min(i, len(known) - 1)] for i in range(self.cards))


@dataclass(frozen=True)
class RoundForecast:
    """Forecast seconds of an exchange and the round that follows it.

    Parameters
    ----------
    index : int
        Number of the round, from 1; one more than there are rounds for the last exchange alone.
    blocks : int
        Number of blocks that are made.
    seconds : float
        Of the clock.
    gather, fft, handling : float
        Of threads, added up: gathering blocks and storing tiles apart, FFTs with their twiddles,
        and what Python does for blocks, shards and tiles.
    device : float
        Of a device for each of the blocks, or for its share of each; 0 on the CPU.
    travel : float
        Of the network or the disk.
    scheduling : float
        Of the scheduler, and waiting for the last block.
    bound : str
        Which of them is the longest.
    share : float
        Part of the round that devices do.
    """

    index: int
    blocks: int
    seconds: float
    gather: float
    fft: float
    handling: float
    device: float
    travel: float
    scheduling: float
    bound: str
    share: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """Forecast memory, tasks and seconds of a plan.

    Parameters
    ----------
    bytes_exchanged : int
        Bytes that all exchanges together move (local ones move nothing).
    peak_host : int
        Bytes of host memory at the worst moment, per process.
    scratch : int
        Bytes of scratch files.
    tasks : int
        Tasks in the graph.
    flops : float
        Floating point operations of all FFTs, 5 n log2 n each.
    seconds : float
        Time by the cost model, from the machine's profile.
    rounds : tuple of RoundForecast
        Of which that time is made.
    """

    bytes_exchanged: int
    peak_host: int
    scratch: int
    tasks: int
    flops: float
    seconds: float
    rounds: tuple[RoundForecast, ...] = ()

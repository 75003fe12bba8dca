"""What pieces of a block may need on a device, and how large they should be: `PieceLimits`.

Pure arithmetic: imports `planner`.
"""

from dataclasses import dataclass, replace

from dask_bigfft.planner.device_settings import DeviceSettings

#: Parts in which a tile comes and goes where there are fewer than three buffers, and bytes that a
#: part has at least: a call takes the host longer than a bus takes for smaller ones.
PARTS, LEAST_PART = 8, 1 << 20

#: Multiples of the number of pieces that are tried: many narrow ones, or few that end later.
FINER = (1 / 8, 1 / 4, 1 / 2, 1, 4)

#: Blocks beyond which it does not matter how many more follow.
FOLLOWING = 4

#: Part of the staging buffers of one way that a piece fills at most: the next one is gathered
#: while the card takes it, and whoever submits pieces does not wait in the midst of one.
RING_SHARE = 1 / 2

#: As `PieceLimits.run_nbytes`, `ends` and `following` where threads gather rows into staging
#: buffers. They mind narrow rows less than copy engines do; the first piece of all is gathered,
#: and the last one scattered, while nothing else is (H200, 16 cores).
STAGED_RUN_NBYTES, STAGED_ENDS, STAGED_FOLLOWING = 1024, 3, 16

#: Bytes that a piece has at least where its number of passes is set.
LEAST_PASS = 1 << 16


@dataclass(frozen=True)
class PieceLimits:
    """What pieces may need, and how large they should be.

    Parameters
    ----------
    nbytes : int
        Bytes of the device that slots and work area take together.
    slots, fewest : int
        Pieces that are on the device at a time: one that comes, one that is worked on, one that
        goes; and how few there may be, so that they are larger, where one comes to what another
        leaves.
    most, least : int
        Bytes that a piece has at most where a smaller one is as good, and at least where the
        block is cut only to keep all three engines busy.
    pieces : int
        Number of pieces that a crossing is cut into where its block is large enough, at least.
    run_nbytes, call_nbytes : int
        Bytes that cross the bus in the time that a contiguous run costs apart from its bytes, and
        in the time that the host takes for a call.
    finer : tuple of float
        Multiples of `pieces` that are tried.
    ends : float
        Pieces in whose time nothing else crosses the bus, at the beginning and end of all blocks.
    following : int
        Blocks beyond which it does not matter how many more follow.
    """

    nbytes: int
    slots: int = 3
    fewest: int = 2
    most: int = 1 << 30
    least: int = 1 << 22
    pieces: int = 8
    run_nbytes: int = 8192
    call_nbytes: int = 1 << 18
    finer: tuple[float, ...] = FINER
    ends: float = 1
    following: int = FOLLOWING

    def tuned(self, settings: DeviceSettings) -> "PieceLimits":
        """The limits with what is set of them."""
        found = self
        if settings.buffers is not None:
            found = replace(found, slots=settings.buffers, fewest=settings.buffers)
        if settings.passes is not None:
            least = min(self.least, LEAST_PASS)
            found = replace(found, pieces=settings.passes, least=least, finer=(1,))
        return found

    def staged(self, nbytes: int, settings: DeviceSettings) -> "PieceLimits":
        """The limits of a block that travels through staging buffers.

        Parameters
        ----------
        nbytes : int
            Bytes of the buffers of one way.
        settings : DeviceSettings
            What is set; a number of passes stays as it is.

        Examples
        --------
        >>> PieceLimits(1 << 31).staged(1 << 28, DeviceSettings()).most >> 20
        128
        """
        most = min(self.most, max(self.least, int(RING_SHARE * nbytes)))
        if settings.passes is not None:
            most = self.most
        return replace(
            self,
            fewest=self.slots,
            most=most,
            run_nbytes=min(self.run_nbytes, STAGED_RUN_NBYTES),
            finer=(*self.finer, 2 * self.finer[-1]),
            ends=STAGED_ENDS,
            following=STAGED_FOLLOWING,
        )

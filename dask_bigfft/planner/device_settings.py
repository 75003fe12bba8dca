"""`DeviceSettings`: what can be set of a device's pipeline, and is tuned with a plan.

Pure: imports nothing of the package.
"""

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["AS_IS", "DeviceSettings"]


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of a device's pipeline; None leaves one to the device's engine.

    Parameters
    ----------
    buffers : int or None
        Pieces that are on the device at a time (k of Lee and Kim, Electronics 12, 2023).
    passes : int or None
        Pieces that a crossing is cut into, about: so many passes of the pipeline.
    streams : {"role", "piece"} or None
        Whether streams are for what is done (pieces come, are worked on, go), or for pieces, each
        of which then has one of its own.
    ring_buffers : int or None
        Buffers each way of the ring through which memory travels that is not pinned.
    ring_nbytes : int or None
        Bytes of each of them.
    ring_parts : tuple of int
        Bytes of a buffer that are used at a time, by round, since rows of some widths (C runs of W
        elements) are best copied in smaller parts; where a round has no number, all of it.
    """

    buffers: int | None = None
    passes: int | None = None
    streams: Literal["role", "piece"] | None = None
    ring_buffers: int | None = None
    ring_nbytes: int | None = None
    ring_parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("buffers", "passes", "ring_buffers", "ring_nbytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"DeviceSettings.{name} is {value!r}")
        if any(nbytes < 1 for nbytes in self.ring_parts):
            raise ValueError(f"DeviceSettings.ring_parts is {self.ring_parts!r}")

    def of_round(self, number: int) -> "DeviceSettings":
        """Return the settings of a round, from 0.

        >>> DeviceSettings(buffers=4, ring_parts=(1024, 2048)).of_round(1).ring_parts
        (2048,)
        """
        return replace(self, ring_parts=self.ring_parts[number : number + 1])

    @property
    def ring(self) -> tuple[int | None, int | None, int | None]:
        """Buffers of the ring, bytes of each, and how many of these are used in the first round."""
        return self.ring_buffers, self.ring_nbytes, next(iter(self.ring_parts), None)


#: Nothing is set.
AS_IS = DeviceSettings()

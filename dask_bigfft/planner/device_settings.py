"""`DeviceSettings`: what can be set of a device's pipeline, and is tuned with a plan.

Pure: imports nothing of the package.
"""

from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["AS_IS", "DeviceSettings"]


@dataclass(frozen=True)
class DeviceSettings:
    """How a device works on the pieces of a block; None leaves it to the device's engine.

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

    Examples
    --------
    >>> str(DeviceSettings(buffers=4, streams="piece")), str(DeviceSettings())
    ('k = 4, streams by piece', 'as the engine has them')
    """

    buffers: int | None = None
    passes: int | None = None
    streams: Literal["role", "piece"] | None = None
    ring_buffers: int | None = None
    ring_nbytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("buffers", "passes", "ring_buffers", "ring_nbytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"DeviceSettings.{name} is {value!r}")

    def __str__(self) -> str:
        texts = {
            "buffers": f"k = {self.buffers}",
            "passes": f"{self.passes} passes",
            "streams": f"streams by {self.streams}",
            "ring_buffers": f"{self.ring_buffers} ring buffers",
            "ring_nbytes": f"of {self.ring_nbytes} bytes",
        }
        found = [texts[f.name] for f in fields(self) if getattr(self, f.name) is not None]
        return ", ".join(found) or "as the engine has them"


#: Nothing is set.
AS_IS = DeviceSettings()

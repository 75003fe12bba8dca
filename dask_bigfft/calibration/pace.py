"""How the seconds of a calibration are shared among its parts.

Every part gets a share of the seconds that are left when it begins, by its weight among those that
are still to come, so that what one part saves or exceeds is shared by all that follow. A part cuts
its share in the same way among its probes, each of which is run as often as is wanted, or until its
share is used up, but once at least: nothing is left out.

Imports nothing of the package.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["Pace", "shared_out"]

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class Pace:
    """Shares of seconds for parts that are done one after the other.

    Parameters
    ----------
    until : float
        When all should be done, by `time.perf_counter`.
    weights : mapping of str to float
        Of the parts, in any unit.

    Examples
    --------
    >>> pace = Pace(time.perf_counter() + 60, {"copies": 1, "FFTs": 2})
    >>> with pace.part("copies") as until:
    ...     round(until - time.perf_counter())
    20
    >>> with pace.part("FFTs") as until:  # which has what the copies have left, too
    ...     round(until - time.perf_counter())
    60
    """

    def __init__(self, until: float, weights: Mapping[str, float]) -> None:
        self.until, self._weights = until, dict(weights)

    @contextmanager
    def part(self, name: str) -> Iterator[float]:
        """Say until when a part should be done; that it is done afterwards is taken for granted.

        Parameters
        ----------
        name : str
            One of those that have weights, and have not been done.
        """
        began, every = time.perf_counter(), sum(self._weights.values())
        share = (self.until - began) * self._weights.pop(name) / every
        yield began + max(0.0, share)
        log.info("%s: %.1f s of %.1f", name, time.perf_counter() - began, share)


def shared_out(items: Sequence[Item], until: float) -> Iterator[tuple[Item, float]]:
    """Return items, each with the time by which it should be done: all have even shares.

    Parameters
    ----------
    items : sequence
        What is done, one after the other, while this is iterated over.
    until : float
        When all should be done, by `time.perf_counter`.
    """
    for number, item in enumerate(items):
        now = time.perf_counter()
        yield item, now + max(0.0, until - now) / (len(items) - number)

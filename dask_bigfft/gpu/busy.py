"""How long a device has work.

Imports nothing of the package.
"""

import threading
import time

__all__ = ["BusyClock"]


class BusyClock:
    """How long something has been in use, however many use it at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._since, self._seconds = 0, 0.0, 0.0

    def begin(self) -> None:
        """Count one more user."""
        with self._lock:
            if not self._users:
                self._since = time.perf_counter()
            self._users += 1

    def end(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._seconds += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Seconds with one user or more, up to now."""
        with self._lock:
            going = time.perf_counter() - self._since if self._users else 0.0
            return self._seconds + going

"""What the parts of the GPU benchmark share: results that grow, sizes, the bus, pinned memory.

Imports `gpu_floor`, `gpu_heard`, `devices` and `memory`.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.bench.gpu_floor import Floor
from dask_bigfft.bench.gpu_heard import Heard
from dask_bigfft.devices import ring
from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.cupy_device import open_device
from dask_bigfft.devices.transfer import TO_DEVICE, TO_HOST
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
GIB, MIB = 1 << 30, 1 << 20


@dataclass
class Results:
    """What was measured, in a file that grows."""

    path: Path
    until: float
    found: dict[str, Any] = field(default_factory=dict)

    def add(self, section: str, **numbers: Any) -> None:
        """Keep a case and say it."""
        self.found.setdefault(section, []).append(numbers)
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in numbers.items()}
        print(f"{section}: {shown}", flush=True)
        self.path.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    @property
    def over(self) -> bool:
        """Whether nothing new is to be begun."""
        return time.monotonic() > self.until


@dataclass
class Bench:
    """What the cases share: sizes, the bus, and pinned memory."""

    results: Results
    scale: int
    nbytes: int
    budget: int
    duplex: float = 0.0
    memory: list[Array] = field(default_factory=list)

    def blocks(self, block_nbytes: int) -> list[Array]:
        """The pinned memory in blocks of some size; those made once are cut."""
        block_nbytes = min(block_nbytes, self.nbytes)
        if not self.memory or self.memory[0].nbytes < block_nbytes:
            self.memory = []
            for _ in range(self.nbytes // block_nbytes):
                found = lend(block_nbytes, np.uint8)
                found.view("f8")[:] = 1e-3
                self.memory.append(found)
        cut = range(0, self.memory[0].nbytes, block_nbytes)
        return [found[low : low + block_nbytes] for found in self.memory for low in cut]

    def allowed(
        self, found: Heard, seconds: float, *, inside: Sequence[Array] = (),
        register: Sequence[Array] = (), let_go: bool = False,
    ) -> dict[str, Any]:
        """What engines and host allow for the copies that were asked for, and what was reached.

        `inside` is memory in which they are made; without it that of the bench is read.
        `register` is pinned meanwhile, and with `let_go` let go. Numbers for `Results.add`.
        """
        floor = self.lent()
        if inside:
            floor = replace(floor, reads=list(inside), writes=list(inside))
        elif self.memory:
            floor = replace(floor, reads=self.memory)
        ordinary = not all(copy.pinned for copy in found.copies)
        if ordinary:
            floor.ordinary.append(np.ones(4 * GIB // self.scale, np.uint8))
        least = floor.seconds(found, register=register, let_go=let_go)
        numbers = {
            "allowed": least, "of_allowed": least / seconds, "copies": len(found.copies),
            "row_kib": [found.row_nbytes(way) / 1024 for way in (TO_DEVICE, TO_HOST)],
        }
        if register or ordinary:
            return numbers
        device = open_device(0)
        try:
            working = floor.seconds(found, device=device)
        finally:
            device.close()
        return {**numbers, "working": working, "of_working": working / seconds}

    def lent(self) -> Floor:
        """Memory for copies, which goes back to the arena: what is measured next needs it."""
        nbytes = 4 * GIB // self.scale
        writes = [lend(nbytes, np.uint8) for _ in range(2)]
        staging = [lend(ring.BUFFERS * ring.BUFFER_NBYTES, np.uint8) for _ in range(2)]
        return Floor(writes, writes, [], staging)


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """Least seconds of a few runs, after one that does not count; of that one if there are none."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[1:] or times)


@contextmanager
def held(budget: int) -> Iterator[None]:
    """Hold all of the card but a budget, and what contexts and plans take, by an allocation."""
    cp = cupy()
    free = int(cp.cuda.runtime.memGetInfo()[0])
    nbytes = max(0, free - budget - 1 * GIB)
    hold = cp.cuda.Memory(nbytes) if nbytes else None
    try:
        yield
    finally:
        del hold

"""Names of the tasks of a graph, and references to them."""

from dataclasses import dataclass
from typing import Any

from dask_bigfft.arrays import Block
from dask_bigfft.dask_private import TaskRef

Key = Any  # a dask key: a name, or a name and a block index
Graph = dict[Key, Any]
Chunks = tuple[tuple[int, ...], ...]

#: Prefix of the names of the carrier `resident`; the transport between GPUs follows.
ON_GPUS = "gpu/"

#: Topic of distributed's events by which workers tell their scheduler that its shuffle has changed.
TOPIC = "bigfft-p2p"

#: Block as a part of another one: both indices, and the part.
Cut = tuple[Block, Block, tuple[slice, ...]]


@dataclass(frozen=True)
class Names:
    """Names of a graph's tasks. Dask's dashboard shows the part before the token."""

    token: str
    part: str = ""

    def __call__(self, role: str, number: int | None = None, mark: str = "") -> str:
        """Return the name of the tasks with a role before a round, from 0, or in the whole plan.

        A mark distinguishes results that no other plan may reuse.
        """
        ordinal = "" if number is None else number + 1
        return f"bigfft_{self.part}{role}{ordinal}-{mark}{self.token}"


#: Prefix of the names of plan tasks of transforms; the token follows.
PLAN_NAME = Names("")("plan")


def block_ref(name: str, block: Block) -> TaskRef:
    """Return the reference to a block of an array for the inputs of a task."""
    return TaskRef((name, *block))

"""Names of the tasks of a graph, and how a task names what it depends on.

Imports `dask_private`.
"""

from dataclasses import dataclass
from typing import Any

from dask_bigfft.graph.dask_private import TaskRef

Block = tuple[int, ...]
Key = Any  # a dask key: a name, or a name and a block index
Graph = dict[Key, Any]


@dataclass(frozen=True)
class Names:
    """Names of a graph's tasks. Dask's dashboard shows what comes before the token."""

    token: str
    part: str = ""

    def round(self, number: int, common: bool = False, sent: bool = False) -> str:
        """Of the tasks of a round, from 0.

        Those that write to common memory, or send their blocks on, have names that no other plan
        takes for its own.
        """
        mark = "0-" * common + "1-" * sent
        return f"bigfft_{self.part}round{number + 1}-{mark}{self.token}"

    def wide(self, number: int) -> str:
        """Of rounds on several blocks at a time, from 0."""
        return f"bigfft_{self.part}round{number + 1}-2-{self.token}"

    def common(self, number: int) -> str:
        """Of the memory in which the blocks before a round lie together, from 0."""
        return f"bigfft_{self.part}common{number + 1}-{self.token}"

    def barrier(self, number: int) -> str:
        """Of the barriers before a round, from 0."""
        return f"bigfft_{self.part}barrier{number + 1}-{self.token}"

    def pack(self, number: int) -> str:
        """Of the shards before a round, from 0."""
        return f"bigfft_{self.part}pack{number + 1}-{self.token}"

    def shuffle(self, number: int, group: Block, sent: bool = False) -> str:
        """Of the shuffle of a group before a round, from 0, and of one that rounds send to."""
        mark = "1-" * sent
        return f"bigfft-{self.part}{number + 1}-{mark}{self.token}-{'_'.join(map(str, group))}"

    @property
    def rows(self) -> str:
        """Of the stored array that the first round reads rows of."""
        return f"bigfft_{self.part}rows-{self.token}"

    @property
    def own(self) -> str:
        """Of the blocks that came in and are overwritten."""
        return f"bigfft_{self.part}own-{self.token}"

    def settled(self, number: int) -> str:
        """Of these blocks after a round, from 0."""
        return f"bigfft_{self.part}settled{number + 1}-{self.token}"

    @property
    def unpack(self) -> str:
        """Of the gathers after the last round."""
        return f"bigfft_{self.part}unpack-{self.token}"

    @property
    def plan(self) -> str:
        """Of the plan itself."""
        return f"bigfft_{self.part}plan-{self.token}"


#: How the names of plans of transforms begin; their token follows.
PLAN_NAME = Names("").plan


def block_ref(name: str, block: Block) -> TaskRef:
    """Return what stands for a block of an array among the inputs of a task."""
    key: Key = (name, *block)
    return TaskRef(key)

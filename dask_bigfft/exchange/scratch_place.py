"""Where the scratch files of a graph go, and how their folder is had there.

Imports this room.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask_bigfft.exchange.folders import PREFIX, check_room, hold_folder, remove_abandoned
from dask_bigfft.exchange.scratch import Scratch
from dask_bigfft.exchange.scratch_files import failed, make_folder

__all__ = ["ScratchPlace", "open_scratch"]

Block = tuple[int, ...]


@dataclass(frozen=True)
class ScratchPlace:
    """Where the scratch files of a graph go.

    Parameters
    ----------
    directory : str
        Folder of all scratch, or, if it is kept, of this run alone.
    name : str
        Tells this graph's folder from others'.
    sync : bool
        Whether data are on the disk before a record says that they are there.
    kept : bool
        Whether the folder outlives the run, so that another run can go on from it. The results'
        blocks are then stored by whoever writes the records of that.
    needed : int
        Bytes that all files together take at the worst moment.
    memory : int or None
        Bytes of memory that the tasks need meanwhile.
    finished : tuple of (int, frozenset of blocks)
        Blocks that an earlier run has done, by the number of the exchange that they were written
        for; the number of exchanges stands for stored blocks of the result.
    rows : object or None
        The stored array, of which the first round reads rows by itself where the plan says so: has
        `fill`, which puts a region of it into an array, and `anywhere`, whether several may be read
        at a time.
    """

    directory: str
    name: str
    sync: bool = False
    kept: bool = False
    needed: int = 0
    memory: int | None = None
    finished: tuple[tuple[int, frozenset[Block]], ...] = ()
    rows: Any = None
    life: str = ""

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_bigfft.ScratchPlace", self.directory, self.sync, self.kept, self.life


def open_scratch(place: ScratchPlace, shared: bool) -> Scratch:
    """Return the scratch folder of a run, made if it is not there.

    A folder that is not kept goes when the object returned here is closed or dies, or with the last
    process that holds it.

    Parameters
    ----------
    place : ScratchPlace
        Where.
    shared : bool
        Whether several processes compute the graph: each key then stands for one computation, so
        all use one folder; else every computation has its own.

    Raises
    ------
    ScratchError
        If the folder cannot be made, or the disk has too little room.
    """
    directory = Path(place.directory)
    make_folder(directory)
    if place.kept:
        return Scratch(directory, place.sync, kept=True, life=place.life)
    remove_abandoned(directory)
    folder = directory / f"{PREFIX}{place.name}"
    if not shared:
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    check_room(directory, place.needed)
    try:
        scratch = Scratch(folder, place.sync, False, hold_folder(folder, make=True))
    except OSError as error:
        failed(folder, error, 0, 0)
    scratch.own()
    return scratch

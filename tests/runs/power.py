"""A folder as a loss of power would leave it: what was synced is there, of the rest anything."""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dask_bigfft import events

#: Functions of `os` before which the power may be lost, beside the events of a run.
CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")

#: How much of the names, and of the contents, of what was not synced is there afterwards.
NAMES = ("synced", "written", "any")
CONTENTS = ("synced", "zeros", "pages", "written", "any")

#: Bytes that a file system loses at a time.
PAGE = 4096


@dataclass(frozen=True)
class Node:
    """A file with its bytes, or a folder with the inodes of its names, and the time of a change."""

    content: bytes | dict[str, int]
    changed: int


Nodes = dict[int, Node]
Places = dict[int, set[tuple[int, str]]]


def places_of(nodes: Nodes) -> Places:
    """Return the folders that an inode is in, and its names there."""
    places: Places = {}
    for folder, node in nodes.items():
        for name, inode in node.content.items() if isinstance(node.content, dict) else ():
            places.setdefault(inode, set()).add((folder, name))
    return places


@dataclass(frozen=True)
class Moment:
    """What had been synced, and what had been written, at some moment."""

    root: int
    synced: Nodes
    written: Nodes

    def restore(
        self,
        folder: Path,
        names: str,
        contents: str,
        rng: random.Random,
    ) -> None:
        """Make a folder what it may be after a loss of power at this moment."""
        places: dict[tuple[int, str], int] = {}
        before = places_of(self.synced)
        after = places_of(self.written)
        moved = {
            i: names == "written" or (names == "any" and rng.random() < 0.5)
            for i in sorted(before.keys() | after.keys())
        }
        for inode in sorted(moved, key=moved.__getitem__):  # what is newer takes a name last
            places |= dict.fromkeys((after if moved[inode] else before).get(inode, ()), inode)
        used_inodes = set(places.values())
        for inode in moved.keys() - used_inodes:  # renamed, and its old name was taken
            if inode in before and inode in after:
                places |= dict.fromkeys(after[inode] - places.keys(), inode)
        shutil.rmtree(folder)
        self._make(folder, self.root, places, contents, rng)

    def _make(
        self,
        path: Path,
        inode: int,
        places: dict[tuple[int, str], int],
        contents: str,
        rng: random.Random,
    ) -> None:
        was = self.synced.get(inode)
        is_ = self.written.get(inode)
        node = is_ or was
        if node is None:
            return
        if isinstance(node.content, dict):
            path.mkdir()
            for (folder, name), child in places.items():
                if folder == inode:
                    self._make(path / name, child, places, contents, rng)
            return
        path.write_bytes(_left(was, is_, contents, rng))
        os.utime(path, ns=(node.changed, node.changed))


def _left(
    was: Node | None,
    is_: Node | None,
    contents: str,
    rng: random.Random,
) -> bytes:
    """Return what is left of a file."""
    old = was.content if was is not None else b""
    new = is_.content if is_ is not None else old
    assert isinstance(old, bytes)
    assert isinstance(new, bytes)
    how = rng.choice(CONTENTS[:-1]) if contents == "any" else contents
    if old == new or how == "written":
        return new
    if how == "synced":
        return old
    old = old[: len(new)].ljust(len(new), b"\0")
    if how == "zeros":
        return old
    return b"".join(rng.choice((old, new))[i : i + PAGE] for i in range(0, len(new), PAGE))


class Disk:
    """A folder whose files are followed until they are on the disk; its moments are kept.

    Parameters
    ----------
    root : Path
        Of the folder, all of which is on the disk now.
    wanted : callable
        Says of the number of a moment whether it is kept.
    """

    def __init__(self, root: Path, wanted: Callable[[int], bool]) -> None:
        self.root = root
        self.wanted = wanted
        self.count = itertools.count()
        self.moments = list[Moment]()
        self._handles = dict[int, int]()  # an inode that is open is not another file's soon
        self.synced = self._walk()

    def __enter__(self) -> "Disk":
        self._patch = pytest.MonkeyPatch()
        for name in CALLS:
            self._patch.setattr(os, name, self._noted(name, getattr(os, name)))
        events.add_sink(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        events.remove_sink(self._event)
        self._patch.undo()
        for handle in self._handles.values():
            os.close(handle)

    def _event(self, name: str, numbers: Mapping[str, Any]) -> None:
        self._moment()

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._moment()
            value = call(*args, **kwargs)
            if name == "fsync":
                path = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                if path == self.root or self.root in path.parents:
                    self.synced[os.fstat(args[0]).st_ino] = self._node(path)
            return value

        return noted

    def _moment(self) -> None:
        if self.wanted(next(self.count)):
            root = self.root.stat().st_ino
            self.moments.append(Moment(root, dict(self.synced), self._walk()))

    def _walk(self) -> Nodes:
        """Return everything that is there now."""
        paths = [self.root, *self.root.rglob("*")]
        return {path.stat().st_ino: self._node(path) for path in paths}

    def _node(self, path: Path) -> Node:
        status = path.stat()
        if status.st_ino not in self._handles:
            self._handles[status.st_ino] = os.open(path, os.O_RDONLY)
        if not path.is_dir():
            return Node(path.read_bytes(), status.st_mtime_ns)
        with os.scandir(path) as entries:
            return Node({entry.name: entry.inode() for entry in entries}, status.st_mtime_ns)

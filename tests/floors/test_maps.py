"""Rooms of many files have a map of them in their docstring, and it is complete."""

import ast
import re
from pathlib import Path

import pytest
from floors.imports import PACKAGE

ROOT = Path(__file__).resolve().parents[2] / PACKAGE

#: A room of so many files needs a map.
MANY = 10


def files(room):
    return {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}


ROOMS = sorted(path for path in ROOT.iterdir() if len(files(path)) >= MANY)


def missing(names, docstring):
    """Files that a docstring does not name."""
    return sorted(names - set(re.findall(r"\w+", docstring)))


def test_rooms_are_found():
    assert {"exchange", "graph", "devices", "planner"} <= {room.name for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_file_is_in_the_map_of_its_room(room):
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert missing(files(room), docstring or "") == [], f"name it in {room.name}/__init__.py"


def test_a_file_that_is_not_in_the_map_is_found():
    assert missing({"gather", "rows"}, "gather (a block)") == ["rows"]

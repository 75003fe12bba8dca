"""`ci/plain.py` measures a small tree as expected, and fails where a limit is passed."""

import re

import pytest
from support import ROOT, python

CLEAR = '''\
"""A docstring has no tokens."""

import functools
import threading

LOCK = threading.Lock()  # nor has a comment
LENGTHS = [
    2,
    3,
]


@functools.lru_cache(maxsize=2)
def total(
    first,
    second,
):
    """Return a sum."""
    return first + second


class Pair:
    def swapped(self, first, second):
        first, second = second, first
        return first, second
'''

UNCLEAR = """\
def several(items):
    found, made = items, 2
    pair = (found, made)
    print(*pair)
    if (one := items) and made and pair:
        return [here for here in one if here if made]
    return lru_cache()
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "clear.py").write_text(CLEAR)
    (tmp_path / "unclear.py").write_text(UNCLEAR)
    return tmp_path


def figures_of(tree):
    """Return the printed figures by room; the tree's own room has the name of its folder."""
    header, *lines = python(ROOT / "ci" / "plain.py", tree).stdout.splitlines()
    names = re.split(r"\s{2,}", header.strip())
    figures = {}
    for line in lines:
        room, *cells = line.split()
        values = [float(cell) for cell in cells]
        figures[room] = dict(zip(names, values, strict=True))
    return figures


def test_tokens_and_lines_are_those_of_code(tree):
    clear = figures_of(tree)["room/"]
    assert clear["files"] == 1
    assert clear["lines"] == 16  # neither docstrings and comments nor the bracket alone
    assert clear["tokens"] == 65
    assert clear["tokens a line"] == pytest.approx(65 / 16, abs=0.05)
    assert clear["file lines"] == clear["lines"]
    assert clear["classes"] == clear["caches"] == clear["locks"] == 1


def test_swaps_and_clear_names_do_not_count(tree):
    clear = figures_of(tree)["room/"]
    assert clear["bundled"] == clear["splats"] == clear["empty names"] == clear["walruses"] == 0
    assert clear["complexity"] == 1
    assert clear["complex, %"] == 0
    assert clear["body lines"] == 2


def test_what_hides_meaning_counts_in_1000_lines(tree):
    unclear = figures_of(tree)["files"]
    assert unclear["lines"] == 7
    thousand = pytest.approx(1000 / 7, abs=0.05)
    assert unclear["bundled"] == thousand
    assert unclear["splats"] == thousand
    assert unclear["walruses"] == thousand
    assert unclear["empty names"] == pytest.approx(4000 / 7, abs=0.05)
    # one, an if, two ands, a comprehension with two conditions
    assert unclear["complexity"] == 7


def test_the_tree_has_the_sums_of_its_rooms(tree):
    figures = figures_of(tree)
    whole = figures.pop(tree.name)
    for name in ("files", "lines", "tokens", "classes"):
        assert whole[name] == sum(room[name] for room in figures.values())


def test_check_fails_where_a_limit_is_passed(tree):
    assert "No limit" in python(ROOT / "ci" / "plain.py", tree / "room", "--check").stdout
    output = python(
        ROOT / "ci" / "plain.py",
        tree,
        "--check",
        status=1,
    ).stdout
    passed = [line for line in output.splitlines() if "at most" in line]
    assert {"bundled", "splats", "empty names"} == {
        name for name in ("bundled", "splats", "empty names", "complexity") if name in str(passed)
    }


def test_the_worst_places_are_named(tree):
    output = python(
        ROOT / "ci" / "plain.py",
        tree,
        "--worst",
        1,
    ).stdout
    assert re.search(r"complexity\n +7 .*unclear.py:1 several", output)
    assert re.search(r"bundled\n +1 .*unclear.py:2", output)

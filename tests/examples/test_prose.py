"""What README, guide, changelog and the results' notes name is there: files, commands, settings."""

import importlib.util
import re
from pathlib import Path

import pytest
from floors.imports import FLOORS, PURE

from dask_bigfft.config import KNOBS
from dask_bigfft.planning.arguments import Extras

ROOT = Path(__file__).resolve().parents[2]
PROSE = [
    *ROOT.glob("*.md"), *(ROOT / "examples" / "guide").glob("*.md"), ROOT / "ci/results/README.md"
]
FILES = {"bigfft.yaml"}  # whose name looks like one


def named(pattern):
    """Every match in the prose, with the file that it stands in."""
    for path in PROSE:
        for found in re.finditer(pattern, path.read_text(encoding="utf-8")):
            yield path, found[1]


def test_links_lead_to_files():
    links = [(p, link) for p, link in named(r"\]\(([^)#\s]+)\)") if "://" not in link]
    assert len(links) > 5
    assert [(p.name, link) for p, link in links if not (p.parent / link).exists()] == []


def test_scripts_exist():
    scripts = {script for _, script in named(r"(?<![\w/.])(ci/[a-z_-]+)\b(?!/|\.)")}
    assert {"ci/demo", "ci/test", "ci/gpu-session"} <= scripts
    made = {"ci/out"}  # by ci/docs
    assert sorted(s for s in scripts - made if not (ROOT / s).exists()) == []


def test_modules_that_are_run_exist():
    modules = {module for _, module in named(r"python -m ((?:dask_bigfft|benchmarks)[\w.]*)")}
    assert "benchmarks" in modules
    assert sorted(m for m in modules if importlib.util.find_spec(m) is None) == []


def test_settings_exist():
    settings = {setting for _, setting in named(r"`(bigfft(?:\.[a-z-]+)+)\b")} - FILES
    assert len(settings) > 10
    assert sorted(settings - KNOBS.keys()) == []


def test_keywords_are_those_of_transforms():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- ((?:`\w+`(?:, )?)+):", text.partition("### Keywords")[2], re.MULTILINE)
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert named == list(Extras.__annotations__)


@pytest.mark.parametrize("command", ["run", "plan", "calibrate"])
def test_options_of_the_command_line_exist(command):
    from dask_bigfft.cli.arguments import parser

    (choices,) = (a.choices for a in parser()._actions if a.choices)
    known = {option for action in choices[command]._actions for option in action.option_strings}
    lines = named(rf"dask-bigfft {command}\b([^`\n#]*)")
    options = {option for _, line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert options
    assert sorted(options - known) == []


def test_the_table_of_rooms_is_that_of_the_import_checker():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = {
        room: int(floor)
        for floor, rooms in re.findall(r"^\| (\d) \| ([^|]*) \|", text, re.MULTILINE)
        for room in re.findall(r"`(\w+)`", rooms)
    }
    rooms = {room: floor for room, floor in FLOORS.items() if room.strip("_")}
    assert told == {room: rooms[room] for room in rooms.keys() - {"__main__", "testing"}}
    folder = ROOT / "dask_bigfft"
    assert [r for r in rooms if not ((folder / r).is_dir() or (folder / f"{r}.py").exists())] == []
    pure = re.findall(r"`(\w+)`(?:, `(\w+)`)? \((?:both )?pure\)", text)
    assert {room for names in pure for room in names if room} == set(PURE)

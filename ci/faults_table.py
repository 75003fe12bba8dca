"""Prints the outcome of the grid of faults as tables: python ci/faults_table.py JUNIT_XML [...].

What a later file has takes the place of what an earlier one has of the same name.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass

FAULTS = ("killed", "paused", "cut", "cut_off")
VICTIMS = ("actor", "first", "other", "scheduler", "client")


@dataclass(frozen=True)
class Case:
    """A test: its name, what is in its brackets, what came out, and how long it took."""

    name: str
    words: tuple[str, ...]
    outcome: str
    seconds: float


def cases(path: str) -> dict[str, Case]:
    """Return the tests of a file that pytest has written, by name."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name, _, words = case.attrib["name"].partition("[")
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcome = bad[0] if bad else "passed"
        parts = tuple(words.rstrip("]").split("-")) if words else ()
        found[case.attrib["name"]] = Case(name, parts, outcome, float(case.attrib["time"]))
    return found


def table(found: list[Case]) -> list[str]:
    """Return a table of a carrier: phases down, faults and victims across, none left out."""
    by_place = {case.words[1:]: case for case in found}
    columns = [
        (fault, victim)
        for fault in FAULTS
        for victim in VICTIMS
        if any(place[1:] == (fault, victim) for place in by_place)
    ]
    lines = [
        "| phase | " + " | ".join(f"{fault}, {victim}" for fault, victim in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for phase in dict.fromkeys(place[0] for place in by_place):
        cells = []
        for fault, victim in columns:
            case = by_place.get((phase, fault, victim))
            if case is None:
                cells.append("not run")
            else:
                cells.append(f"{case.seconds:.1f}" if case.outcome == "passed" else case.outcome)
        lines.append(f"| {phase} | " + " | ".join(cells) + " |")
    return [line.replace("cut_off", "cut off") for line in lines]


def main(first: str, *later: str) -> None:
    """Print all tables."""
    by_name = cases(first)
    again = {name: case for path in later for name, case in cases(path).items()}
    found = list({**by_name, **again}.values())
    grid, rest = defaultdict(list), []
    for case in found:
        (grid[case.words[0]] if len(case.words) == 4 else rest).append(case)
    passed = sum(case.outcome == "passed" for case in found)
    print("# Faults by phase and victim\n")
    print(
        f"`ci/faults`: {passed} of {len(found)} cases passed, "
        f"{sum(case.seconds for case in found) / 60:.1f} minutes. Seconds of each case that "
        "passed; others say what became of them. `files` is a run from file to file with a "
        "scratch folder; where its scheduler or client was killed, another run went on."
    )
    for name, case in by_name.items():
        if name in again:
            print(f"\nRun once more, after {case.outcome}: `{name}`.")
    for carrier, own in grid.items():
        print(f"\n## {carrier}\n")
        print("\n".join(table(own)))
    if rest:
        print("\n## Others\n")
    for case in rest:
        print(
            f"- {case.name.removeprefix('test_').replace('_', ' ')}: {case.outcome}, "
            f"{case.seconds:.1f} s"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

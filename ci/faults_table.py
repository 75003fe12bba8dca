"""Prints the outcome of the grid of faults as tables: python ci/faults_table.py JUNIT_XML [...].

What a later file has takes the place of what an earlier one has of the same name.
"""

import itertools
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass

FAULTS = ("killed", "paused", "cut", "cut_off")
VICTIMS = ("actor", "first", "other", "scheduler", "client")


@dataclass(frozen=True)
class Case:
    """A test of the grid, or another one.

    Attributes
    ----------
    name : str
        Name of the test without what is in its brackets.
    words : tuple of str
        What is in the brackets: carrier, phase, fault and victim of a test of the grid.
    outcome : str
        "passed", "failure", "error" or "skipped".
    seconds : float
        Duration of the test.
    kills : int or None
        Number of times that a run was killed and resumed; None for other tests.
    """

    name: str
    words: tuple[str, ...]
    outcome: str
    seconds: float
    kills: int | None


def case_of(element: ElementTree.Element) -> Case:
    """Return the test of an element of the file."""
    name, _, words = element.attrib["name"].partition("[")
    failures = [child.tag for child in element if child.tag in ("failure", "error", "skipped")]
    kills = None
    for entry in element.iter("property"):
        if entry.attrib["name"] == "kills":
            kills = int(entry.attrib["value"])
    return Case(
        name=name,
        words=tuple(words.rstrip("]").split("-")) if words else (),
        outcome=failures[0] if failures else "passed",
        seconds=float(element.attrib["time"]),
        kills=kills,
    )


def cases_of(path: str) -> dict[str, Case]:
    """Return the tests of a file that pytest has written, by full name."""
    elements = ElementTree.parse(path).iter("testcase")
    return {element.attrib["name"]: case_of(element) for element in elements}


def table(cases: list[Case]) -> list[str]:
    """Return a table of a carrier: phases down, faults and victims across, none left out."""
    by_place = {case.words[1:]: case for case in cases}
    present = {place[1:] for place in by_place}
    every_column = itertools.product(FAULTS, VICTIMS)
    columns = [column for column in every_column if column in present]
    lines = [
        "| phase | " + " | ".join(f"{fault}, {victim}" for fault, victim in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for phase in dict.fromkeys(place[0] for place in by_place):
        cells = [cell(by_place.get((phase, *column))) for column in columns]
        lines.append(f"| {phase} | " + " | ".join(cells) + " |")
    return [line.replace("cut_off", "cut off") for line in lines]


def cell(case: Case | None) -> str:
    """Return the seconds of a case that passed, or its outcome."""
    if case is None:
        return "not run"
    return f"{case.seconds:.1f}" if case.outcome == "passed" else case.outcome


def print_summary(cases: list[Case]) -> None:
    """Print the heading, and how many cases passed."""
    passed = sum(case.outcome == "passed" for case in cases)
    print("# Faults by phase and victim\n")
    print(
        f"`ci/faults`: {passed} of {len(cases)} cases passed, "
        f"{sum(case.seconds for case in cases) / 60:.1f} minutes. Seconds of each case that "
        "passed; others say what became of them. `files` is a run from file to file with a "
        "scratch folder; where its scheduler or client was killed, another run went on."
    )


def print_killed(cases: list[Case]) -> None:
    """Print how many runs that were killed again and again gave the right result."""
    equal = sum(case.outcome == "passed" for case in cases)
    kills = sum(case.kills or 0 for case in cases)
    seconds = sum(case.seconds for case in cases)
    print("\n## Runs from file to file that are killed again and again\n")
    print(
        f"{equal} of {len(cases)} results are equal to the bit to those of undisturbed runs, "
        f"after {kills} kills, in {seconds / 60:.1f} minutes."
    )


def print_others(cases: list[Case]) -> None:
    """Print a line for each case that belongs to no table."""
    print("\n## Others\n")
    for case in cases:
        name = case.name.removeprefix("test_").replace("_", " ")
        print(f"- {name}: {case.outcome}, {case.seconds:.1f} s")


def main(first: str, *later: str) -> None:
    """Print all tables."""
    first_cases = cases_of(first)
    later_cases: dict[str, Case] = {}
    for path in later:
        later_cases |= cases_of(path)
    cases = list((first_cases | later_cases).values())
    print_summary(cases)
    for name, case in first_cases.items():
        if name in later_cases:
            print(f"\nRun once more, after {case.outcome}: `{name}`.")

    by_carrier: dict[str, list[Case]] = defaultdict(list)
    killed = []
    others = []
    for case in cases:
        if case.kills is not None:
            killed.append(case)
        elif len(case.words) == 4:
            by_carrier[case.words[0]].append(case)
        else:
            others.append(case)
    for carrier, cases_of_carrier in by_carrier.items():
        print(f"\n## {carrier}\n")
        print("\n".join(table(cases_of_carrier)))
    if killed:
        print_killed(killed)
    if others:
        print_others(others)


if __name__ == "__main__":
    main(*sys.argv[1:])

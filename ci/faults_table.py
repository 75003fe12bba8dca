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
    """A test: its name, what is in its brackets, what came out, how long it took, and its kills.

    `kills` is the number of times that a run was killed and resumed; None for other tests.
    """

    name: str
    words: tuple[str, ...]
    outcome: str
    seconds: float
    kills: int | None


def cases(path: str) -> dict[str, Case]:
    """Return the tests of a file that pytest has written, by name."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name, _, words = case.attrib["name"].partition("[")
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcome = bad[0] if bad else "passed"
        parts = tuple(words.rstrip("]").split("-")) if words else ()
        properties = {
            entry.attrib["name"]: entry.attrib["value"] for entry in case.iter("property")
        }
        kills = int(properties["kills"]) if "kills" in properties else None
        seconds = float(case.attrib["time"])
        found[case.attrib["name"]] = Case(name, parts, outcome, seconds, kills)
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
    grid: dict[str, list[Case]] = defaultdict(list)
    killed = []
    rest = []
    for case in found:
        if case.kills is not None:
            killed.append(case)
        elif len(case.words) == 4:
            grid[case.words[0]].append(case)
        else:
            rest.append(case)
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
    if killed:
        equal = sum(case.outcome == "passed" for case in killed)
        kills = sum(case.kills or 0 for case in killed)
        seconds = sum(case.seconds for case in killed)
        print("\n## Runs from file to file that are killed again and again\n")
        print(
            f"{equal} of {len(killed)} results are equal to the bit to those of undisturbed runs, "
            f"after {kills} kills, in {seconds / 60:.1f} minutes."
        )
    if rest:
        print("\n## Others\n")
    for case in rest:
        print(
            f"- {case.name.removeprefix('test_').replace('_', ' ')}: {case.outcome}, "
            f"{case.seconds:.1f} s"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

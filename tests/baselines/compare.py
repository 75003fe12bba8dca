"""Differences between two sets of baselines, in lines that name the request and the field."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

#: Fields of a request that are shown in full if it differs.
WIDEST = 160


def flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf of nested mappings.

    >>> list(flat({"a": {"b": 1}, "c": []}))
    [('a / b', 1), ('c', [])]
    """
    if not isinstance(content, Mapping):
        yield path, content
        return
    for name, value in content.items():
        yield from flat(value, f"{path} / {name}" if path else str(name))


def plan_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences of the records that both have, a paragraph for each request."""
    lines = []
    for number in sorted(before.keys() & after.keys(), key=int):
        changed = leaf_differences(before[number], after[number])
        if changed:
            lines.append(f"request {number}: {after[number]['request']}")
            lines += [f"    {line}" for line in changed]
    return lines


def leaf_differences(before: Any, after: Any) -> list[str]:
    """Return the leaves that differ: path, value before, value after."""
    old = dict(flat(before))
    new = dict(flat(after))
    lines = []
    for path in sorted(old.keys() | new.keys()):
        if path not in new:
            lines.append(f"{path}: gone, was {old[path]}")
        elif path not in old:
            lines.append(f"{path}: new, is {new[path]}")
        elif old[path] != new[path]:
            lines.append(f"{path}: {clearest(str(old[path]), str(new[path]))}")
    return lines


def clearest(before: str, after: str) -> str:
    """Return two texts; of long ones the part around the first difference.

    >>> clearest("16 x 64", "8 x 128")
    '16 x 64 -> 8 x 128'
    """
    if len(before) + len(after) <= WIDEST:
        return f"{before} -> {after}"
    pairs = zip(before, after, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(0, first - 20)
    end = start + WIDEST // 2
    return f"at {first}: ..{before[start:end]}.. -> ..{after[start:end]}.."


def text_differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the lines of explanations that differ."""
    lines = []
    for number in sorted(before.keys() & after.keys(), key=int):
        old = before[number].splitlines()
        new = after[number].splitlines()
        changed = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
        if changed:
            lines.append(f"request {number}:")
            lines += [f"    {line}" for line in changed if not line.startswith("@@")]
    return lines


def bit_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the small transforms whose bits differ, by library."""
    lines = []
    for library in sorted(before["digests"].keys() | after["digests"].keys()):
        old = before["digests"].get(library)
        new = after["digests"].get(library)
        if old is None or new is None:
            lines.append(f"{library}: usable only {'after' if old is None else 'before'}")
            continue
        changed = sorted((n for n in old.keys() & new.keys() if old[n] != new[n]), key=int)
        lines += [f"{library}, transform {n}: {old[n]} -> {new[n]}" for n in changed]
    return lines


DIFFERENCES = {
    "plans": plan_differences,
    "texts": text_differences,
    "bits": bit_differences,
    "surface": leaf_differences,
}

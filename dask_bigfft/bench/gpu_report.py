"""The GPU benchmark's results as tables.

Imports the standard library.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Fractions of the bus that were asked for, by how memory is had.
ASKED = {"pinned": 0.85, "ring": 0.6, "pageable": 0.6}

#: Columns that hold a time against the bus.
BUS = {
    "asked": "asked", "most": "allowed", "fraction": "reached", "of_allowed": "of allowed",
    "most_working": "allowed with kernels", "of_working": "of that", "row_kib": "row KiB",
}

WORDS = (
    "Written by `ci/bench --gpu`. Rates in GB/s, times in seconds, the best of two after one that "
    "does not count, unless said. `reached` is the time that the bus needs for the bytes of all "
    "crossings, at its two-way bandwidth, over the time taken. `allowed` is what it would be if "
    "nothing but the very same copies were made, rows as they are, both ways at once, by plain "
    "calls of the driver that wait for nothing; where memory is not pinned, with threads that fill "
    "and empty staging buffers beside, or with pinning. `allowed with kernels` is that while the "
    "same FFTs and factors are computed beside, which nothing waits for. `row KiB` says how wide "
    "rows are, to the card and back, in the harmonic mean."
)


def table(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> list[str]:
    """Rows as a Markdown table; columns by key, with their headings.

    >>> table([{"a": 0.1234}], {"a": "A"})
    ['| A |', '|---|', '| 0.123 |', '']
    >>> table([{"a": [0.6012, 28.5], "b": (4, 8)}], {"a": "A", "b": "B"})[2]
    '| 0.601 / 28.5 | 4 x 8 |'
    """
    lines = [f"| {' | '.join(columns.values())} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(_cell(row.get(key)) for key in columns)} |" for row in rows]
    return [*lines, ""]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    if isinstance(value, list | tuple):
        floats = any(isinstance(n, float) for n in value)
        return " / ".join(f"{n:.3g}" for n in value) if floats else " x ".join(map(str, value))
    return "" if value is None else str(value)


def _ratios(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Whole transforms beside their peers: how many times as fast we are."""
    rows = []
    for row in found.get("transforms", []):
        same = (list(row["shape"]), row["dtype"])
        peers = {
            peer["peer"]: peer["seconds"] / row["seconds"]
            for peer in (*found.get("cpu", []), *found.get("loops", []))
            if (list(peer["shape"]), peer["dtype"]) == same
        }
        rows.append({**row, **peers})
    return rows


def _held(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with what was asked for and what is allowed, as fractions of the bus.

    >>> _held([{"fraction": 0.8, "of_allowed": 0.9}])[0]["most"]
    0.888...
    """
    held = []
    for row in rows:
        asked = ASKED[row.get("memory", row.get("source", "pinned"))]
        most = {
            name: row["fraction"] / row[of]
            for name, of in (("most", "of_allowed"), ("most_working", "of_working"))
            if of in row
        }
        held.append({**row, "asked": asked, **most})
    return held


def write_report(found: dict[str, Any], path: Path) -> None:
    """Write the tables beside the results."""
    gpu, machine = found["gpu"], found["machine"]
    lines = [
        "# GPU figures", "",
        f"{gpu['name']}, {gpu['memory'] / 2**30:.0f} GiB, CuPy {gpu['cupy']}; host: "
        + ", ".join(f"{k} {v}" for k, v in machine.items() if isinstance(v, str | int | float)),
        "", WORDS, "", "## The bus", "",
        *table(found.get("bus", []), {"name": "direction", "gbs": "GB/s"}),
        "## Rounds on blocks in host memory, in place, under the device budget", "",
        *table(_held(found.get("rounds", [])), {
            "memory": "memory", "scheme": "scheme", "dtype": "dtype", "block_mib": "block MiB",
            "gib": "GiB", "seconds": "seconds", "crossings": "crossings", "gbs": "GB/s each way",
            **BUS}),
        "## Whole transforms; peers: how many times their time", "",
        *table(_held(_ratios(found)), {
            "name": "", "shape": "shape", "dtype": "dtype", "gib": "GiB",
            "budget_gib": "budget GiB", "block_mib": "block MiB", "rounds": "rounds",
            "exchanges": "exchanges", "crossings": "crossings", "first": "first time",
            "seconds": "seconds", **BUS, "device_peak": "most device memory / budget",
            "ducc0": "ducc0", "pinned loop": "pinned loop", "pageable loop": "pageable loop",
            "error": "distance from the CPU"}),
        "## Whole transforms of data that is not pinned", "",
        "Pinned where it is in every run (`pageable`), or through the ring.", "",
        *table(_held(found.get("pageable", [])), {
            "source": "memory", "name": "", "shape": "shape", "gib": "GiB",
            "budget_gib": "budget GiB", "block_mib": "block MiB", "rounds": "rounds",
            "crossings": "crossings", "seconds": "seconds", **BUS}),
        "## Problems that fit the card, transfers included", "",
        *table(
            [{**row, **row["seconds"]} for row in found.get("in_card", [])],
            {"shape": "shape", "floor": "floor", "dask_bigfft": "dask_bigfft", "ducc0": "ducc0",
             "scipy": "SciPy", "cupy, pinned": "CuPy, pinned", "cupy, pageable": "CuPy, pageable"}),
        "## In their own memory (`overwrite_x`)", "",
        *table(_held(found.get("in_place", [])), {
            "shape": "shape", "order": "order", "blocks": "blocks", "gib": "GiB",
            "budget_gib": "budget GiB", "crossings": "crossings", "first": "first time",
            "seconds": "seconds", **BUS, "same_memory": "same memory",
            "lent_beside": "bytes lent beside", "peak_over_data": "peak over data"}),
        "## Device memory, and engines at work", "",
        *table(found.get("peak", []), {"budget": "budget", "used": "most used", "shape": "shape"}),
        *table(found.get("trace", []), {
            "shape": "shape", "seconds": "seconds", "one or more": "one or more",
            "two or more": "two or more", "all three": "all three"}),
        "## Rounds along columns with one thing changed (`bench/gpu_columns.py` says why)", "",
        *table(found.get("columns", []), {
            "block_mib": "block MiB", "variant": "changed", "pieces": "pieces", "slots": "slots",
            "seconds": "seconds", "fraction": "reached", "h2d busy": "h2d busy",
            "compute busy": "kernels busy", "d2h busy": "d2h busy", "h2d ms": "h2d ms",
            "compute ms": "kernel ms", "d2h ms": "d2h ms"}),
        "## Staging buffers of several sizes", "",
        *table(found.get("staging", []), {
            "buffers_mib": "buffers one way, MiB", "part_mib": "copied at a time, MiB",
            "around_caches": "around the caches: in x out", "gbs": "GB/s each way",
            "threads_alone_gbs": "by threads alone"}),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

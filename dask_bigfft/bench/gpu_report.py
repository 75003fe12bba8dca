"""The GPU benchmark's results as tables.

Imports the standard library.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def table(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> list[str]:
    """Rows as a Markdown table; columns by key, with their headings.

    >>> table([{"a": 0.1234}], {"a": "A"})
    ['| A |', '|---|', '| 0.123 |', '']
    """
    lines = [f"| {' | '.join(columns.values())} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(_cell(row.get(key)) for key in columns)} |" for row in rows]
    return [*lines, ""]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
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


def write_report(found: dict[str, Any], path: Path) -> None:
    """Write the tables beside the results."""
    gpu, machine = found["gpu"], found["machine"]
    lines = [
        "# GPU figures", "",
        f"{gpu['name']}, {gpu['memory'] / 2**30:.0f} GiB, CuPy {gpu['cupy']}; host: "
        + ", ".join(f"{k} {v}" for k, v in machine.items() if isinstance(v, str | int | float)),
        "", "Written by `ci/bench --gpu`. Rates in GB/s, times in seconds. `fraction` is the time "
        "that the bus needs for the bytes of all crossings, at its two-way bandwidth, over the "
        "time taken.", "", "## The bus", "",
        *table(found.get("bus", []), {"name": "direction", "gbs": "GB/s"}),
        "## Rounds on blocks in host memory, in place, under the device budget", "",
        *table(found.get("rounds", []), {
            "memory": "memory", "scheme": "scheme", "dtype": "dtype", "block_mib": "block MiB",
            "gib": "GiB", "seconds": "seconds", "crossings": "crossings", "gbs": "GB/s each way",
            "fraction": "fraction"}),
        "## Whole transforms; peers: how many times their time", "",
        *table(_ratios(found), {
            "name": "", "shape": "shape", "dtype": "dtype", "gib": "GiB",
            "budget_gib": "budget GiB", "block_mib": "block MiB", "rounds": "rounds",
            "exchanges": "exchanges", "crossings": "crossings", "seconds": "seconds",
            "fraction": "fraction", "ducc0": "ducc0",
            "pinned loop": "pinned loop", "pageable loop": "pageable loop",
            "error": "distance from the CPU"}),
        "## Whole transforms of data that is not pinned", "",
        "Pinned where it is in every run (`pageable`), or through the ring.", "",
        *table(found.get("pageable", []), {
            "source": "memory", "name": "", "shape": "shape", "gib": "GiB",
            "budget_gib": "budget GiB", "block_mib": "block MiB", "rounds": "rounds",
            "crossings": "crossings",
            "seconds": "seconds", "fraction": "fraction"}),
        "## Problems that fit the card, transfers included", "",
        *table(
            [{**row, **row["seconds"]} for row in found.get("in_card", [])],
            {"shape": "shape", "floor": "floor", "dask_bigfft": "dask_bigfft", "ducc0": "ducc0",
             "scipy": "SciPy", "cupy, pinned": "CuPy, pinned", "cupy, pageable": "CuPy, pageable"}),
        "## In their own memory (`overwrite_x`)", "",
        *table(found.get("in_place", []), {
            "shape": "shape", "order": "order", "blocks": "blocks", "gib": "GiB",
            "budget_gib": "budget GiB", "seconds": "seconds", "same_memory": "same memory",
            "lent_beside": "bytes lent beside", "peak_over_data": "peak over data"}),
        "## Device memory, and engines at work", "",
        *table(found.get("peak", []), {"budget": "budget", "used": "most used", "shape": "shape"}),
        *table(found.get("trace", []), {
            "shape": "shape", "seconds": "seconds", "one or more": "one or more",
            "two or more": "two or more", "all three": "all three"}),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

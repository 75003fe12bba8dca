"""Result pages from the JSON of other programs, and the figures of the README.

``python -m benchmarks pages`` writes a page beside every JSON file of ``ci/results`` and the
figures of the README between two marks; ``--check`` writes nothing and fails where they differ.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.core import RESULTS, ROOT

MARKS = ("<!-- figures: python -m benchmarks pages -->", "<!-- end of figures -->")

#: Columns of tables of transforms on a GPU.
WHOLE = (
    "name | rounds | gib=GiB | crossings | seconds | of_bus=of the bus | ducc0 | "
    "pinned_loop=pinned loop | pageable_loop=pageable loop"
)

#: Programs: title, what is said of all tables, and of each section its heading and columns, as
#: ``key=heading`` (or ``key`` alone); ``a.b`` is looked up within the mapping ``a``.
PAGES: dict[str, tuple[str, str, dict[str, tuple[str, str]]]] = {
    "guard": (
        "Two source trees",
        "Figures of the second tree, of the state that each row names, over those of the first.",
        {"rows": ("Rows", "name=row | state | figures=after / before | bound")},
    ),
    "memory": (
        "Data in memory",
        "Seconds are medians of warm runs that take turns; `ours` is `persist()` with the "
        "fastest FFT library. Peers: their seconds over ours, so that above 1 we are faster.",
        {
            "problems": (
                "Problems",
                "name=problem | rounds | kernel=library | ours=ours, s | compute=`compute()` /"
                " `persist()` | peers.scipy=SciPy | peers.ducc0=ducc0 | peers.mkl_fft=mkl_fft "
                "| peers.FFTW (ESTIMATE)=FFTW (ESTIMATE) | peers.da.fft=da.fft | first=first "
                "run of a process, s | peak=peak / array | date",
            )
        },
    ),
    "small": (
        "Small calls",
        "Against `da.fft` after `rechunk(-1)`, warm, in alternating turns.",
        {
            where: (title, "name=call and chunks | bigfft=ours, s | dask=`da.fft`, s | cost=ratio")
            for where, title in (("threads", "Threads"), ("workers", "Workers of one thread"))
        },
    ),
    "out_of_core": (
        "Larger than memory, from Zarr to Zarr",
        "In a memory cgroup around everything. A plain copy of as many bytes takes turns with "
        "the runs. Efficiency: bytes per second over those of the copy.",
        {
            "problems": (
                "Problems",
                "name=array | rounds | seconds | passes=bytes / array | gib_per_second=GiB/s |"
                " copy_gib_per_second=copy, GiB/s | efficiency | peak_gib=peak, GiB | "
                "forecast_gib=forecast, GiB | stock=dask's own functions",
            )
        },
    ),
    "clusters": (
        "Clusters of one machine's processes",
        "Workers have one thread each.",
        {
            "first": (
                "From `compute` to the first task",
                "name=blocks | seconds | client_gib=memory of the client, GiB",
            ),
            "tiny": (
                "Transforms of a square in blocks of 2 KiB, two workers",
                "name=blocks | first=first, s | transform=later ones, s | add_1=dask adds 1 to"
                " each, s",
            ),
            "p2p": (
                "p2p against as many threads of one process",
                "name=workers | p2p=p2p, s | threads=threads, s | against_threads=ratio",
            ),
            "scale": (
                "The same bytes for each worker",
                "name=workers | seconds | copy=copies by as many processes, s | "
                "blocks_by_worker=blocks by worker | peak_gib=peak of a worker, GiB",
            ),
        },
    ),
    "convolution": (
        "Convolutions of long arrays",
        "`full`: two float64 arrays of 2^26 samples; `taps`: one of them with 4,096 taps.",
        {
            "runs": (
                "Runs",
                "name=contestant | warm=warm, s | cold=cold, s | peak_gib=peak above inputs, "
                "GiB | error | n=processes",
            )
        },
    ),
    "verification": (
        "Cost of verification",
        "Seconds over those of the same turn without checks; `none, again` shows the noise.",
        {"costs": ("Costs", "name=problem, library | again=none, again | energy | checksum")},
    ),
    "forecasts": (
        "Forecasts",
        "Forecasts are made after a calibration of the same minutes.",
        {
            "errors": (
                "Forecasts against measured seconds",
                "name=problem, library | rounds | forecast=forecast, s | seconds=measured, s |"
                " forecast_over_measured=forecast / measured | within=within 30 %",
            ),
            "ranking": (
                "The plan ranked first against the fastest of all",
                "name=problem | plans | first=ranked first | first_seconds=s | fastest | "
                "fastest_seconds=s | first_over_fastest=first / fastest | within=within 15 %",
            ),
            "tuner": (
                "The tuner: first plan of the model over the plan found by measuring",
                "name=problem | device | seconds | gain",
            ),
            "paper": (
                "Forecasts by assumed speeds, for machines that were not measured",
                "name=case | rounds | seconds | tasks | exchanged_tib=exchanged, TiB | "
                "peak_gib=host memory of a worker, GiB | bounds=bound of each round",
            ),
        },
    ),
    "gpu": (
        "GPUs",
        "`of the bus` is the time that all crossings need at the bus's two-way speed over the "
        "seconds taken. Names say data type, size of a block, and memory: pinned, pageable "
        "(pinned in every run) or ring (copied through pinned buffers). Peers: their seconds "
        "over ours.",
        {
            "bus": ("The bus", "name=direction | gb_per_second=GB/s"),
            "rounds": ("Rounds on blocks in their own memory", WHOLE),
            "transforms": ("Whole transforms of pinned data", WHOLE),
            "unpinned": ("Whole transforms of data that is not pinned", WHOLE),
            "in_place": ("Whole transforms that overwrite their input", WHOLE),
            "fits": (
                "One block that fits the GPU, transfers included",
                "name=block | seconds.ours=ours, s | peers.ducc0=ducc0 | peers.CuPy, "
                "pinned=CuPy, pinned | peers.CuPy, pageable=CuPy, pageable",
            ),
            "peak": (
                "Device memory",
                "name=transform | budget_gib=allowed, GiB | used_gib=used, GiB",
            ),
            "hybrid": (
                "CPU threads and the GPU together",
                "name=problem | cpu=CPU, s | gpu=GPU, s | hybrid=both, s | gain=faster alone /"
                " both | by=chosen by the model",
            ),
            "links": ("From GPU to GPU", "name=GPUs | gb_per_second=GB/s"),
            "two": (
                "3D transforms of blocks that stay on two GPUs, by the way of shards",
                "name=way | seconds | peak_gib=peak of a GPU, GiB | data_gib=data of a GPU, GiB",
            ),
        },
    ),
}


def cell(value: Any) -> str:
    """Return a value as text of a table.

    >>> cell({"ratio": 1.234, "low": 1.1, "high": 1.3}), cell(0.01234), cell(None)
    ('1.23 (1.1 to 1.3)', '0.0123', '')
    """
    if isinstance(value, dict) and "ratio" in value:
        if "low" not in value or value.get("n") == 1:
            return number(value["ratio"])
        star = " \\*" if value.get("level") == 0.95 else ""
        return f"{number(value['ratio'])} ({number(value['low'])} to {number(value['high'])}){star}"
    if isinstance(value, dict):
        return "; ".join(f"{name} {cell(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def looked_up(row: dict[str, Any], key: str) -> Any:
    """Return a value of a row; ``a.b`` is looked up within the mapping ``a``."""
    if key == "ours":
        return row["seconds"][f"{row['kernel']}/persist"]
    outer, _, inner = key.partition(".")
    return row.get(outer, {}).get(inner) if inner else row.get(key)


def table(rows: Sequence[dict[str, Any]], text: str) -> list[str]:
    """Return the lines of a table, without columns that are empty."""
    columns = {one.partition("=")[0]: one.rpartition("=")[2] for one in text.split(" | ")}
    texts = {key: [cell(looked_up(row, key)) for row in rows] for key in columns}
    for i, row in enumerate(rows):
        texts["name"][i] += ": " + row["failed"] if "failed" in row else ""
        bad = " (SLOWER)" if "figures" in row else " (WRONG)"
        texts["name"][i] += bad if row.get("ok") is False and "failed" not in row else ""
    kept = [key for key in columns if any(texts[key])]
    lines = [" | ".join(columns[key] for key in kept), "|".join("---" for _ in kept)]
    lines += [" | ".join(line) for line in zip(*(texts[key] for key in kept), strict=True)]
    return [f"| {lines[0]} |", f"|{lines[1]}|", *(f"| {line} |" for line in lines[2:]), ""]


def page(found: dict[str, Any]) -> str:
    """Return the page of a JSON file."""
    title, text, sections = PAGES[found["program"]]
    machine = dict(found["machine"])
    versions = ", ".join(f"{k} {v}" for k, v in machine.pop("versions", {}).items())
    about = [f"{machine.pop('cpu')}", *(f"{k.replace('_', ' ')} {v}" for k, v in machine.items())]
    about += [
        f"{k} {cell(v)}"
        for k, v in found.items()
        if k not in ("program", "machine", "sections", "state")
    ]
    lines = [
        f"# {title}",
        "",
        f"Written by `python -m benchmarks pages` from the results of `python -m benchmarks "
        f"{found['program']}`. {text} Every result was checked. Brackets hold 90 % bootstrap "
        "intervals of the median ratio (\\*: 95 %).",
        "",
        f"{', '.join(about)}. {versions}. State: {found['state']}.",
        "",
    ]
    for name, rows in found["sections"].items():
        heading, columns = sections[name]
        lines += [f"## {heading}", "", *table(rows, columns)]
    return "\n".join(lines)


# --- README -----------------------------------------------------------------------------------


def rows_of(name: str, section: str) -> dict[str, dict[str, Any]]:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in found["sections"][section]}


def between(values: Iterable[float]) -> str:
    """Return the extremes of some numbers.

    >>> between([0.904, 1.1]), between([0.1, 0.1])
    ('0.90 to 1.1', '0.10')
    """
    found = sorted(values)
    low, high = (f"{x:#.2g}".rstrip(".") for x in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def figures() -> list[str]:
    """Return the lines of the README's figures."""
    memory = rows_of("memory", "problems")
    line = memory["1d-2p26-x16"]
    peers = {k: v for k, v in line["seconds"].items() if k != "copy" and not k.endswith("/compute")}
    names = {"da.fft": "`da.fft.fft(x.rechunk(-1))`", "scipy": "SciPy (one axis: one thread)"}
    lines = [
        "One axis of 2^26 complex128 in 16 blocks in memory, two threads:",
        "",
        "| | seconds, median | runs |",
        "|---|---|---|",
    ]
    for name, seconds in sorted(peers.items(), key=lambda pair: pair[1]):
        kernel = name.removesuffix("/persist")
        ours = (
            f'**`dask_bigfft`, `kernel="{kernel}"`**' if kernel != name else names.get(name, name)
        )
        lines.append(f"| {ours} | {seconds:.2f} | {line['n'][name]} |")

    def against(peer: str, *kinds: str, ways: int = 16) -> str:
        found = [
            row["peers"][peer]["ratio"]
            for name, row in memory.items()
            if name.startswith(kinds) and name.endswith(f"x{ways}") and peer in row["peers"]
        ]
        return between(found)

    axes = ("2d", "3d", "tall", "real")
    conv, big = rows_of("convolution", "runs"), rows_of("out_of_core", "problems")
    first, costs = rows_of("clusters", "first"), rows_of("verification", "costs")
    lines += ["", "| what | figure | page |", "|---|---|---|"]
    facts: list[tuple[str, str, str]] = [
        (
            "several axes in 16 blocks: seconds of `ducc0` over ours",
            against("ducc0", *axes),
            "memory",
        ),
        ("the same in 64 blocks", against("ducc0", *axes, ways=64), "memory"),
        ("the same in 16 blocks, `da.fft` over ours", against("da.fft", *axes), "memory"),
        ("the same in 16 blocks, `mkl_fft` over ours", against("mkl_fft", *axes), "memory"),
        (
            "a prime length near 2^22 in 16 blocks: SciPy over ours",
            against("scipy", "1d-prime"),
            "memory",
        ),
        (
            "`compute()` over `persist()`",
            between(row["compute"]["ratio"] for row in memory.values()),
            "memory",
        ),
        (
            "convolution of two arrays of 2^26, seconds: ours / SciPy / `da.fft` by hand",
            " / ".join(
                number(conv[f"full: {name}"]["warm"]) for name in ("fftconvolve", "scipy", "da.fft")
            ),
            "convolution",
        ),
        *(
            (
                f"{name}, {gib} GiB through 2 GiB: seconds; speed over that of a copy",
                f"{row['seconds']:.0f}; {cell(row['efficiency'])}",
                "out_of_core",
            )
            for name, gib in (("3d, AMD EPYC", 12), ("1d, AMD EPYC", 8))
            if (row := big[name])
        ),
        *(
            (f"{name}: seconds to the first task", number(row["seconds"]), "clusters")
            for name, row in first.items()
            if "merged" not in name
        ),
        *(
            (
                f'`verify="{mode}"`: seconds over those without, in memory, {kernel}',
                between(
                    row[mode]["ratio"]
                    for name, row in costs.items()
                    if name.endswith(kernel) and "disk" not in name
                ),
                "verification",
            )
            for mode in ("energy", "checksum")
            for kernel in ("scipy", "ducc0")
        ),
    ]
    facts += gpu_facts()
    for file in ("forecasts", "forecasts_16_cores"):
        found = rows_of(file, "errors").values()
        cores = "16 cores" if "16" in file else "2 cores"
        facts.append(
            (
                f"forecasts within 30 % of measured seconds, {cores}",
                f"{sum(row['within'] for row in found)} of {len(found)}",
                file,
            )
        )
    ranked = rows_of("forecasts", "ranking").values()
    facts.append(
        (
            "plan ranked first within 15 % of the fastest",
            f"{sum(row['within'] for row in ranked)} of {len(ranked)}",
            "forecasts",
        )
    )
    lines += [
        f"| {what} | {value} | [{file}](ci/results/{file}.md) |" for what, value, file in facts
    ]
    return lines


def gpu_facts() -> list[tuple[str, str, str]]:
    """Return the figures of GPUs."""

    def bus(section: str, text: str) -> str:
        return between(
            row["of_bus"] for name, row in rows_of("gpu", section).items() if text in name
        )

    whole = rows_of("gpu", "transforms").values()
    hybrid = [row["gain"] for row in rows_of("gpu", "hybrid").values() if row["by"] == "hybrid"]
    two = rows_of("gpu", "two")
    return [
        ("one H200, rounds on pinned data, part of the bus", bus("rounds", "pinned"), "gpu"),
        ("the same, data that is not pinned", bus("rounds", "ring"), "gpu"),
        (
            "whole transforms of 16 GiB of pinned data, part of the bus",
            bus("transforms", "MiB"),
            "gpu",
        ),
        (
            "the same, `ducc0` on 16 cores over ours",
            between(row["ducc0"]["ratio"] for row in whole if "ducc0" in row),
            "gpu",
        ),
        (
            "the same, a loop of copies and FFTs from pinned memory over ours",
            between(row["pinned_loop"]["ratio"] for row in whole if "pinned_loop" in row),
            "gpu",
        ),
        (
            "whole transforms of data that is not pinned, part of the bus",
            bus("unpinned", ""),
            "gpu",
        ),
        (
            "shared rounds, the GPU alone over both together",
            between(gain["ratio"] for gain in hybrid) if hybrid else "-",
            "gpu",
        ),
        (
            "1024^3 complex64 on two H200, seconds: through the host / by a kernel",
            f"{two['host']['seconds']:.2f} / {two['kernel']['seconds']:.3f}",
            "gpu",
        ),
    ]


def files() -> dict[Path, str]:
    """Return what every generated file should hold."""
    made = {}
    for path in sorted(RESULTS.glob("*.json")):
        made[path.with_suffix(".md")] = page(json.loads(path.read_text(encoding="utf-8")))
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made[readme] = "\n".join([before + MARKS[0], *figures(), MARKS[1] + after])
    return made


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pages")
    parser.add_argument("--check", action="store_true", help="fail where a file differs")
    args = parser.parse_args(argv)
    differing = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in differing:
        print(f"{'differs' if args.check else 'written'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(files()[path], encoding="utf-8")
    return int(args.check and bool(differing))

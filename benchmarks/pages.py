"""Result pages from the JSON of other programs, and the figures of the README and the guide.

``python -m benchmarks pages`` writes a page beside every JSON file of ``ci/results`` and the
figures of README and guide between two marks; ``--check`` writes nothing and fails if they differ.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.core import RESULTS, ROOT

MARKS = ("<!-- figures: python -m benchmarks pages -->", "<!-- end of figures -->")

#: Columns of tables of transforms on a GPU.
WHOLE = "name | rounds | gib=GiB | crossings | seconds | of_bus=of the bus"

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
        "Seconds are medians of warm runs that take turns; `ours` is `persist()` with the fastest "
        "FFT library. Peers: their seconds over ours, so that above 1 we are faster. Python 3.11 "
        "has SciPy 1.17, and Python 3.12 has 1.18.",
        {
            section: (
                f"Python {python}",
                "name=problem | rounds | kernel=library | ours=ours, s | seconds.scipy/persist=by "
                "SciPy | seconds.ducc0/persist=by ducc0 | seconds.mkl_fft/persist=by mkl_fft | "
                "compute=`compute()` / `persist()` | peers.scipy=SciPy | peers.ducc0=ducc0 | "
                "peers.mkl_fft=mkl_fft | peers.FFTW (ESTIMATE)=FFTW (ESTIMATE) | "
                "peers.da.fft=da.fft | first=first run of a process, s | peak=peak / array",
            )
            for section, python in (("problems", "3.11"), ("on_3_12", "3.12"))
        },
    ),
    "small": (
        "Small calls",
        "Against `da.fft` after `rechunk(-1)`, warm, in alternating turns.",
        {
            where: (title, "name=call and chunks | bigfft=ours, s | dask=`da.fft`, s | cost=ratio")
            for where, title in (("threads", "Threads"), ("workers", "Workers of one thread"))
        }
        | {"start": ("Processes", "name=what | bigfft=ours, s | dask=`import dask.array`, s")},
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
                "forecast_gib=forecast, GiB",
            )
        },
    ),
    "limited": (
        "Time and memory against size, in 1 GiB",
        "Each job runs in a memory cgroup of 1 GiB, from a Zarr array of float64 to the Zarr array "
        "of its spectrum, with the page cache empty. Seconds and peaks are medians.",
        {
            section: (
                f"{section.capitalize()}",
                "name=array | seconds.ours=ours, s | seconds.da.fft=`da.fft`, s | "
                "seconds.da.fft, distributed=`da.fft` on distributed, s | peak_gib.ours=peak of "
                "ours, GiB | peak_gib.da.fft=`da.fft`, GiB | peak_gib.da.fft, distributed="
                "`da.fft` on distributed, GiB | died=killed or failed",
            )
            for section in ("one axis", "two axes")
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
            "by_hand": ("Settings made by hand: 2D, c16, 4 GiB in blocks of 1 GiB", WHOLE),
            "fits": (
                "One block that fits the GPU, transfers included",
                "name=block | seconds.ours=ours, s | peers.CuPy, pinned=CuPy, pinned | "
                "peers.CuPy, pageable=CuPy, pageable",
            ),
            "peak": (
                "Memory of the GPU, and of the host beside the data",
                "name=transform | budget_gib=allowed, GiB | used_gib=used, GiB | "
                "host_mib=host, MiB | forecast_mib=forecast, MiB",
            ),
            "hybrid": (
                "CPU threads and the GPU together",
                "name=problem | cpu=CPU, s | gpu=GPU, s | hybrid=both, s | gain=faster alone /"
                " both | gain_of_gpu=GPU / both | by=chosen by the model",
            ),
        },
    ),
    "on_gpus": (
        "Data that lives on GPUs",
        "`dask.persist(fft.fftn(x))` with its graph, until all GPUs are idle. `bound`: 1.1 times "
        "CuPy for slabs, 1.4 times for other blocks, 4 ms, and 0.25 ms for each block. By hand: "
        "torch and NCCL, a process for each GPU.",
        {
            "one": (
                "One GPU against CuPy on the whole array",
                "name | bigfft=ours, s | cupy=CuPy, s | bound=bound, s | within | "
                "peak_gib=memory beside the input, GiB | forecast_gib=forecast, GiB",
            ),
            "several": (
                "Several GPUs, by the way of shards",
                "name | bigfft=ours, s | by_hand=by hand, s | ratio=ours / by hand | "
                "bigfft_exchange=our exchange, s | exchange=its exchange, s | "
                "share=part of its bandwidth | peak_gib=memory of a GPU beside the input, GiB",
            ),
            "processes": (
                "A process for each GPU: workers of dask-cuda",
                "name | bigfft=ours, s | ratio=ours / in one process | failed",
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


# --- figures ------------------------------------------------------------------------------------

#: Lines of the guide's table of figures: text | section of a page | rows | key of each row.
FACTS = """\
several axes, 16 blocks: `ducc0` over ours | memory.problems | [23tr]*x16 | peers.ducc0
the same, `da.fft` over ours | memory.problems | [23tr]*x16 | peers.da.fft
the same, `mkl_fft` over ours | memory.problems | [23tr]*x16 | peers.mkl_fft
a prime length near 2^22, 16 blocks: SciPy over ours | memory.problems | 1d-prime-x16 | peers.scipy
`compute()` over `persist()` | memory.problems | * | compute
convolution of two arrays of 2^26: seconds | convolution.runs | full: fftconvolve | warm
the same, SciPy | convolution.runs | full: scipy | warm
the same, `da.fft` by hand | convolution.runs | full: da.fft | warm
12 GiB in three axes through 2 GiB: seconds | out_of_core.problems | 3d, AMD EPYC | seconds
the same: speed over that of a copy | out_of_core.problems | 3d, AMD EPYC | efficiency
8 GiB in one axis, 2 GiB: seconds | out_of_core.problems | 1d, AMD EPYC | seconds
the same: speed over that of a copy | out_of_core.problems | 1d, AMD EPYC | efficiency
8,192 blocks all to all: seconds to the first task | clusters.first | 8,192 *all | seconds
100,352 blocks as pencils: seconds to the first task | clusters.first | 100,352 *pencils | seconds
`verify="energy"`, SciPy: seconds over those without | verification.costs | *[!k], scipy | energy
the same, `ducc0` | verification.costs | *[!k], ducc0 | energy
`verify="checksum"`, SciPy: seconds over without | verification.costs | *[!k], scipy | checksum
the same, `ducc0` | verification.costs | *[!k], ducc0 | checksum
one H200, rounds on pinned data: part of the bus | gpu.rounds | *pinned* | of_bus
the same, data that is not pinned | gpu.rounds | *ring* | of_bus
whole transforms of 16 GiB of pinned data: part of the bus | gpu.transforms | * | of_bus
whole transforms of data that is not pinned: part of the bus | gpu.unpinned | * | of_bus
bus slowed down to 6 GB/s: GPU over threads and GPU | gpu.hybrid | by=hybrid | gain_of_gpu
1024^3 complex64 in 8 slabs on one H200: seconds | on_gpus.one | fftn, 1024*8x1x1 | bigfft
the same, CuPy on the whole array | on_gpus.one | fftn, 1024*8x1x1 | cupy
the same on two H200 | on_gpus.several | 2 GPUs, 1024x1024x1024*2 blocks, auto | bigfft
the same, torch and NCCL by hand | on_gpus.several | 2 GPUs, 1024x1024x1024*2 blocks, auto | by_hand
2048^3 complex64 on four H200 | on_gpus.several | 4 GPUs, 2048x2048x2048 c8, 8*auto | bigfft
the same, torch and NCCL by hand | on_gpus.several | 4 GPUs, 2048x2048x2048 c8, 8*auto | by_hand
forecasts within 30 % of measured seconds, 2 cores | forecasts.errors | * | within
the same, 16 cores | forecasts_16_cores.errors | * | within
plan ranked first within 15 % of the fastest | forecasts.ranking | * | within
"""


def rows_of(section: str) -> list[dict[str, Any]]:
    """Return the rows of a section, given as ``file.section``."""
    file, _, name = section.partition(".")
    found = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    return list(found["sections"][name])


def between(values: Iterable[Any]) -> str:
    """Return the extremes of numbers or ratios, or how many of some conditions hold.

    >>> between([0.904, 1.1]), between([{"ratio": 0.1}]), between([True, False])
    ('0.90 to 1.1', '0.10', '1 of 2')
    """
    found = sorted(x["ratio"] if isinstance(x, dict) else x for x in values if x is not None)
    if isinstance(found[0], bool):
        return f"{sum(found)} of {len(found)}"
    low, high = (f"{x:#.2g}".rstrip(".") for x in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def figures() -> list[str]:
    """Return the lines of the guide's figures."""
    (line,) = (row for row in rows_of("memory.problems") if row["name"] == "1d-2p26-x16")
    names = {"da.fft": "`da.fft.fft(x.rechunk(-1))`", "scipy": "SciPy (one axis: one thread)"}
    ours = ("ducc0", "scipy", "mkl_fft")
    names |= {f"{k}/persist": f'**`dask_bigfft`, `kernel="{k}"`**' for k in ours}
    lines = ["One axis of 2^26 complex128 in 16 blocks in memory, two threads:", ""]
    lines += ["| | seconds, median | runs |", "|---|---|---|"]
    for name, seconds in sorted(line["seconds"].items(), key=lambda pair: pair[1]):
        if name != "copy" and not name.endswith("/compute"):
            lines.append(f"| {names.get(name, name)} | {seconds:.2f} | {line['n'][name]} |")
    lines += ["", "| what | figure | page |", "|---|---|---|"]
    for fact in FACTS.splitlines():
        what, section, pattern, key = fact.split(" | ")
        value = between(
            looked_up(row, key)
            for row in rows_of(section)
            if fnmatch(row["name"], pattern) or pattern == f"by={row.get('by')}"
        )
        lines.append(f"| {what} | {value} | `{section.partition('.')[0]}` |")
    return lines


def three() -> list[str]:
    """Return the three numbers of the README."""
    (line,) = (row for row in rows_of("memory.problems") if row["name"] == "1d-2p26-x16")
    in_memory = {name: f"{seconds:.1f} s" for name, seconds in line["seconds"].items()}
    (big,) = (row for row in rows_of("out_of_core.problems") if row["name"] == "3d, AMD EPYC")
    limited = rows_of("limited.one axis")
    dead = next(row["name"] for row in limited if "da.fft" in row["died"])
    last = limited[-1]
    return [
        f"- **{in_memory['scipy/persist']}** for one axis of 1 GiB in 16 chunks in memory, by "
        "SciPy's kernel with two threads. `da.fft` after `rechunk(-1)` takes "
        f"{in_memory['da.fft']}.",
        f"- **{last['peak_gib']['ours']:.1f} GiB** of memory for one axis of {last['name']}, "
        f"from Zarr to Zarr. In a process of 1 GiB, `da.fft` of one axis is killed from {dead} on.",
        f"- **{big['seconds']:.0f} s** for 12 GiB in three axes, from Zarr to Zarr through 2 GiB "
        "of memory and scratch files. Copying as many bytes in plain files takes "
        f"{big['efficiency']['ratio']:.1f} times as long.",
    ]


def files() -> dict[Path, str]:
    """Return what every generated file should hold."""
    made = {}
    for path in sorted(RESULTS.glob("*.json")):
        made[path.with_suffix(".md")] = page(json.loads(path.read_text(encoding="utf-8")))
    for path, lines in {"README.md": three(), "examples/guide/speeds.md": figures()}.items():
        before, rest = (ROOT / path).read_text(encoding="utf-8").split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        made[ROOT / path] = "\n".join([before + MARKS[0], "", *lines, "", MARKS[1] + after])
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

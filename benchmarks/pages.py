"""Result pages from the JSON of other programs, and the figures of the README and the guide.

``python -m benchmarks pages`` writes a page beside every JSON file of ``ci/results`` and the
figures of README and guide between two marks; ``--check`` writes nothing and fails if they differ.
"""

import argparse
import json
import re
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
        "Each contestant runs in processes of its own, which take turns. First runs of processes "
        "and warm runs are apart; both are medians. Peers run with glibc's defaults (memory "
        "freed: large blocks go back to the system) and with settings to keep it (memory kept). "
        "Ours is `persist()` of `dask_bigfft`, which keeps freed memory itself and runs with the "
        "defaults. Ratios: warm seconds over those of the fastest of ours. Page faults are "
        "those of a warm run.",
        {
            "*": (
                "{}",
                "name=contestant | rounds | first=first run, s | warm=warm, s | over_ours=warm / "
                "fastest of ours | compute=`compute()` / `persist()` | faults=page faults | "
                "peak=peak of the first run / array | processes | n=warm runs",
            )
        },
    ),
    "small": (
        "Small calls",
        "Warm, against `da.fft` after `rechunk(-1)`, in processes of their own, which take turns. "
        "Memory freed: glibc's defaults; kept: settings that keep freed memory. Ratios: ours / "
        "`da.fft`.",
        {
            place: (
                title,
                "name=call and chunks | warm.ours=ours, s | warm.da.fft, memory freed=`da.fft`, "
                "memory freed, s | warm.da.fft, memory kept=`da.fft`, memory kept, s | "
                "cost.da.fft, memory freed=ratio, freed | cost.da.fft, memory kept=ratio, kept",
            )
            for place, title in (("threads", "Threads"), ("workers", "Workers of one thread"))
        }
        | {"start": ("Processes", "name=what | ours=ours, s | dask=`import dask.array`, s")},
    ),
    "first_calls": (
        "First calls",
        "In fresh processes, from NumPy to NumPy, in single precision; time includes the exit of "
        "the process, but no imports. Just before the call the process touches as much memory "
        "and frees it. "
        "Empty cache: no loop of ours is compiled yet. Medians. By default the program runs a few "
        "shapes of each size, in five turns, and in three above 256 MiB; it can run all shapes. "
        "On CPUs a part of the difference to `scipy.fft` is the exit of a process that imported "
        "`dask.array`, which `da.fft` has, too: see the imports. Where xarray is installed, "
        "`dask.array` imports it and pandas, and each of these exits takes 0.1 s longer.",
        {
            "first": (
                "First calls",
                "name=input | first.scipy=ours, SciPy's kernel, s | first.ducc0=ours, ducc0, s | "
                "first.scipy, empty cache=ours, SciPy's kernel, empty cache, s | "
                "first.scipy.fft=`scipy.fft`, s | first.da.fft=`da.fft`, s | n=processes",
            ),
            "gpu": (
                "First calls on a GPU",
                "name=input | first.gpu=ours, s | first.torch=torch, s | "
                "first.touching=writing to the result, s | n=processes",
            ),
            "import": (
                "Imports, and the exit of a process after them",
                "name=module | seconds=import, s | exit=exit, s | n=processes",
            ),
        },
    ),
    "out_of_core": (
        "Larger than memory, from Zarr to Zarr",
        "In a memory cgroup around everything; each run is the first of its process. A plain copy "
        "of as many bytes takes turns with the runs. Neither source nor result is compressed. "
        "Efficiency: bytes per second over those of the copy.",
        {
            "problems": (
                "Problems",
                "name=array | rounds | seconds | passes=bytes / array | gib_per_second=GiB/s |"
                " copy_gib_per_second=copy, GiB/s | efficiency | peak_gib=peak, GiB | "
                "forecast_gib=forecast, GiB",
            )
        },
    ),
    "operators": (
        "Filters of periodic arrays in memory",
        "One plan with the product inside, two plans with the product in blocks between them, and "
        "scipy.fft by hand with all threads. Each result is compared with sums of neighbours. "
        "Ratios are those of neighbouring runs; above 1 one plan is faster.",
        {
            "filters": (
                "Filters",
                "name=array, library | one plan.first=first call, s | one plan.warm=one plan, s | "
                "two plans.warm=two plans, s | scipy, memory kept.warm=scipy, s | "
                "two plans / one plan | scipy, memory kept / one plan | "
                "one plan.peak_gib=peak, GiB | state=commit",
            )
        },
    ),
    "bands": (
        "A band of a spectrum, from Zarr to Zarr",
        "An eighth of the frequencies of each axis. The floor is the larger one of two times: that "
        "of reading the source, and that of its first round in memory. Exchanged: bytes over those "
        "of the whole spectrum, by the plans.",
        {
            "problems": (
                "Problems",
                "name=array | rounds | seconds.band=band, s | seconds.reading=reading, s | "
                "seconds.first round=first round, s | over_floor=band / floor | exchanged | "
                "peak_gib=peak, GiB",
            )
        },
    ),
    "holes": (
        "Arrays with holes",
        "Of the array 30 % are missing. From Zarr to Zarr, in a memory cgroup of 1 GiB, the bound "
        "is the time of 2 plain filters by one plan each for a masked convolution, and of 20 for "
        "20 iterations of filling. Masked convolution pads the array by half of the kernel, as two "
        "plain convolutions with it do, which are a second bound. In memory, against "
        "`astropy.convolution.convolve_fft`, warm. At "
        "scale 1 the stored array has 8 GiB and the array in memory 64 MiB; a smaller scale has "
        "that part of the elements and a smaller memory limit. The kernel has 65 samples along "
        "each axis at all scales, so that its padding is a larger part of a smaller array. Both "
        "forecasts count dask's graph.",
        {
            "stored": (
                "From Zarr to Zarr",
                "name=function and array | seconds=time, s | plain=plain filter, s | "
                "count=filters of the bound | over_bound=time / bound | "
                "convolution=plain convolution, s | over_convolutions=time / two convolutions | "
                "peak_gib=peak, GiB | "
                "forecast_gib=forecast, GiB | limit_gib=limit, GiB | error=largest error",
            ),
            "memory": (
                "In memory",
                "name=array | ours=ours, s | astropy=astropy, s | first=first call of ours, s | "
                "astropy / ours | peak_gib=peak of ours, GiB | error=largest error",
            ),
        },
    ),
    "slices": (
        "Short-time transforms, from Zarr to Zarr",
        "Slices of 1,024 samples every 512 of a record in single precision. The floor is the "
        "larger one of two times: a plain copy of the bytes read and written, and the same in "
        "memory. By hand: `dask.array.overlap` and SciPy's FFT. `istft` goes the way back, by "
        "`run()` as well. At scale 1 the record has 4 GiB; a smaller scale has a shorter record "
        "and a memory limit that is smaller by as much.",
        {
            "transforms": (
                "Transforms",
                "name=transform | seconds.run=`run()` of `stft`, s | seconds.istft=of `istft`, s | "
                "seconds.copy=copy, s | seconds.memory=in memory, s | seconds.by hand=by hand, s | "
                "over_floor=ours / floor | "
                "by hand / run=by hand / `run()` | peak_gib=peak, GiB | forecast_gib=forecast, "
                "GiB | limit_gib=limit, GiB | peak_by_hand_gib=peak by hand, GiB | error=largest "
                "error",
            )
        },
    ),
    "limited": (
        "Time and memory against size, in 1 GiB",
        "Each job runs in a memory cgroup of 1 GiB, from a Zarr array of float64 to the Zarr array "
        "of its spectrum, with the page cache empty. Each job is the first run of its process. "
        "Memory kept: with settings of glibc that keep freed memory; else with its defaults, which "
        "give it back to the system. Seconds and peaks are medians.",
        {
            section: (
                f"{section.capitalize()}",
                "name=array | seconds.ours=ours, s | seconds.da.fft=`da.fft`, s | "
                "seconds.da.fft, memory kept=memory kept, s | "
                "seconds.da.fft, distributed=`da.fft` on distributed, s | "
                "seconds.da.fft, distributed, memory kept=memory kept, s | peak_gib.ours=peak of "
                "ours, GiB | peak_gib.da.fft=`da.fft`, GiB | peak_gib.da.fft, memory kept=memory "
                "kept, GiB | peak_gib.da.fft, distributed=`da.fft` on distributed, GiB | "
                "peak_gib.da.fft, distributed, memory kept=memory kept, GiB | "
                "died=killed or failed",
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
        "`full`: two float64 arrays of 2^26 samples; `taps`: one of them with 4,096 taps. First "
        "runs of processes and warm runs are apart; both are medians. Peers run with glibc's "
        "defaults (memory freed: large blocks go back to the system) and with settings to keep it "
        "(memory kept). Page faults are those of a warm run.",
        {
            "runs": (
                "Runs",
                "name=contestant | first=first run, s | warm=warm, s | peak_gib=peak of the first "
                "run above inputs, GiB | faults=page faults | error | processes | n=warm runs",
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
        "divided by those of `dask_bigfft`.",
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
                "peers.CuPy, pageable=CuPy, pageable, into fresh memory",
            ),
            "peak": (
                "Memory of the GPU, and of the host beside the data",
                "name=transform | budget_gib=allowed, GiB | used_gib=used, GiB | "
                "host_mib=host, MiB | forecast_mib=forecast, MiB",
            ),
            "filters": (
                "Filters of 4 GiB in host memory: forward, product and inverse",
                "name=array, memory of the GPU | rounds | crossings | one plan=one plan, s | "
                "two plans=two plans, s | gain=two plans / one plan | floor=the bus, s | "
                "of_floor=of the bus",
            ),
            "convolutions": (
                "Convolutions of 4 GiB in host memory with a small kernel, to compare with filters",
                "name=array, memory of the GPU | rounds | crossings | seconds",
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
            "filters": (
                "Filters on one GPU, against `irfftn(rfftn(x) * h)` by CuPy on the whole array; "
                "`bound`: 1.15 times CuPy and 4 ms",
                "name | bigfft=ours, s | cupy=CuPy, s | bound=bound, s | within | "
                "peak_gib=memory beside the input, GiB",
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
    if value is None:
        return ""
    if isinstance(value, dict):
        if "ratio" in value:
            return ratio_cell(value)
        return "; ".join(f"{name} {cell(part)}" for name, part in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, float):
        return number(value)
    return str(value)


def ratio_cell(ratio: dict[str, float]) -> str:
    """Return a ratio with its interval, if it has one; a star marks 95 %."""
    text = number(ratio["ratio"])
    if "low" not in ratio or ratio.get("n") == 1:
        return text
    star = " \\*" if ratio.get("level") == 0.95 else ""
    return f"{text} ({number(ratio['low'])} to {number(ratio['high'])}){star}"


def number(value: float) -> str:
    """Return three digits, or all digits before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def looked_up(row: dict[str, Any], key: str) -> Any:
    """Return a value of a row; ``a.b`` is looked up within the mapping ``a``."""
    outer, _, inner = key.partition(".")
    return row.get(outer, {}).get(inner) if inner else row.get(key)


def name_cell(row: dict[str, Any]) -> str:
    """Return the name of a row, and what went wrong."""
    name = cell(row["name"])
    if "failed" in row:
        return f"{name}: {row['failed']}"
    if row.get("ok") is not False:
        return name
    return f"{name} (SLOWER)" if "figures" in row else f"{name} (WRONG)"


def table(rows: Sequence[dict[str, Any]], text: str) -> list[str]:
    """Return the lines of a table, without columns that are empty."""
    headings = []
    columns = []
    for column in text.split(" | "):
        key = column.partition("=")[0]
        heading = column.rpartition("=")[2]
        if key == "name":
            cells = [name_cell(row) for row in rows]
        else:
            cells = [cell(looked_up(row, key)) for row in rows]
        if any(cells):
            headings.append(heading)
            columns.append(cells)
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join('---' for _ in headings)}|"]
    lines += [f"| {' | '.join(line)} |" for line in zip(*columns, strict=True)]
    return [*lines, ""]


def conditions(content: dict[str, Any]) -> str:
    """Return a sentence about the machine, and about what holds for all rows of a program."""
    machine = dict(content["machine"])
    parts = [machine.pop("cpu")]
    machine.pop("versions", None)
    parts += [f"{name.replace('_', ' ')} {value}" for name, value in machine.items()]
    for name, value in content.items():
        if name not in ("program", "machine", "sections", "state"):
            parts.append(f"{name} {cell(value)}")
    return ", ".join(parts)


def page(content: dict[str, Any]) -> str:
    """Return the page of a JSON file."""
    title, text, sections = PAGES[content["program"]]
    versions = content["machine"].get("versions", {})
    libraries = ", ".join(f"{library} {version}" for library, version in versions.items())
    lines = [
        f"# {title}",
        "",
        f"Written by `python -m benchmarks pages` from the results of `python -m benchmarks "
        f"{content['program']}`. {text} Every result was checked. Brackets hold 90 % bootstrap "
        "intervals of the median ratio (\\*: 95 %).",
        "",
        f"{conditions(content)}. {libraries}. State: {content['state']}.",
        "",
    ]
    for name, rows in content["sections"].items():
        heading, columns = sections[name] if name in sections else sections["*"]
        lines += [f"## {heading.format(name)}", "", *table(rows, columns)]
    return "\n".join(lines)


# --- figures ------------------------------------------------------------------------------------

#: Lines of the guide's table of figures: text | section of a page | rows | key of each row.
FACTS = """\
seconds of `ducc0` (kept) / `dask_bigfft` | memory.[23tr]*x16 | ducc0, memory kept | over_ours
seconds of SciPy (kept) / `dask_bigfft` | memory.[23tr]*x16 | scipy, memory kept | over_ours
seconds of `mkl_fft` (kept) / `dask_bigfft` | memory.[23tr]*x16 | mkl_fft, memory kept | over_ours
seconds of `da.fft` (kept) / `dask_bigfft` | memory.[23tr]*x16 | da.fft, memory kept | over_ours
seconds of `da.fft` (freed) / `dask_bigfft` | memory.[23tr]*x16 | da.fft, memory freed | over_ours
the same for a prime near 2^22, SciPy | memory.1d-prime-x16 | scipy, memory kept | over_ours
`compute()` over `persist()`, warm | memory.*x16 | ours, * | compute
convolution of two arrays of 2^26: seconds, warm | convolution.runs | full: fftconvolve | warm
the same convolution, first run | convolution.runs | full: fftconvolve | first
the same convolution by SciPy, kept, warm | convolution.runs | full: scipy, memory kept | warm
the same convolution by SciPy, freed, warm | convolution.runs | full: scipy, memory freed | warm
the same convolution by SciPy, freed, first run | convolution.runs | full: scipy, *freed | first
the same convolution by `da.fft`, kept, warm | convolution.runs | full: da.fft, *kept | warm
the same convolution by `da.fft`, freed, warm | convolution.runs | full: da.fft, *freed | warm
the same convolution by `da.fft`, freed, first run | convolution.runs | full: da.fft, *freed | first
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
filters of 4 GiB in one plan: seconds | gpu.filters | * | one plan
the same: seconds of two plans over those of one | gpu.filters | * | gain
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


def content(file: str) -> dict[str, Any]:
    """Return the content of a JSON file of the results."""
    text = (RESULTS / f"{file}.json").read_text(encoding="utf-8")
    results: dict[str, Any] = json.loads(text)
    return results


def rows_of(sections: str) -> list[dict[str, Any]]:
    """Return the rows of the sections that match ``file.pattern``."""
    file, _, pattern = sections.partition(".")
    rows: list[dict[str, Any]] = []
    for name, section in content(file)["sections"].items():
        if fnmatch(name, pattern):
            rows += section
    return rows


def versions_of(file: str) -> str:
    """Return the versions of Python and of the libraries that compare transforms in memory."""
    machine = content(file)["machine"]
    names = {"numpy": "NumPy", "scipy": "SciPy", "dask": "dask", "ducc0": "ducc0"}
    versions = [f"Python {machine['python']}"]
    for library, name in names.items():
        if library in machine["versions"]:
            versions.append(f"{name} {machine['versions'][library]}")
    return ", ".join(versions)


def between(values: Iterable[Any]) -> str:
    """Return the extremes of numbers or ratios, or how many of some conditions hold.

    >>> between([0.904, 1.1]), between([{"ratio": 0.1}]), between([True, False])
    ('0.90 to 1.1', '0.10', '1 of 2')
    """
    known = [value for value in values if value is not None]
    numbers = sorted(value["ratio"] if isinstance(value, dict) else value for value in known)
    if isinstance(numbers[0], bool):
        return f"{sum(numbers)} of {len(numbers)}"
    low = f"{numbers[0]:#.2g}".rstrip(".")
    high = f"{numbers[-1]:#.2g}".rstrip(".")
    return low if low == high else f"{low} to {high}"


#: The problem whose contestants the guide lists and the README names.
LINE = "memory.1d-2p26-x16"

#: Contestants of `LINE` as the guide names them.
CONTESTANTS = {"da.fft": "`da.fft.fft(x.rechunk(-1))`", "scipy": "SciPy (one axis: one thread)"}


def line_table() -> list[str]:
    """Return the guide's table of the contestants of `LINE`, the fastest first."""
    lines = ["| | first run, s | warm, s | warm runs |", "|---|---|---|---|"]
    rows = [row for row in rows_of(LINE) if "failed" not in row]
    for row in sorted(rows, key=lambda row: float(row["warm"])):
        library, _, way = row["name"].partition(", ")
        if library == "ours":
            name = f'**`dask_bigfft`, `kernel="{way}"`**'
        else:
            name = f"{CONTESTANTS.get(library, library)}, {way}"
        lines.append(f"| {name} | {cell(row.get('first'))} | {cell(row['warm'])} | {row['n']} |")
    return lines


def fact_table() -> list[str]:
    """Return the guide's table of `FACTS`, without those that were not measured."""
    lines = ["| what | figure | page |", "|---|---|---|"]
    for fact in FACTS.splitlines():
        what, sections, pattern, key = fact.split(" | ")
        values = [
            looked_up(row, key)
            for row in rows_of(sections)
            if fnmatch(row["name"], pattern) or pattern == f"by={row.get('by')}"
        ]
        known = [value for value in values if value is not None]
        if known:
            lines.append(f"| {what} | {between(known)} | `{sections.partition('.')[0]}` |")
    return lines


def figures() -> list[str]:
    """Return the lines of the guide's figures."""
    about = [
        "One axis of 2^26 complex128 in 16 blocks in memory, two threads. Each contestant runs in",
        "processes of its own. Seconds are medians. *Memory freed*: with the defaults of glibc, a",
        "process gives large blocks back to the system. *Memory kept*: other settings keep them.",
        "`dask_bigfft` keeps freed memory itself and runs with the defaults.",
        f"{versions_of('memory')}.",
    ]
    return [*about, "", *line_table(), "", *fact_table()]


#: Rows of the README's table of numbers: section of a page, and what was done.
NUMBERS = {
    "memory.1d-2p26-x16": "one axis of 1 GiB, complex128, in 16 chunks in memory, warm",
    "convolution.runs": "two arrays of 2^26 float64, convolved in memory, warm",
    "limited.one axis": "one axis from Zarr to Zarr, in a process of 1 GiB",
    "out_of_core.problems": "12 GiB in three axes from Zarr to Zarr, through 2 GiB of memory",
    "gpu.filters": "a filter of 4 GiB in host memory, on one H200",
}


def times_of(section: str, pattern: str) -> str:
    """Return the extremes of warm and first runs of the rows that match a pattern."""
    rows = [row for row in rows_of(section) if fnmatch(row["name"], pattern)]
    warm = between(row["warm"] for row in rows)
    first = between(row["first"] for row in rows)
    return f"{warm} s, first call {first} s"


def in_memory_cells(section: str) -> tuple[str, str]:
    """Return the README's cells about data in memory: ours, and others."""
    by_scipy = times_of(section, "scipy, *")
    by_dask = times_of(section, "da.fft, *")
    others = f"`scipy.fft`: {by_scipy}; `da.fft` after `rechunk(-1)`: {by_dask}"
    return times_of(section, "ours, scipy"), others


def convolution_cells(section: str) -> tuple[str, str]:
    """Return the README's cells about a convolution: ours, and others."""
    by_scipy = times_of(section, "full: scipy, *")
    by_dask = times_of(section, "full: da.fft, *")
    others = f"`scipy.signal`: {by_scipy}; `da.fft`: {by_dask}"
    return times_of(section, "full: fftconvolve"), others


def limited_cells(section: str) -> tuple[str, str]:
    """Return the README's cells about one axis in 1 GiB: ours, and others."""
    rows = rows_of(section)
    killed_from = next(row["name"] for row in rows if "da.fft" in row["died"])
    largest = rows[-1]
    seconds = f"{largest['seconds']['ours']:.0f} s"
    peak = f"{largest['peak_gib']['ours']:.2f} GiB at its peak"
    return f"{largest['name']}: {seconds}, {peak}", f"`da.fft`: killed from {killed_from} on"


def out_of_core_cells(section: str) -> tuple[str, str]:
    """Return the README's cells about an array larger than memory: ours, and a plain copy."""
    rows = [row for row in rows_of(section) if row["name"].startswith("3d")]
    seconds = [row["seconds"] for row in rows]
    ours = f"{min(seconds):.0f} to {max(seconds):.0f} s on two machines"
    times = between(row["efficiency"] for row in rows)
    return ours, f"a plain copy of as many bytes: {times} times as long"


def filter_cells(section: str) -> tuple[str, str]:
    """Return the README's cells about filters on a GPU: one plan, and two."""
    rows = rows_of(section)
    ours = f"{between(row['one plan'] for row in rows)} s in one plan"
    times = between(row["gain"] for row in rows)
    return ours, f"both transforms and the product one after the other: {times} times as long"


#: Functions that return the cells of the rows of `NUMBERS`, by page.
CELLS = {
    "memory": in_memory_cells,
    "convolution": convolution_cells,
    "limited": limited_cells,
    "out_of_core": out_of_core_cells,
    "gpu": filter_cells,
}


def measured(section: str) -> str:
    """Return a link to the page of a section, and the commit that was measured.

    A page may list several commits, each with the sections that it measured in brackets.
    """
    file, _, name = section.partition(".")
    state = content(file)["state"]
    listed = re.search(rf"(\w+) \({name}\)", state)
    commits = re.search(r"[0-9a-f]{7,}(?: and earlier)?", state)
    if listed:
        commit = listed[1]
    elif commits:
        commit = commits[0]
    else:
        raise ValueError(f"{file}.json names no commit in its state: {state!r}")
    return f"[{file}](ci/results/{file}.md), {commit}"


def numbers() -> list[str]:
    """Return the README's table of numbers, and the versions that were measured."""
    lines = ["| | `dask_bigfft` | others | page, commit measured |", "|---|---|---|---|"]
    files_by_versions: dict[str, list[str]] = {}
    for section, what in NUMBERS.items():
        file = section.partition(".")[0]
        ours, others = CELLS[file](section)
        lines.append(f"| {what} | {ours} | {others} | {measured(section)} |")
        files_by_versions.setdefault(versions_of(file), []).append(f"`{file}`")
    lines.append("")
    for versions, files in files_by_versions.items():
        lines.append(f"{', '.join(files)}: {versions}.")
    return lines


def limited_ratios(contestant: str) -> list[tuple[str, float]]:
    """Return arrays of two axes that a contestant transforms in 1 GiB, and its time over ours."""
    ratios = []
    for row in rows_of("limited.two axes"):
        if contestant in row["seconds"]:
            ratios.append((row["name"], row["seconds"][contestant] / row["seconds"]["ours"]))
    return ratios


def two_axes() -> list[str]:
    """Return the README's sentences about two axes in 1 GiB."""
    killed = [row for row in rows_of("limited.two axes") if "da.fft" in row["died"]]
    killed_names = [row["name"] for row in killed]
    ratios = limited_ratios("da.fft")
    largest_name, _ = ratios[-1]
    on_distributed = limited_ratios("da.fft, distributed")
    slower = between(ratio for name, ratio in on_distributed if name in killed_names)
    more_memory = between(
        row["peak_gib"]["da.fft, distributed"] / row["peak_gib"]["ours"] for row in killed
    )
    lines = [
        "Two axes, of which one is cut into chunks, can also be transformed by `da.fft` one after",
        "the other, with a `rechunk` between them. We compared that in processes limited to 1 GiB,",
        f"medians of three runs each. Up to {largest_name}, `da.fft` on dask's threads took",
        f"{between(ratio for _, ratio in ratios)} times as long as `dask_bigfft`. "
        f"For {' and '.join(killed_names)} it was killed. On",
        "`distributed`, which writes chunks to the disk, it finished them. It took",
        f"{slower} times as long as `dask_bigfft`, and {more_memory} times the memory.",
    ]
    keeping = limited_ratios("da.fft, memory kept")
    if keeping:
        times = between(ratio for _, ratio in keeping)
        lines.append(f"With settings of the C library that keep freed memory: {times} times.")
    return lines


def with_figures(text: str, blocks: Sequence[Sequence[str]]) -> str:
    r"""Return a text with new lines between its pairs of `MARKS`.

    >>> text = with_figures(f"a {MARKS[0]} old {MARKS[1]} b", [["new"]])
    >>> text == f"a {MARKS[0]}\n\nnew\n\n{MARKS[1]} b"
    True
    """
    before, *parts = text.split(MARKS[0])
    result = before
    for lines, part in zip(blocks, parts, strict=True):
        _, after = part.split(MARKS[1])
        result += "\n".join([MARKS[0], "", *lines, "", MARKS[1] + after])
    return result


def files() -> dict[Path, str]:
    """Return what every generated file should hold."""
    texts = {}
    for path in sorted(RESULTS.glob("*.json")):
        texts[path.with_suffix(".md")] = page(json.loads(path.read_text(encoding="utf-8")))
    generated = {
        ROOT / "README.md": [two_axes(), numbers()],
        ROOT / "examples" / "guide" / "speeds.md": [figures()],
    }
    for path, blocks in generated.items():
        texts[path] = with_figures(path.read_text(encoding="utf-8"), blocks)
    return texts


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pages")
    parser.add_argument("--check", action="store_true", help="fail where a file differs")
    args = parser.parse_args(argv)
    differing = {}
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing[path] = text
    for path, text in differing.items():
        if args.check:
            print(f"differs: {path.relative_to(ROOT)}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    return int(args.check and bool(differing))

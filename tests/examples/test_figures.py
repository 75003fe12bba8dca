"""Figures in README, guide and notes are those of the results that are committed with them."""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "ci" / "results"


def data(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def prose(name):
    """A text, its lines put together."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def over(values, digits=2):
    """The least and the largest, as they are written."""
    low, high = (f"{f(values):.{digits}f}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def table(heading):
    """Rows of a table of `cpu.md` by their first cell, as mappings of column to text."""
    text = (RESULTS / "cpu.md").read_text(encoding="utf-8").partition(f"\n## {heading}")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def ratios(column, *parts):
    """A peer's times over ours, of the problems whose names have some parts."""
    rows = table("Warm: best kernel")
    found = [row[column] for name, row in rows.items() if all(part in name for part in parts)]
    return [float(text.split()[0]) for text in found if text != "-"]


def one_axis():
    """One long axis: the table, and FFTW beside."""
    problem = "1d-2p26-c128-x16"
    (found,) = (p for p in data("cpu")["problems"] if p["problem"]["name"] == problem)
    times = {k: v["seconds"] for k, v in found["warm"]["contenders"].items()}
    names = {
        "`dask_bigfft`, `kernel=\"ducc0\"`": "ducc0/persist",
        "`dask_bigfft`, `kernel=\"scipy\"`": "scipy/persist",
        "`ducc0`": "ducc0", "`mkl_fft`": "mkl_fft", "FFTW (ESTIMATE)": "fftw-estimate",
        "`scipy.fft.fft` (one thread)": "scipy", "`da.fft.fft(x.rechunk(-1))`": "da.fft",
    }
    for name, key in names.items():
        yield f"| {name} | {statistics.median(times[key]):.2f} | {len(times[key])} |"
    assert 5 * 2**26 * 26 / statistics.median(times["scipy"]) == pytest.approx(1e9, rel=0.05)
    text = table("Warm: best kernel")[problem]["fftw-estimate"]
    middle, low, high = map(float, re.findall(r"[\d.]+", text))
    yield f"FFTW (ESTIMATE) takes {middle:.1f} times as long as we do for that axis (interval "
    yield f"{low:.1f} to {high:.1f}) and {ratios('fftw-estimate', '1d-2p27-c128-x16')[0]} times for"
    yield "{} and {} times in 64 chunks".format(
        *ratios("fftw-estimate", "1d-2p26-c128-x64"), *ratios("fftw-estimate", "1d-2p27-c128-x64"))


def several_axes():
    few = over(ratios("ducc0", "2d-", "-x16")), over(ratios("ducc0", "3d-", "-x16"))
    many = over(ratios("ducc0", "2d-", "-x64")), over(ratios("ducc0", "3d-", "-x64"))
    yield f"in 16 chunks we reach {few[0]} of its speed in 2D and {few[1]} in 3D"
    yield f"in 64 chunks {many[0]} and {many[1]}."
    peers = [*ratios("da.fft", "2d-"), *ratios("da.fft", "3d-")]
    yield f"That is {min(peers):.1f} to {max(peers):.0f} times the speed of `da.fft`"
    rows = table("Warm: median seconds").values()
    single = [row for row in rows if "-c64-" in row["problem"] and row["mkl_fft"] != "-"]
    best = max(float(row["ducc0"]) / float(row["mkl_fft"]) for row in single)
    yield f"`mkl_fft` is up to {best:.1f} times as fast as `ducc0` in single precision"
    yield f"it takes {over(ratios('mkl_fft', '1d-', '-c64-'))} of our time in one dimension"
    three = [*ratios("mkl_fft", "3d-", "-c64-"), *ratios("mkl_fft", "3d-8192x128x64")]
    yield f"of our time in one dimension and {over(three)} in three"


def prime_lengths():
    few = ratios("scipy", "prime", "-x16")[0], ratios("fftw-estimate", "prime", "-x16")[0]
    assert few[0] == pytest.approx(2, abs=0.1)
    assert 1 / ratios("fftw-estimate", "prime", "-x64")[0] == pytest.approx(3, abs=0.2)
    yield f"half the time of SciPy's and {1 / few[1]:.1f} times that of FFTW, in 64 chunks three"


def cold():
    (problem,) = (p for p in data("cpu")["problems"] if p["problem"]["name"] == "1d-2p26-c128-x16")
    seconds = [run["seconds"] for run in problem["cold"]]
    assert problem["problem"]["nbytes"] == 2**30
    warm = statistics.median(problem["warm"]["contenders"]["ducc0/persist"]["seconds"])
    yield f"the first transform of 1 GiB takes {over(seconds, 1)} s where "
    yield f"where later ones take {warm:.1f}"


def computing():
    def beside_persisting(kernel):
        for row in table("Warm: median seconds").values():
            both = [row[f"{kernel}/{what}"] for what in ("compute", "persist")]
            if "-" not in both:
                yield float(both[0]) / float(both[1])

    yield f"takes {over([*beside_persisting('ducc0')])} times as long as `persist()` with `ducc0`"
    yield f"with `ducc0`, {over([*beside_persisting('scipy')])} times with SciPy"


def larger_than_memory():
    box, line = data("outofcore")["3d"], data("outofcore_rows")["1d"]
    seconds = [
        statistics.median(r["ours"]["seconds"] for r in job["rounds"]) for job in (box, line)]
    yield f"a 3D array of {box['nbytes'] >> 30} GiB takes {seconds[0]:.0f} s and one axis of "
    yield f"{line['nbytes'] >> 30} GiB {seconds[1]:.0f} s: {box['efficiency']:.2f} and "
    yield f"{line['efficiency']:.2f} times the speed of copying as many bytes as the plan moves"
    ranges = over(box["efficiency_range"]), over(line["efficiency_range"])
    yield f"(medians of {len(box['rounds'])} pairs; {ranges[0]} and {ranges[1]})"
    others = data("outofcore_xeon")["3d"], data("outofcore_rows_xeon")["1d"]
    yield " and ".join(f"{job['efficiency']:.2f}" for job in others) + " times"
    yield "(" + " and ".join(over(job["efficiency_range"]) for job in others) + ")"
    speeds = [
        statistics.median(r["copy"]["bytes"] / r["copy"]["seconds"] for r in job["rounds"])
        for job in (box, line, *others)]
    faster = speeds[2] / speeds[0], speeds[3] / speeds[1]
    yield f"whose disk copies {over(faster, 1)} times as fast"
    assert "KilledWorker" in box["stock"]["error"]
    assert "MemoryError" in line["stock"]["error"]


def convolution():
    found = data("convolution")["medians"]
    full, taps = found["full"], found["taps"]

    def size(record):
        return record["peak_bytes"] / 2**30

    ours, stock = full["fftconvolve"], full["da.fft"]
    yield f"takes {ours['warm']:.1f} s and {size(ours):.1f} GiB above its inputs, "
    yield f"{stock['warm'] / ours['warm']:.0f} times less time and {size(stock) / size(ours):.1f} "
    yield f"(SciPy in one block: {full['scipy']['warm']:.0f} s, {size(full['scipy']):.0f} GiB)"
    few, add = taps["fftconvolve"], taps["oaconvolve"]
    yield f"with 4,096 taps {few['warm']:.1f} s and {size(few):.1f} GiB, `oaconvolve` "
    yield f"{add['warm']:.2f} s and {size(add):.1f} GiB, against "
    yield f"against {taps['da.fft']['warm']:.0f} s and {size(taps['da.fft']):.1f} GiB"


def clusters():
    found = data("clusters")["first"]
    first, pencils = found["8,192 blocks, all to all"], found["100,352 blocks, pencils"]
    yield f"runs {first['seconds']:.1f} s after `compute`, "
    yield f"of 100,352 pencils {pencils['seconds']:.1f} s"


def card():
    found = data("gpu")
    whole = [t for t in found["transforms"] if t["gib"] == 16]
    yield f"take {over([t['seconds'] for t in whole], 1)} s in one, two and three dimensions: "
    yield f"dimensions: {over([t['fraction'] for t in whole])} of the bus"
    best = {(tuple(t["shape"]), t["dtype"], t["block_mib"]): t["seconds"] for t in whole}

    def times(records):
        for peer in records:
            for (shape, dtype, _), seconds in best.items():
                same = (tuple(peer["shape"]), peer["dtype"]) == (shape, dtype)
                if same and peer["peer"] in ("ducc0", "pinned loop"):
                    yield peer["seconds"] / seconds

    ducc0, loop = over([*times(found["cpu"])], 1), over([*times(found["loops"])], 1)
    yield f"That is {ducc0} times as fast as `ducc0` on that host's 16 cores"
    yield f"{loop} times as fast as a loop of copies and FFTs from pinned memory"
    inside = [e["seconds"] for e in found["in_card"] if e["floor"] > 0.05]
    ducc0 = [e["ducc0"] for e in inside]
    yield f"take {over([e['dask_bigfft'] for e in inside])} s, transfers included (`ducc0` "
    yield f"(`ducc0` {min(ducc0):.2f} to {max(ducc0):.1f} s, plain CuPy from pinned memory "
    yield f"plain CuPy from pinned memory {over([e['cupy, pinned'] for e in inside])} s)"


def not_pinned():
    found = data("gpu")
    first = [t["fraction"] for t in found["pageable"] if t["source"] == "pageable"]
    rounds = [r["fraction"] for r in found["rounds"] if r["memory"] == "ring"]
    yield f"first reaches {over(first)}, and rounds on data that is not "
    yield f"pinned {over(rounds)} of the bus"


def shared():
    found = data("gpu_hybrid")["hybrid"]
    best = max(found, key=lambda record: record["gain"])
    yield f"ran {best['gain']:.2f} times as fast as on the card alone"
    yield f"(interval {best['low']:.2f} to {best['high']:.2f}); what the model left to the card"
    alone = [record["low"] for record in found if record["who"] == "gpu"]
    yield f"was never slower than {min(alone):.2f} of it"


def two_cards():
    routes = data("gpu_peers_two_cards")["peers"]
    yield f"change places at {max(record['gbs'] for record in routes):.0f} GB/s"


def forecasts():
    text = (RESULTS / "model.md").read_text(encoding="utf-8")
    within = re.search(r"## Errors: (\d+ of \d+) within bounds", text)[1]
    spreads = [int(percent) for percent in re.findall(r"\| (\d+) % \| (?:yes|no) \|", text)]
    assert len(spreads) == len(data("model")["errors"])
    yield f"{within} came out within 15 % or the spread of the runs ({min(spreads)} to "
    yield f"{max(spreads)} %)"
    swept = data("model")["sweep"]
    met = sum(problem["met"] for problem in swept)
    yield f"tried, within 10 %, in {met} of {len(swept)} problems"


README = [one_axis, several_axes, prime_lengths, cold, computing, larger_than_memory, convolution,
          clusters, card, not_pinned, shared, two_cards, forecasts]


@pytest.mark.parametrize("sentences", README, ids=lambda function: function.__name__)
def test_figures_of_the_readme_are_committed(sentences):
    assert missing("README.md", sentences()) == []


def missing(name, sentences):
    text, found = prose(name), [" ".join(sentence.split()) for sentence in sentences]
    assert found
    return [sentence for sentence in found if sentence not in text]


def test_figures_of_the_guide_are_committed():
    rounds = [r["fraction"] for r in data("gpu")["rounds"] if r["memory"] == "ring"]
    assert missing("examples/guide/gpus.md", [f"{over(rounds)} of the bus in rounds"]) == []


def test_costs_of_checks_in_the_guide_are_committed():
    kernels = data("verification")["kernels"]

    def row(text, names, on_disk):
        found = [
            [100 * problem[mode]["clock"][0] for kernel in names
             for name, problem in kernels[kernel].items() if name.endswith("on disk") == on_disk]
            for mode in ("energy", "checksum")]
        cells = (f"{min(costs):z.0f} to {max(costs):.0f} %" for costs in found)
        return f"| {text} | {' | '.join(cells)} |"

    assert missing("examples/guide/verification.md", [
        row("from file to file, as what is larger than memory goes", kernels, True),
        row("in memory, by SciPy", ["scipy"], False),
        row("in memory, by `ducc0`, which is two to three times as fast", ["ducc0"], False),
    ]) == []


def test_figures_of_the_notes_on_the_bus_are_committed():
    """The rows of the table of what the bus allows."""
    rounds = data("gpu")["rounds"]
    rows = {
        "| rounds, pinned": [r for r in rounds if r["memory"] == "pinned"],
        "| whole": [t for t in data("gpu")["transforms"] if t["gib"] == 16],
        "| rounds through the ring": [r for r in rounds if r["memory"] == "ring"],
        "| in their own memory": data("gpu")["in_place"],
    }
    lines = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for start, records in rows.items():
        (line,) = (line for line in lines if line.startswith(start))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        asked = float(cells[1])
        allowed = [r["fraction"] / r["of_allowed"] for r in records]
        told = [[float(n) for n in re.findall(r"[\d.]+", cell)] for cell in cells[2:5]]
        for values, (low, high) in zip(
            (allowed, [r["fraction"] for r in records], [r["of_allowed"] for r in records]), told,
            strict=True,
        ):
            assert (min(values), max(values)) == pytest.approx((low, high), abs=0.0055), line
        met = sum(r["fraction"] >= asked for r in records)
        assert ("met by all" in cells[5]) == (met == len(records)), line

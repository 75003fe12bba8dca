"""What comes out: JSON with every raw time, a Markdown table and a picture beside it.

The JSON, version `SCHEMA`; times are seconds unless named otherwise::

    schema, started (UTC), complete, seconds, threads, repeat, scale, load_before, load_after
    machine             cpu, cores, caches, memory_bytes, system, python, versions, fftw, ...
    problems[]
      measured          started (UTC), repeat, planning_seconds (of FFTW's planner); earlier than
                        the rest where it is kept
      problem           name, family, kind, shape, dtype, ways, size, nbytes, flops
      warm              or {"error": ...}
        plan            rounds, exchanges, pass_bytes[] (written per memory pass), peak_bytes, tasks
        copy            bytes, seconds[] per round: plain copy with all threads
        fft_flops_per_second   {kernel: [before, after each round]}, in cache, all threads together
        load_before, load_after
        contenders      {name: library, ours, ok, error, prepare_seconds, first_seconds,
                        seconds[] per round, phases[] per round (summed over threads),
                        checks[]: relative_l2, samples, energy, tolerance, reference, ok}
      cold[]            kernel, mode, seconds, phases, peak_bytes, fresh_bytes, overflow_bytes,
                        array_bytes, touch_bytes_per_second, check, ok; or {"error": ...}
      derived           best_kernel, roofline_seconds, ratios {peer: {kernel: Ratio}}, targets[]

A name of ours is KERNEL/persist or KERNEL/compute, see `peers`. Ratios are seconds of the peer over
ours (``persist()``) in the same round; medians, with a 95% interval by bootstrap.

Imports `targets`; matplotlib only to draw.
"""

import dataclasses
import importlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dask_bigfft.bench.targets import (
    best_kernel,
    median,
    ratio,
    roofline_seconds,
    targets,
    usable,
)

__all__ = ["SCHEMA", "derive", "faults", "markdown", "picture", "write"]

SCHEMA = 1

_COLOURS = ("#888888", "#bbbbbb", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#2ca02c")


def derive(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from the times of one problem."""
    best, timed = best_kernel(entry), usable(entry)
    if best is None:
        return {"best_kernel": None, "targets": []}
    kernels = [name.partition("/")[0] for name in timed if name.endswith("/persist")]
    ratios = {
        peer: {
            kernel: dataclasses.asdict(
                ratio(found["seconds"], timed[f"{kernel}/persist"]["seconds"])
            )
            for kernel in kernels
        }
        for peer, found in timed.items()
        if not found["ours"]
    }
    wanted = [{**dataclasses.asdict(t), "met": t.met} for t in targets(entry)]
    roofline = roofline_seconds(entry, best)
    return {
        "best_kernel": best, "roofline_seconds": roofline, "ratios": ratios, "targets": wanted
    }


def faults(results: Mapping[str, Any]) -> list[str]:
    """Return what went wrong, one line each: wrong answers, and what could not run."""
    found = []
    for entry in results["problems"]:
        name, warm = entry["problem"]["name"], entry["warm"]
        if "error" in warm:
            found.append(f"{name}: {warm['error']}")
        for contender, record in warm.get("contenders", {}).items():
            if record["error"]:
                found.append(f"{name}: {contender}: {record['error']}")
            elif not record["ok"]:
                found.append(f"{name}: {contender}: wrong answer: {_worst(record['checks'])}")
        for run in entry.get("cold", []):
            if "error" in run:
                found.append(f"{name}: cold: {run['error']}")
            elif not run["ok"]:
                found.append(f"{name}: cold {run['mode']}: wrong: {_worst([run['check']])}")
    return found


def _worst(checks: Iterable[Mapping[str, Any]]) -> str:
    for c in checks:
        if not c["ok"]:
            error = "-" if c["relative_l2"] is None else f"{c['relative_l2']:.1e}"
            return (
                f"relative L2 {error}, samples {c['samples']:.1e}, energy {c['energy']:.1e}, "
                f"allowed {c['tolerance']:.1e}"
            )
    return "not checked"


# --- Markdown -------------------------------------------------------------------------------


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", "|---" * len(headers) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _peers(results: Mapping[str, Any]) -> list[str]:
    found: dict[str, None] = {}
    for entry in results["problems"]:
        for name, record in entry["warm"].get("contenders", {}).items():
            if not record["ours"]:
                found[name] = None
    return list(found)


def _done(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [e for e in results["problems"] if e["derived"]["best_kernel"] is not None]


def _ratio_rows(results: Mapping[str, Any], peers: Sequence[str]) -> Iterable[list[str]]:
    for entry in _done(results):
        derived = entry["derived"]
        best = derived["best_kernel"]
        persist, compute = (median(entry, f"{best}/{mode}") for mode in ("persist", "compute"))
        roof = derived["roofline_seconds"]
        row = [entry["problem"]["name"], entry["warm"]["plan"]["rounds"], best]
        row += [_seconds(persist), _seconds(compute), _seconds(roof), f"{roof / persist:.0%}"]
        for peer in peers:
            r = derived["ratios"].get(peer, {}).get(best)
            row.append(f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if r else "-")
        yield row


def _second_rows(results: Mapping[str, Any], names: Sequence[str]) -> Iterable[list[str]]:
    for entry in _done(results):
        yield [entry["problem"]["name"], *(_seconds(median(entry, name)) for name in names)]


def _phase_rows(results: Mapping[str, Any]) -> Iterable[list[str]]:
    for entry in _done(results):
        best = entry["derived"]["best_kernel"]
        rounds = entry["warm"]["contenders"][f"{best}/persist"]["phases"]
        names = sorted({name for phases in rounds for name in phases})
        shown = (f"{n} {statistics.median(p.get(n, 0.0) for p in rounds):.3f}" for n in names)
        yield [entry["problem"]["name"], best, ", ".join(shown)]


def _cold_rows(results: Mapping[str, Any]) -> Iterable[list[str]]:
    for entry in results["problems"]:
        for mode in ("persist", "compute"):
            runs = [c for c in entry.get("cold", []) if c.get("ok") and c["mode"] == mode]
            if runs:
                kernel = runs[0]["kernel"]
                middle = {
                    key: statistics.median(c[key] for c in runs)
                    for key in ("seconds", "peak_bytes", "fresh_bytes", "touch_bytes_per_second")
                }
                nbytes = runs[0]["array_bytes"]
                ends = [_seconds(end([c["seconds"] for c in runs])) for end in (min, max)]
                yield [
                    entry["problem"]["name"], f"{kernel}/{mode}",
                    f"{_seconds(middle['seconds'])} [{ends[0]}, {ends[1]}]",
                    _seconds(median(entry, f"{kernel}/{mode}")),
                    f"{middle['fresh_bytes'] / nbytes:.2f}",
                    f"{middle['peak_bytes'] / nbytes:.2f}",
                    f"{middle['touch_bytes_per_second'] / 1e9:.2f}",
                ]


def _target_rows(results: Mapping[str, Any]) -> Iterable[list[str]]:
    for entry in _done(results):
        for target in entry["derived"]["targets"]:
            sign = "≥" if target["at_least"] else "≤"
            met = "yes" if target["met"] else "**no**"
            yield [target["what"], f"{target['found']:.3g}", f"{sign} {target['bound']:.3g}", met]


def _heading(results: Mapping[str, Any]) -> list[str]:
    machine = results["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in machine.get("versions", {}).items())
    caches = ", ".join(f"{name} {size}" for name, size in machine.get("caches", {}).items())
    limits = {e.get("measured", {}).get("planning_seconds", 60.0) for e in results["problems"]}
    planning = " or ".join(f"{seconds:g}" for seconds in sorted(limits)) or "60"
    lines = [
        "# Benchmark",
        "",
        f"{results['started']}; {'complete' if results['complete'] else 'stopped early'}; "
        f"{results['threads']} threads, {results['repeat']} rounds, scale {results['scale']:g}; "
        f"load {results['load_before']} before, {results['load_after']} after.",
        "",
        f"{machine.get('cpu', '?')}, {machine.get('cores', '?')} cores, {caches}, "
        f"{machine.get('memory_bytes', 0) / 2**30:.1f} GiB, {machine.get('system', '?')}; "
        f"Python {machine.get('python', '?')}, {versions}.",
        "",
        "The graph is built once and the chunks lie in memory. Peers plan outside the clock and "
        "write into memory that exists; the planner of `fftw-measure` is stopped after "
        f"{planning} s and then does as `fftw-estimate`. Every answer is checked.",
        "",
        "The roofline takes the best copy and the best FFTs in cache that were seen beside the "
        "problem, and adds their times; passes and FFTs that "
        "overlap can be faster than their sum.",
        "",
    ]
    lines += _merged(results)
    found = faults(results)
    if found:
        lines += ["## Faults", "", *(f"- {fault}" for fault in found), ""]
    return lines


def _merged(results: Mapping[str, Any]) -> list[str]:
    """When and in how many rounds the problems were measured that an earlier run is kept of."""
    found: dict[str, list[str]] = {}
    for entry in results["problems"]:
        then = entry.get("measured", results)
        if then["started"] < results["started"]:
            when = f"{then['started'][:16].replace('T', ' ')}, {then['repeat']} rounds"
            found.setdefault(when, []).append(entry["problem"]["name"])
    lines = [f"Kept from {when}: {', '.join(names)}." for when, names in found.items()]
    return [*lines, ""] if lines else []


def markdown(results: Mapping[str, Any]) -> str:
    """Return the report as text."""
    peers = _peers(results)
    ours: dict[str, None] = {}
    for entry in _done(results):
        ours.update(dict.fromkeys(n for n, c in usable(entry).items() if c["ours"]))
    headers = ["problem", "rounds", "kernel", "persist s", "compute s", "roofline s", "reached"]
    lines = _heading(results)
    lines += ["## Warm: best kernel, and seconds of each peer over its `persist()`", ""]
    lines += _table([*headers, *peers], _ratio_rows(results, peers))
    lines += ["## Warm: median seconds", ""]
    lines += _table(["problem", *peers, *ours], _second_rows(results, [*peers, *ours]))
    lines += ["## Phases of `persist()`: seconds, summed over threads", ""]
    lines += _table(["problem", "kernel", "phases"], _phase_rows(results))
    cold = ["problem", "what", "cold s [least, most]", "warm s"]
    cold += ["fresh, arrays", "peak, arrays", "touch GB/s"]
    lines += ["## Cold: the first transform of a process", ""]
    lines += _table(cold, _cold_rows(results))
    lines += ["## Targets", ""]
    lines += _table(["what", "found", "wanted", "met"], _target_rows(results))
    return "\n".join(lines)


# --- picture --------------------------------------------------------------------------------


def _points(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """Seconds by series and size: peers, ours by number of blocks, and the roofline."""
    found: dict[str, dict[int, list[float]]] = {}

    def add(series: str, size: int, seconds: float | None) -> None:
        if seconds is not None:
            found.setdefault(series, {}).setdefault(size, []).append(seconds)

    for entry in entries:
        size, best = entry["problem"]["size"], entry["derived"]["best_kernel"]
        for name, record in usable(entry).items():
            if not record["ours"]:
                add(name, size, median(entry, name))
        add(f"ours, {entry['problem']['ways']} blocks", size, median(entry, f"{best}/persist"))
        add("roofline", size, entry["derived"]["roofline_seconds"])
    return found


def picture(results: Mapping[str, Any], path: Path) -> bool:
    """Draw time against size, a panel for each family; return False where nothing can be drawn."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for entry in _done(results):
        families.setdefault(entry["problem"]["family"], []).append(entry)
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    if not families:
        return False
    columns = min(3, len(families))
    rows = -(-len(families) // columns)
    figure = figures.Figure(figsize=(5.2 * columns, 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    colours = dict(zip(_peers(results), _COLOURS, strict=False))
    for panel, (family, entries) in zip(panels, families.items(), strict=False):
        for series, points in sorted(_points(entries).items()):
            line = sorted((size, statistics.median(values)) for size, values in points.items())
            panel.loglog(*zip(*line, strict=True), label=series, **_style(series, colours))
        panel.set(title=family, xlabel="elements", ylabel="seconds, warm")
        panel.grid(True, which="both", alpha=0.2)
        panel.legend(fontsize=7)
    for panel in panels[len(families) :]:
        panel.set_axis_off()
    figure.savefig(path, dpi=110)
    return True


def _style(series: str, colours: Mapping[str, str]) -> dict[str, Any]:
    if series == "roofline":
        return {"color": "black", "linestyle": ":", "marker": "_"}
    if series.startswith("ours"):
        few = series.startswith("ours, 16 ")
        return {"color": "#1f77b4", "marker": "o" if few else "s", "linewidth": 2,
                "linestyle": "-" if few else "--"}
    return {"color": colours.get(series, "#444444"), "marker": ".", "linewidth": 1}


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write the JSON to `path`, and table and picture beside it; each replaces its predecessor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
    drawn = picture(results, path.with_suffix(".png"))
    text = markdown(results)
    if drawn:
        text += f"\n![Time against size]({path.with_suffix('.png').name})\n"
    path.with_suffix(".md").write_text(text, encoding="utf-8")

"""Scale on paper: what the cost model says of machines that nobody has here.

``python -m dask_bigfft.bench.paper`` plans transforms of 35 TB and 1 PiB, which takes seconds and
writes no graph, and shows for each round what it takes and what bounds it. The speeds are
assumptions, all of which are written beside the answer; change them and see what matters.

Imports `planner`, `transforms`, `decomposition` and `report`'s neighbours in this folder.
"""

import argparse
import importlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.planner.explain import round_names
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.wording import human_bytes, human_seconds
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["CASES", "Case", "main", "markdown", "on_paper", "planned"]


@dataclass(frozen=True)
class Case:
    """A transform on a machine that nobody has here.

    Parameters
    ----------
    name, kind : str
        What it is called, and the transform.
    shape, chunks : tuple of int
        Of the array, and of its largest chunk.
    dtype : str
        Of the array.
    workers, threads, cards : int
        Processes; threads and devices of each.
    memory : int
        Bytes of host memory of each, which the plan has to do with.
    profile : Profile
        Assumed speeds.
    assumed : str
        Where these come from.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    workers: int
    threads: int
    cards: int
    memory: int
    profile: Profile
    assumed: str

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


#: A worker with 16 cores on a network of 100 Gbit/s of which 10 GB/s are left.
_CPU = replace(
    DEFAULT, name="16 cores, 10 GB/s", threads=16, network=1e10, sent_task=1e-4, sent_shard=5e-5
)

#: A worker with one H200, whose host is fed at 40 GB/s.
_GPU = replace(
    DEFAULT, name="one H200, 40 GB/s", threads=16, network=4e10, sent_task=1e-4, sent_shard=5e-5,
    devices=(DeviceProfile(),),
)

#: What is shown, in order.
CASES = (
    Case("1 PiB over 4,096 workers", "fftn", (1 << 15, 1 << 15, 1 << 16), (128, 128, 1 << 16),
         "complex128", 4096, 16, 0, 1 << 40, _CPU,
         "16 threads at the default profile's speeds, 10 GB/s into every worker while all "
         "send, the scheduler at 10,000 tasks a second, 50 us for a shard that travels"),
    Case("16384^3 on 512 GPUs", "fftn", (16384,) * 3, (4, 16384, 16384), "complex64",
         512, 16, 1, 1 << 39, _GPU,
         "one worker, 16 threads and one H200 for each GPU (50.6 GB/s each way over the bus, as "
         "measured), 40 GB/s into every worker while all send, blocks in host memory, the "
         "scheduler at 10,000 tasks a second, 50 us for a shard that travels"),
    Case("16384^3 on the CPUs of the same workers", "fftn", (16384,) * 3, (4, 16384, 16384),
         "complex64", 512, 16, 0, 1 << 39, replace(_GPU, devices=()), "as above, without the GPUs"),
)


def planned(case: Case) -> Plan:
    """Return the plan of a case, with its forecast on that machine."""
    spec = transform_spec(case.kind, case.shape, np.dtype(case.dtype))
    cut = tuple(even_chunks(n, -(-n // c)) for n, c in zip(case.shape, case.chunks, strict=True))
    machine = Machine(
        case.memory, case.threads, case.workers, 1 << 30, case.profile, case.cards)
    request = Request(cut, device="gpu" if case.cards else "cpu")
    plan = find_plan(spec, request, machine)
    found = plan.forecast(
        case.profile, workers=case.workers, threads=case.threads, cards=case.cards
    )
    return replace(plan, expected=found)


def on_paper(case: Case) -> dict[str, Any]:
    """Return what a case takes, as numbers for JSON."""
    started = time.perf_counter()
    plan = planned(case)
    forecast, names = plan.expected, round_names(plan)
    rounds = []
    for exchange, found in zip(plan.exchanges, forecast.rounds, strict=True):
        shape = exchange.shape
        rounds.append({
            "name": f"{{{names[found.index - 1]}}}" if found.index <= len(names) else "exchange",
            "blocks": found.blocks, "block_bytes": exchange.target.largest
            * np.dtype(exchange.dtype).itemsize,
            "bytes_exchanged": 0 if exchange.local else exchange.nbytes,
            "fan_in": shape.fan_in, "groups": shape.groups, "seconds": found.seconds,
            "gather": found.gather / case.workers / case.threads,
            "fft": found.fft / case.workers / case.threads,
            "device": found.device * math.ceil(found.blocks / case.workers / max(1, case.cards)),
            "travel": found.travel, "scheduling": found.scheduling, "bound": found.bound,
        })
    return {
        "name": case.name, "assumed": case.assumed, "shape": list(case.shape),
        "dtype": case.dtype, "nbytes": case.nbytes, "workers": case.workers,
        "threads": case.threads, "cards": case.cards, "memory": case.memory,
        "rounds": plan.notation,
        "seconds": forecast.seconds, "tasks": forecast.tasks, "flops": forecast.flops,
        "bytes_exchanged": forecast.bytes_exchanged, "peak_host": forecast.peak_host,
        "by_round": rounds, "planned_in": time.perf_counter() - started,
    }


def markdown(cases: Sequence[dict[str, Any]]) -> str:
    """Return tables of what cases take, with their assumptions."""
    lines = []
    for case in cases:
        lines += [
            f"### {case['name']}", "",
            f"`{case['rounds']}` of {tuple(case['shape'])} {case['dtype']} "
            f"({human_bytes(case['nbytes'])}): {human_seconds(case['seconds'])}, "
            f"{human_bytes(case['bytes_exchanged'])} exchanged, {case['tasks']} tasks, "
            f"{human_bytes(case['peak_host'])} of host memory a worker at most, of which "
            f"{human_bytes(case['nbytes'] / case['workers'])} are its part of the array; planned "
            f"in {case['planned_in']:.1f} s.", "",
            f"Assumed: {human_bytes(case['memory'])} of memory a worker, {case['assumed']}.", "",
            "| round | blocks | of | groups | fan-in | time | gathers | FFTs | device | network | "
            "scheduler, ordering | bound by |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in case["by_round"]:
            parts = ("seconds", "gather", "fft", "device", "travel", "scheduling")
            times = " | ".join(human_seconds(row[part]) if row[part] else "-" for part in parts)
            lines.append(
                f"| `{row['name']}` | {row['blocks']} | {human_bytes(row['block_bytes'])} | "
                f"{row['groups']} | {row['fan_in']} | {times} | {row['bound']} |"
            )
        lines.append("")
    return "\n".join(lines)


def picture(cases: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw what rounds are made of; return False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(9, 1.6 + 1.1 * len(cases)), layout="constrained")
    axes = figure.subplots(len(cases), 1, squeeze=False)[:, 0]
    parts = (("gather", "#56B4E9"), ("fft", "#0072B2"), ("device", "#009E73"),
             ("travel", "#E69F00"), ("scheduling", "#999999"))
    for axis, case in zip(axes, cases, strict=True):
        names = [row["name"] for row in case["by_round"]][::-1]
        left = np.zeros(len(names))
        for part, colour in parts:
            values = np.array([row[part] for row in case["by_round"]][::-1])
            axis.barh(names, values, left=left, color=colour, label=part)
            left += values
        axis.set_title(f"{case['name']}: {human_seconds(case['seconds'])}", fontsize=9)
        axis.set_xlabel("seconds of a worker; gathers, FFTs and device overlap", fontsize=8)
    axes[0].legend(fontsize=7, ncols=len(parts))
    figure.savefig(path, dpi=110)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Show what the cases take; return 0."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.paper")
    parser.add_argument("--out", type=Path, metavar="PATH",
                        help="JSON; a table and a picture go beside it")
    args = parser.parse_args(argv)
    found = [on_paper(case) for case in CASES]
    text = markdown(found)
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"schema": 1, "cases": found}, indent=1), encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
        picture(found, args.out.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

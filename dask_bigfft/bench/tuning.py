"""What the tuner tries, and what it gains: ``python -m dask_bigfft.bench.tuning``.

*cpu*
    Problems of the model's benchmark, by all FFT libraries at hand: the plan that the model ranks
    first is among those tried, so that the table says what measuring is worth.
*simulated*
    One problem on two simulated devices of unlike speeds, by their clocks: rounds, then buffers,
    passes and streams, then the ring.
*gpu*
    The same for real, on the cards of this process (``--device gpu``), a GiB of which may be used.

Wisdom and profiles of this machine are neither read nor written. Imports `bench`, `calibration`,
`planning`, `devices`, `planner` and `machine`.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.config
import numpy as np

from dask_bigfft import config
from dask_bigfft.bench import machine
from dask_bigfft.bench.model_problems import PROBLEMS, Problem
from dask_bigfft.calibration import calibrate
from dask_bigfft.devices import find
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.libraries import available
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import DeviceProfile, Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planning import profiles
from dask_bigfft.planning.trials import Timer, ones
from dask_bigfft.planning.tuning import Tuning, tuned
from dask_bigfft.transforms.spec import TransformSpec, transform_spec

__all__ = ["CARDS", "clocked", "main", "markdown"]

#: Of the model's problems, those that are tuned on the CPU.
CPU = ("line of 3 x 2^20", "plane in squares", "tall plane", "slabs", "pencils")

#: Bytes of a card that may be used, so that blocks cross its bus in pieces.
CARD_NBYTES = 1 << 30

#: What is tuned on a card, and on simulated ones.
GPU = (
    Problem("box of 4 GiB", "fftn", (512, 512, 1024), (64, 512, 1024)),
    Problem("line of 2^27", "fftn", (1 << 27,), (1 << 24,)),
    Problem("plane of 2 GiB in squares", "fftn", (16384, 8192), (4096, 4096)),
)
UNPINNED = Problem("box of 1 GiB that is not pinned", "fftn", (256, 512, 512), (32, 512, 512))
SMALL = Problem("plane of 16 MiB", "fftn", (1024, 1024), (256, 1024))


@dataclass(frozen=True)
class Card:
    """A simulated device.

    Parameters
    ----------
    name : str
        What is unusual about it.
    profile : DeviceProfile
        Its speeds.
    pageable : bool
        Whether host memory is not pinned.
    """

    name: str
    profile: DeviceProfile
    pageable: bool = False


CARDS = (
    Card("calls are dear",
         DeviceProfile(h2d=2e10, d2h=2e10, call=1e-4, run=0.0, nbytes=6 << 20,
                       name="calls are dear")),
    Card("slow FFTs, nothing pinned",
         DeviceProfile(h2d=2e10, d2h=2e10, call=1e-7, run=0.0, flops=5e10, ring=1e10,
                       nbytes=6 << 20, name="slow FFTs"), pageable=True),
)


def _asked(problem: Problem, device: str, nbytes: int | None = None) -> tuple[
    TransformSpec, Request
]:
    """What the tuner is asked."""
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    request = problem.request(problem.lazy(), "scipy")
    return spec, replace(request, device=device, device_nbytes=nbytes)  # type: ignore[arg-type]


def _found(name: str, place: str, tuning: Tuning | None) -> dict[str, Any]:
    """What became of a problem, for JSON."""
    if tuning is None or not tuning.trials:
        return {"problem": name, "place": place, "table": "", "gain": None}
    plans = [trial for trial in tuning.trials if not trial.pieces]
    ranked = min(plans, key=lambda trial: trial.forecast)
    gain = ranked.seconds / tuning.trials[0].seconds
    return {"problem": name, "place": place, **tuning.to_json(), "table": tuning.to_markdown(),
            "gain": gain, "seconds": tuning.trials[0].seconds}


def on_cpu(threads: int, problems: Sequence[Problem]) -> Iterator[dict[str, Any]]:
    """Tune problems on the CPU."""
    on = Machine(machine_nbytes(), threads, 1, profile=profiles.known_profile(""), shared=True)
    for problem in problems:
        spec, request = _asked(problem, "cpu")
        kernels = [name for name in ("scipy", "ducc0") if name in available()]
        yield _found(problem.name, "cpu", tuned(spec, request, on, kernels))


def clocked(device: SimulatedDevice, plan: Plan) -> Timer:
    """Return what runs a plan on ones, and gives the seconds by a simulated device's clock."""
    x = ones(plan)

    def timed(plan: Plan) -> float:
        started = device.clock()
        transformed_array(x, plan, config.get("bigfft.exchange.carrier")).persist()
        return device.clock() - started

    return timed


def on_simulated(card: Card, problem: Problem = SMALL) -> dict[str, Any]:
    """Tune a problem on a simulated device, by its clock."""
    nbytes = card.profile.nbytes
    spec, request = _asked(problem, "gpu", nbytes)
    on = Machine(None, 1, 1, profile=Profile(devices=(card.profile,)), cards=1)
    device = SimulatedDevice(nbytes, profile=card.profile, pageable=card.pageable)
    find.use([device], PieceLimits(nbytes), nbytes)
    try:
        with dask.config.set(scheduler="sync"):
            timer = clocked(device, problem.plan(problem.array(), "scipy", on))
            found = tuned(spec, request, on, ["scipy"], timer)
    finally:
        find.use(None)
    return _found(f"{problem.name}: {card.name}", "simulated", found)


def on_gpu(threads: int, problems: Sequence[Problem]) -> Iterator[dict[str, Any]]:
    """Tune problems on this process' cards."""
    profile = profiles.known_profile("")
    on = Machine(machine_nbytes(), threads, 1, profile=profile, cards=find.count())
    for problem in problems:
        spec, request = _asked(problem, "gpu", CARD_NBYTES)
        pinned = problem.name != UNPINNED.name
        with dask.config.set({"bigfft.memory.pin-arrays": pinned}):
            yield _found(problem.name, "gpu", tuned(spec, request, on, ["scipy"]))


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of what was tried."""
    about = found["machine"]
    lines = ["# What the tuner tries", "",
             f"{about['cpu']}, {found['threads']} threads, load {found['load_before']} before and "
             f"{found['load_after']} after. Fastest first; the gain is over the plan that the "
             "model ranks first, with settings as the engine has them. Plans are ranked by "
             f"{found.get('profile', 'common speeds')}.", ""]
    for row in found["tuned"]:
        gain = "" if row["gain"] is None else f", gain {row['gain']:.2f}"
        lines += [f"## {row['problem']} ({row['place']}{gain})", "",
                  row["table"] or "Nothing was tried: it is too large to be.", ""]
    gains = [row["gain"] for row in found["tuned"] if row["gain"] and row["place"] != "simulated"]
    if gains:
        lines += [f"Median gain where it was really run: {statistics.median(gains):.2f}", ""]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.tuning")
    add = parser.add_argument
    add("--device", choices=("cpu", "gpu"), default="cpu",
        help="cpu (default, and simulated devices), or the cards of this process")
    add("--problems", metavar="TEXT", default="", help="problems whose name contains this")
    add("--threads", type=int, default=2, metavar="N", help="threads of dask (default: 2)")
    add("--scale", type=float, default=1.0, metavar="X", help="part of the first axis (tests)")
    add("--calibrate", action="store_true",
        help="measure the machine first, and rank plans by that (default: by common speeds)")
    add("--out", type=Path, metavar="PATH", help="JSON of everything; tables go beside it")
    return parser


def _write(found: dict[str, Any], path: Path | None) -> None:
    """Write what was found so far."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(found), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.device == "gpu" and find.missing() is not None:
        parser.error(f"--device gpu: need a GPU: {find.missing()}")
    named = (*GPU, UNPINNED) if args.device == "gpu" else [p for p in PROBLEMS if p.name in CPU]
    problems = [p.scaled(args.scale) for p in named if args.problems in p.name]
    if not problems:
        parser.error(f"--problems {args.problems}: need part of one of: "
                     f"{', '.join(p.name for p in named)}")
    found: dict[str, Any] = {"schema": 1, "machine": machine.describe(), "threads": args.threads,
                             "load_before": machine.load(), "tuned": []}
    started = time.perf_counter()
    run = on_gpu if args.device == "gpu" else on_cpu
    cards = CARDS if args.device == "cpu" else ()
    with tempfile.TemporaryDirectory() as folder, dask.config.set({
        "scheduler": "threads", "num_workers": args.threads, "bigfft.wisdom.directory": folder,
    }):
        found["profile"] = calibrate().name if args.calibrate else "common speeds"
        for row in itertools.chain(map(on_simulated, cards), run(args.threads, problems)):
            found["tuned"].append(row)
            found |= {"load_after": machine.load(), "seconds": time.perf_counter() - started}
            _write(found, args.out)
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m dask_bigfft.bench.outofcore``: arrays larger than memory, from Zarr to Zarr.

For each problem, in turn and several times, inside a memory cgroup of the budget where one can be
made: a run of ours, and a plain sequential copy of as many bytes in the same folder. The figure is
the plan's own bytes, source and sink and scratch files, over time, against the copy's. At the end,
if asked for, the same job by stock dask on a cluster with the same limits.

Answers are checked: some frequencies against a direct DFT, everything by Parseval's theorem. With
``--out`` what is found is written after every step, and ``--resume`` goes on with the steps that
are not there yet, from the source that lies in the folder.

Imports the package, `outofcore_data`, `cgroup`, `peaks`, and distributed for the peer.
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes

from dask_bigfft import events
from dask_bigfft.bench.cgroup import Cgroup, memory_cgroup
from dask_bigfft.bench.machine import describe
from dask_bigfft.bench.outofcore_data import (
    BUDGETS,
    PROBLEMS,
    OutOfCore,
    check_answer,
    make_source,
)
from dask_bigfft.bench.peaks import in_use, watched
from dask_bigfft.planner.wording import human_bytes, human_seconds
from dask_bigfft.runs import run

__all__ = ["main"]

#: Bytes that are copied at a time.
COPY_BYTES = 8 << 20

#: Part of the budget, without what a process takes before it works, that a plan may use.
SHARE = 0.8


# --- what is measured, each in a process of its own -----------------------------------------


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """Do a run of ours; return seconds, bytes and memory."""
    folder, problem = Path(task["folder"]), OutOfCore(**task["problem"])
    options = {"scheduler": "threads", "num_workers": task["threads"],
               "bigfft.scratch.directory": str(folder), "bigfft.exchange.carrier": "disk"}
    with dask.config.set(options):
        _warm_up(folder, problem)
        before = in_use(os.getpid())
        limit = int(SHARE * (task["budget"] - before))
        totals: collections.Counter[str] = collections.Counter()
        lock = threading.Lock()

        def sink(name: str, numbers: Any) -> None:
            with lock:
                totals[name] += numbers.get("nbytes", 0)
                totals[f"{name} seconds"] += numbers.get("seconds", 0)

        events.add_sink(sink)
        with watched(os.getpid(), cgroups=False, poll=0.01) as peak:
            done = run(
                folder / "in.zarr", folder / "out.zarr", problem.kind, memory_limit=limit,
                overwrite=True, block_size=problem.chunk_nbytes,
                kernel=task["kernel"],
            )
    moved = sum(totals[k] for k in ("source_read", "scratch_read", "scratch_write", "sink_write"))
    return {
        "seconds": done.seconds, "bytes": moved, "carrier": done.plan.carrier,
        "rounds": done.plan.notation, "exchanges": len(done.plan.travelling),
        "memory_before": before, "memory_peak": peak.nbytes,
        "memory_forecast": done.plan.expected.peak_host, "memory_limit": limit,
        "events": dict(totals),
    }


def _warm_up(folder: Path, problem: OutOfCore) -> None:
    """Let everything be imported and compiled."""
    small = folder / "warm"
    shutil.rmtree(small, ignore_errors=True)
    small.mkdir()
    shape = (4096,) if len(problem.shape) == 1 else (16, 16, 16)
    chunks = (256,) if len(problem.shape) == 1 else (2, 16, 16)
    make_source(OutOfCore("warm", problem.kind, shape, chunks, problem.dtype), small / "in.zarr")
    with dask.config.set({"bigfft.exchange.carrier": "disk"}):
        run(small / "in.zarr", small / "out.zarr", problem.kind, block_size=4096)
    shutil.rmtree(small)


def copied(task: dict[str, Any]) -> dict[str, Any]:
    """Copy a file as often as makes `bytes` read and written; return seconds and bytes."""
    folder, left, moved = Path(task["folder"]), task["bytes"] // 2, 0
    chunks = sorted((folder / "in.zarr" / "c").rglob("*"))
    sources = [path for path in chunks if path.is_file()]
    started = time.perf_counter()
    while left > 0:
        with open(folder / "copy", "wb", buffering=0) as target:
            for path in sources:
                with open(path, "rb", buffering=0) as source:
                    while left > 0 and (data := source.read(min(COPY_BYTES, left))):
                        target.write(data)
                        left -= len(data)
                        moved += 2 * len(data)
            os.fsync(target.fileno())
    seconds = time.perf_counter() - started
    (folder / "copy").unlink()
    return {"seconds": seconds, "bytes": moved}


def stock(task: dict[str, Any]) -> dict[str, Any]:
    """Do the job with dask's own functions on a cluster; return seconds."""
    distributed, da = import_module("distributed"), import_module("dask.array")
    folder, problem = Path(task["folder"]), OutOfCore(**task["problem"])
    with (
        distributed.LocalCluster(  # the scheduler, too, has to fit into the budget
            n_workers=1, threads_per_worker=task["threads"],
            memory_limit=int(SHARE * task["budget"]),
            dashboard_address="127.0.0.1:0", local_directory=str(folder),
        ) as cluster,
        distributed.Client(cluster),
    ):
        started = time.perf_counter()
        x = da.from_zarr(str(folder / "in.zarr"))
        if len(problem.shape) == 1:
            y = da.fft.fft(x.rechunk(-1)).rechunk(problem.chunks)
        else:
            y = da.fft.fftn(x, axes=(1, 2)).rechunk({0: -1, 1: "auto", 2: -1})
            y = da.fft.fft(y, axis=0)
        y.astype(problem.dtype).to_zarr(str(folder / "stock.zarr"), overwrite=True)
        return {"seconds": time.perf_counter() - started}


CHILDREN = {"ours": ours, "copied": copied, "stock": stock}


def _call(
    name: str, task: dict[str, Any], group: Cgroup | None, seconds: float | None = None
) -> dict[str, Any]:
    """Return what a new process finds, inside of the group."""
    command = [sys.executable, "-m", "dask_bigfft.bench.outofcore", "--child", name,
               json.dumps(task)]
    if group is not None:
        group.reset()
        command = group.command(command)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True)
    try:
        out, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {seconds:.0f} s"}
    finally:  # it, and the workers that it may have started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode:
        last = errors.strip().splitlines()[-1:] or [""]
        return {"error": f"exit status {child.returncode}: {last[0]}"[:300]}
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer | ({} if group is None else {"cgroup_peak": group.peak})


# --- the program ----------------------------------------------------------------------------


def measured(
    problem: OutOfCore, folder: Path, args: argparse.Namespace, group: Cgroup | None,
    answer: dict[str, Any], save: Callable[[], None],
) -> None:
    """Find out everything about a problem, beginning where `answer` ends; the folder goes then.

    Parameters
    ----------
    problem : OutOfCore
        Which.
    folder : Path
        Of the source and of all that is written.
    args : Namespace
        Of the program.
    group : Cgroup or None
        In which processes work.
    answer : dict
        What is known, which grows.
    save : callable
        Called whenever it has grown.
    """
    rounds = answer.setdefault("rounds", [])
    if len(rounds) >= args.repeat and ("stock" in answer or not args.stock):
        return
    if "truth" not in answer or not (folder / "in.zarr").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        answer["truth"] = _as_json(make_source(problem, folder / "in.zarr"))  # always the same
        answer["nbytes"] = problem.nbytes
        save()
    task = {"problem": problem.__dict__, "folder": str(folder), "threads": args.threads,
            "budget": args.budget, "kernel": args.kernel}
    while len(rounds) < args.repeat:
        shutil.rmtree(folder / "out.zarr", ignore_errors=True)
        os.sync()
        found = _call("ours", task, group, args.longest)
        copy: dict[str, Any] = {}
        if "error" not in found:
            part = int(found["bytes"] * args.copy)
            copy = _call("copied", task | {"bytes": part}, group, args.longest)
            if "errors" not in answer:
                answer["errors"] = check_answer(problem, folder / "out.zarr", answer["truth"])
        rounds.append({"ours": found, "copy": copy})
        if "errors" in answer:
            answer |= _figures(problem, answer, args.budget)
        print(f"  {_round_text(rounds[-1])}", flush=True)
        save()
    if args.stock and "stock" not in answer:
        shutil.rmtree(folder / "out.zarr", ignore_errors=True)
        answer["stock"] = _call("stock", task, group, args.longest)
        if "seconds" in answer["stock"]:
            answer["stock"] |= check_answer(problem, folder / "stock.zarr", answer["truth"])
    save()
    shutil.rmtree(folder, ignore_errors=True)


def _as_json(truth: dict[str, Any]) -> dict[str, Any]:
    """The truth about a problem, with lists in the place of tuples and complex numbers."""
    wanted = [[list(at), value.real, value.imag] for at, value in truth["wanted"].items()]
    return {"energy": truth["energy"], "wanted": wanted}


def _speed(found: dict[str, Any]) -> float:
    return float(found["bytes"] / found["seconds"])


def _round_text(found: dict[str, Any]) -> str:
    run_, copy = found["ours"], found["copy"]
    if "error" in run_:
        return f"failed: {run_['error']}"
    text = (
        f"{human_seconds(run_['seconds'])}, {human_bytes(run_['bytes'])} moved, "
        f"{human_bytes(_speed(run_))}/s; memory {human_bytes(run_['memory_peak'])} of "
        f"{human_bytes(run_['memory_forecast'])} forecast"
    )
    if run_.get("cgroup_peak"):
        text += f", group {human_bytes(run_['cgroup_peak'])}"
    if "seconds" in copy:
        text += f"; copy {human_bytes(_speed(copy))}/s, ratio {_speed(run_) / _speed(copy):.2f}"
    return text


def _figures(problem: OutOfCore, answer: dict[str, Any], budget: int) -> dict[str, Any]:
    done = [r for r in answer["rounds"] if "error" not in r["ours"]]
    pairs = [r for r in done if "seconds" in r["copy"]]
    ratios = sorted(_speed(r["ours"]) / _speed(r["copy"]) for r in pairs)
    errors = answer["errors"]
    first = done[0]["ours"]
    peak = max(r["ours"]["memory_peak"] + r["ours"]["memory_before"] for r in done)
    return {
        "efficiency": statistics.median(ratios) if ratios else None,
        "efficiency_range": [ratios[0], ratios[-1]] if ratios else None,
        "failed": len(answer["rounds"]) - len(done),
        "right": max(errors.values()) <= problem.tolerance,
        "passes": first["bytes"] / problem.nbytes,
        "within_budget": peak <= budget,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.outofcore")
    add = parser.add_argument
    add("--scale", choices=list(PROBLEMS), default="full", help="size of the problems")
    add("--only", nargs="+", default=[], choices=("3d", "1d"), metavar="NAME", help="of: 3d, 1d")
    add("--folder", type=Path, default=Path("outofcore"), help="where files go (all deleted)")
    add("--budget", help="memory of everything (default: 2 GiB at full scale)")
    add("--threads", type=int, default=3, metavar="N",
        help="tasks at a time; more than there are cores, for those that wait for the disk")
    add("--kernel", default="auto", metavar="NAME", help="FFT library of ours (default: auto)")
    add("--repeat", type=int, default=3, metavar="N", help="runs and copies in turn (default: 3)")
    add("--copy", type=float, default=1.0, metavar="F", help="part of the bytes that is copied")
    add("--stock", action="store_true", help="also by dask's own functions on a cluster")
    add("--longest", type=float, default=600.0, metavar="S",
        help="seconds that a run, a copy or stock dask may take (default: 600)")
    add("--out", type=Path, metavar="PATH", help="JSON, written after every step")
    add("--resume", action="store_true", help="go on with what --out has")
    add("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return 0 if all answers are right and within the budget."""
    args = _parser().parse_args(argv)
    if args.child:
        print(json.dumps(CHILDREN[args.child[0]](json.loads(args.child[1]))))
        return 0
    args.budget = int(parse_bytes(args.budget or BUDGETS[args.scale]))
    found: dict[str, Any] = {"scale": args.scale, "budget": args.budget, "threads": args.threads,
                             "kernel": args.kernel, "copy": args.copy, "machine": describe()}
    if args.resume and args.out is not None and args.out.exists():
        found |= {k: v for k, v in json.loads(args.out.read_text()).items() if k in ("3d", "1d")}

    def save() -> None:
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1) + "\n")

    with memory_cgroup(args.budget) as group:
        found["cgroup"] = None if group is None else group.version
        if group is None:
            print("no memory cgroup can be made: files may come from the page cache")
        for problem in PROBLEMS[args.scale]:
            if not args.only or problem.name in args.only:
                print(f"{problem.name}: {problem.kind} of {problem.shape} {problem.dtype}, "
                      f"{human_bytes(problem.nbytes)} in {human_bytes(args.budget)}", flush=True)
                folder = args.folder.resolve() / problem.name
                measured(problem, folder, args, group, found.setdefault(problem.name, {}), save)
                print(f"  {_summary(found[problem.name])}", flush=True)
    save()
    results = [found[name] for name in ("3d", "1d") if name in found]
    return int(not all(r.get("right") and r.get("within_budget") for r in results))


def _summary(found: dict[str, Any]) -> str:
    if "right" not in found:
        return "no answer"
    errors = ", ".join(f"{name} {value:.1e}" for name, value in found["errors"].items())
    verdict = "right" if found["right"] else "WRONG"
    text = f"{verdict} ({errors}); {found['passes']:.1f} times its bytes"
    if found["efficiency"] is not None:
        text += f"; efficiency {found['efficiency']:.2f}"
    if "stock" in found:
        said = found["stock"].get("error") or human_seconds(found["stock"]["seconds"])
        text += f"; stock dask: {said}"
    return text


if __name__ == "__main__":
    sys.exit(main())

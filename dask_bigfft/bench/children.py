"""Work in new processes: what is measured, what makes memory dirty before, and their answers.

A child is this program again with ``--child`` and a task in JSON; the last line that it prints is
its answer. The parent stays small, so that nothing it holds counts as the child's, and memory is
free again after every problem.

Imports `measure`, `peers`, `problems`, `targets`, `machine`.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import psutil

from dask_bigfft.bench import machine, measure
from dask_bigfft.bench.peers import PLANNING_SECONDS, contenders, fftw_wisdom
from dask_bigfft.bench.problems import PROBLEMS
from dask_bigfft.bench.targets import best_kernel

__all__ = ["call", "make_dirty", "serve"]

#: Seconds that a child may take beyond what is left, to finish the round it is in.
_GRACE_SECONDS = 120.0


def _environment(threads: int) -> dict[str, str]:
    """Threads of the libraries that take them from here.

    Waiting ones do not spin: they would take a core from whoever is on next.
    """
    count = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
    )
    waiting = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    return {**os.environ, **count, **waiting, "MKL_DYNAMIC": "FALSE"}


def call(task: dict[str, Any], threads: int, seconds: float) -> dict[str, Any]:
    """Return the answer of a new process to a task, or ``{"error": ...}``.

    Parameters
    ----------
    task : dict
        What `serve` understands.
    threads : int
        Of the libraries in the child.
    seconds : float
        How long it should take at most; a while later it is killed.
    """
    seconds = max(0.0, seconds)
    text = json.dumps({**task, "threads": threads, "seconds": min(seconds, 1e9)})
    limit = seconds + _GRACE_SECONDS if seconds < 1e6 else None
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dask_bigfft.bench", "--child", text],
            env=_environment(threads), capture_output=True, text=True, timeout=limit, check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {limit:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        return {"error": f"exit status {done.returncode}: {last[0]}"[:300]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def serve(text: str) -> None:
    """Do a task and print its answer."""
    until = time.monotonic()
    task = json.loads(text)
    until += task["seconds"]
    threads = task["threads"]
    if task["task"] == "describe":
        print(json.dumps(machine.describe()))
        return
    problem = PROBLEMS[task["problem"]].scaled(task["scale"])
    answer: dict[str, Any]
    if task["task"] == "warm":
        entrants = contenders(
            threads, task["peers"], task["kernels"], task.get("planning_seconds", PLANNING_SECONDS)
        )
        fftw_wisdom(task["wisdom"])
        answer = measure.warm(
            problem, entrants, task["repeat"], threads, until, task.get("slow_rounds"),
            task.get("quick", False),
        )
        answer["plan"] = measure.planned(problem, threads, best_kernel({"warm": answer}) or "auto")
        answer["wisdom"] = fftw_wisdom()
    elif task["task"] == "touch":
        answer = measure.touched(problem, task["kernel"], threads)
    else:
        answer = measure.cold(problem, task["kernel"], task["mode"], threads)
    print(json.dumps(answer))


def make_dirty(nbytes: int) -> None:
    """Let another process use that much memory and free it, but leave a quarter of the free."""
    count = min(nbytes, int(0.75 * psutil.virtual_memory().available))
    subprocess.run([sys.executable, "-c", f"b'1' * {count}"], check=True)

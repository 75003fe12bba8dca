"""Warm rounds, A B C A B C, in one process; and one cold run.

Warm: every contender runs once before the clock counts, then in turn with the others, so that what
slows the machine down for a while hits all alike and ratios within a round mean something. Cold:
nothing ran in this process before; the caller sees to it that another process has used and freed
memory, and starts a new process for each.

The answers of the first and of the last round are checked, and that of the cold run.

Imports `peers`, `data`, `machine`, the front door, `kernels` and `memory`.
"""

import dataclasses
import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dask.array
import dask.config
import numpy as np
import numpy.typing as npt

from dask_bigfft.bench import machine
from dask_bigfft.bench.data import Check, Data, sketch
from dask_bigfft.bench.peers import PEERS, Contender, Mode, Ours
from dask_bigfft.bench.problems import Problem
from dask_bigfft.front import plan
from dask_bigfft.kernels import warming
from dask_bigfft.kernels.libraries import available
from dask_bigfft.memory import default_arena
from dask_bigfft.memory.blocks import Loan

__all__ = ["cold", "planned", "touched", "warm"]

#: How many times as long as the fastest a contender takes that is called slow.
SLOW = 4.0


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let dask run that many tasks at a time, in this process."""
    with dask.config.set(scheduler="threads", num_workers=count):
        yield


def planned(problem: Problem, threads: int, kernel: str = "auto") -> dict[str, Any]:
    """Return what the planner makes of a problem for an FFT library; no data are touched."""
    x = dask.array.zeros(problem.shape, chunks=problem.chunks, dtype=problem.dtype)
    with _threads(threads):
        found = plan(x, problem.kind, kernel=kernel)
    rounds = len(found.rounds)
    copied = [  # an exchange of views alone copies nothing
        exchange.nbytes
        for i, (exchange, joint) in enumerate(
            zip(found.exchanges, found.joints.exchanges, strict=True)
        )
        if i < rounds or joint is None
    ]
    return {
        "rounds": found.notation,
        "exchanges": len(found.travelling),
        "pass_bytes": copied,
        "peak_bytes": found.expected.peak_host,
        "tasks": found.expected.tasks,
    }


# --- warm -----------------------------------------------------------------------------------


@dataclasses.dataclass
class _Record:
    """What one contender did."""

    library: str
    ours: bool
    prepare_seconds: float = 0.0
    first_seconds: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    phases: list[dict[str, float]] = dataclasses.field(default_factory=list)
    checks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.checks) and all(c["ok"] for c in self.checks)


def warm(
    problem: Problem, entrants: Sequence[Contender], repeat: int, threads: int,
    until: float = float("inf"), slow_rounds: int | None = None, quick: bool = False,
) -> dict[str, Any]:
    """Return the times of all contenders on a problem, round by round.

    Parameters
    ----------
    problem : Problem
        What is transformed.
    entrants : sequence of Contender
        Who transforms it, in the order in which they run.
    repeat : int
        Rounds that count.
    threads : int
        Of everybody.
    until : float
        Time of `time.monotonic` after which no further round begins; one always counts.
    slow_rounds : int, optional
        Rounds after which those sit out that take more than `SLOW` times as long as the fastest.
        After none, the time of the round that does not count is theirs.
    quick : bool
        Whether only the answers of the round that does not count are checked.
    """
    warming.at_once()
    before = machine.load()
    data = Data(problem)
    records = {e.name: _Record(e.library, isinstance(e, Ours)) for e in entrants}
    kernels = sorted({e.library for e in entrants if isinstance(e, Ours)})
    copies: list[float] = []
    checked = (0,) if quick else (0, repeat)
    with _threads(threads):
        _prepare(entrants, data, records)
        _judge(data, threads)
        rates = {k: [machine.fft_rate(k, problem.out_dtype, threads)] for k in kernels}
        for number in range(repeat + 1):
            if number > 1 and time.monotonic() > until:
                break
            data.room.touch()
            copied, seconds = machine.copy(data.x, data.out, threads)
            copies += [seconds] if number else []
            slow = _slow(records) if slow_rounds is not None and number > slow_rounds else set()
            for name in slow if number == 1 else ():
                records[name].seconds.append(records[name].first_seconds or 0.0)
            for entrant in entrants:
                if entrant.name in slow:
                    continue
                _turn(entrant, data, records[entrant.name], number, number in checked)
            for kernel in kernels:
                rates[kernel].append(machine.fft_rate(kernel, problem.out_dtype, threads))
    return {
        "load_before": before,
        "load_after": machine.load(),
        "copy": {"bytes": copied, "seconds": copies},
        "fft_flops_per_second": rates,
        "contenders": {n: {**dataclasses.asdict(r), "ok": r.ok} for n, r in records.items()},
    }


def _slow(records: dict[str, _Record]) -> set[str]:
    """Who takes so long that a few rounds tell enough.

    The first time of ours, which takes fresh pages for its blocks, says nothing.
    """
    best = {
        name: min(record.seconds or [record.first_seconds or 0.0])
        for name, record in records.items()
        if record.seconds or (record.first_seconds and not record.ours)
    }
    least = SLOW * min(best.values(), default=0.0)
    return {name for name, seconds in best.items() if seconds > least}


def _prepare(entrants: Sequence[Contender], data: Data, records: dict[str, _Record]) -> None:
    data.room.touch()
    for entrant in entrants:
        started = time.perf_counter()
        try:
            entrant.prepare(data)
        except Exception as error:  # one that cannot must not keep the others from running
            records[entrant.name].error = _text(error)
        records[entrant.name].prepare_seconds = time.perf_counter() - started
    data.fill()


def _judge(data: Data, threads: int) -> None:
    """Find out the right answer: directly, and by two libraries that share no code."""
    data.judge()
    others = [name for name in ("ducc0", "mkl_fft", "pyfftw") if name in available()]
    for library in ["scipy", *others[:1]]:
        peer: Contender = PEERS["fftw-estimate" if library == "pyfftw" else library][0](threads)
        peer.prepare(data)
        peer.before(data)
        data.references[library] = sketch(peer.answer(data, peer.run(data)))


def _turn(entrant: Contender, data: Data, record: _Record, number: int, checked: bool) -> None:
    """Run one contender once; round 0 does not count."""
    if record.error:
        return
    try:
        entrant.before(data)
        gc.collect()
        started = time.perf_counter()
        result = entrant.run(data)
        seconds = time.perf_counter() - started
        if checked:
            record.checks.append(_shown(data.check(entrant.answer(data, result), entrant.library)))
    except Exception as error:  # as above; what it says is in the report
        record.error = _text(error)
        return
    if not number:
        record.first_seconds = seconds
        return
    record.seconds.append(seconds)
    if isinstance(entrant, Ours):
        record.phases.append(dict(entrant.phases))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _shown(check: Check) -> dict[str, Any]:
    """A check as JSON, which has no NaN: what is not finite becomes 1e300."""
    numbers = {
        key: 1e300 if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in dataclasses.asdict(check).items()
    }
    return {**numbers, "ok": check.ok}


# --- cold -----------------------------------------------------------------------------------


def cold(problem: Problem, kernel: str, mode: Mode, threads: int) -> dict[str, Any]:
    """Return what the first transform of this process takes; call it in a new process.

    The clock starts at ``persist()`` or ``compute()``; the input lies in memory.

    Parameters
    ----------
    problem : Problem
        What is transformed.
    kernel : str
        FFT library.
    mode : {"persist", "compute"}
        What is called.
    threads : int
        Of dask.
    """
    data, entrant = _ready(problem, kernel, mode)
    with _threads(threads):
        entrant.prepare(data)
        gc.collect()
        held = machine.reset_peak()
        counted = default_arena().counters()
        started = time.perf_counter()
        result = entrant.run(data)
        seconds = time.perf_counter() - started
        peak = machine.peak_bytes() - held
        now = default_arena().counters()
    fresh = now.fresh_bytes + now.overflow_bytes - counted.fresh_bytes - counted.overflow_bytes
    if mode == "compute" and not _lent(result):
        fresh += result.nbytes
    check = _shown(data.check(entrant.answer(data, result), kernel))
    return {
        "kernel": kernel,
        "mode": mode,
        "seconds": seconds,
        "phases": dict(entrant.phases),
        "peak_bytes": peak,
        "fresh_bytes": fresh,
        "overflow_bytes": now.overflow_bytes - counted.overflow_bytes,
        "array_bytes": problem.nbytes,
        "check": check,
        "ok": check["ok"],
    }


def _ready(problem: Problem, kernel: str, mode: Mode) -> tuple[Data, Ours]:
    data = Data(problem)
    data.fill()
    data.judge()
    return data, Ours(kernel, mode)


def touched(problem: Problem, kernel: str, threads: int) -> dict[str, Any]:
    """Return how fast fresh pages come, as many as the array has, where a cold run would begin.

    Pages that this process has given back come faster than those that another one has used, and
    the former are few: so it is a process of its own, which has done what comes before a cold run.
    """
    data, entrant = _ready(problem, kernel, "persist")
    with _threads(threads):
        entrant.prepare(data)
        gc.collect()
        rate = machine.first_touch_rate(problem.nbytes, threads)
    return {"touch_bytes_per_second": rate}


def _lent(array: npt.NDArray[Any]) -> bool:
    """Whether the array lies in memory of the arena, which has counted it already."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Loan)

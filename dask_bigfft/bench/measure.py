"""Warm rounds, A B C A B C, in one process; and one cold run.

Warm: every contender runs once before the clock counts, then in turn with the others, so that what
slows the machine down for a while hits all alike and ratios within a round mean something. Cold:
nothing ran in this process before; the caller sees to it that another process has used and freed
memory, and starts a new process for each.

The answers of the first and of the last round are checked, and that of the cold run.

Imports `peers`, `data`, `machine`, the front door and `memory`.
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
from dask_bigfft.kernels.libraries import available
from dask_bigfft.memory import default_arena
from dask_bigfft.memory.blocks import Loan

__all__ = ["cold", "planned", "warm"]

#: Fresh memory that is touched before a cold run, to know the machine's rate at that moment.
_TOUCH_NBYTES = 1 << 28

#: How many times as long as the fastest a contender takes that is called slow.
SLOW = 4.0


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let dask run that many tasks at a time, in this process."""
    with dask.config.set(scheduler="threads", num_workers=count):
        yield


def planned(problem: Problem, threads: int) -> dict[str, Any]:
    """Return what the planner makes of a problem; no data are touched."""
    x = dask.array.zeros(problem.shape, chunks=problem.chunks, dtype=problem.dtype)
    with _threads(threads):
        found = plan(x, problem.kind)
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
        "peak_bytes": found.forecast.peak_host,
        "tasks": found.forecast.tasks,
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
    until: float = float("inf"), slow_rounds: int | None = None,
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
    """
    before = machine.load()
    data = Data(problem)
    records = {e.name: _Record(e.library, isinstance(e, Ours)) for e in entrants}
    kernels = sorted({e.library for e in entrants if isinstance(e, Ours)})
    copies: list[float] = []
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
            for entrant in entrants:
                if entrant.name in slow:
                    continue
                _turn(entrant, data, records[entrant.name], number, number in (0, repeat))
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
    """Who takes so long that a few rounds tell enough."""
    best = {name: min(record.seconds) for name, record in records.items() if record.seconds}
    return {name for name, seconds in best.items() if seconds > SLOW * min(best.values())}


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
        Of dask and of the measurement of fresh pages, which comes before, in other memory: what the
        system has got back once comes faster than what another process has freed.
    """
    data = Data(problem)
    data.fill()
    data.judge()
    entrant = Ours(kernel, mode)
    with _threads(threads):
        entrant.prepare(data)
        gc.collect()
        rate, touched = machine.first_touch(min(_TOUCH_NBYTES, problem.nbytes), threads)
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
    del touched
    return {
        "kernel": kernel,
        "mode": mode,
        "seconds": seconds,
        "phases": dict(entrant.phases),
        "peak_bytes": peak,
        "fresh_bytes": fresh,
        "overflow_bytes": now.overflow_bytes - counted.overflow_bytes,
        "array_bytes": problem.nbytes,
        "touch_bytes_per_second": rate,
        "check": check,
        "ok": check["ok"],
    }


def _lent(array: npt.NDArray[Any]) -> bool:
    """Whether the array lies in memory of the arena, which has counted it already."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Loan)

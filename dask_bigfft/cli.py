"""The command line: ``dask-bigfft run IN OUT``, ``plan IN`` and ``calibrate``.

Exit status: 0 done, 1 failed while running, 2 an argument that is not allowed, 130 and 143
interrupted. Whatever happens is said in one line. Imports `runs`, `calibration`, `storage` and
`watch`; distributed only when a cluster is asked for.
"""

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config

from dask_bigfft import calibration, runs
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ScratchError, refuse
from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds, speed_rows
from dask_bigfft.storage import targets
from dask_bigfft.watch.display import Display, LocalProgress, TextDisplay

_THREADS, _SYNC = ("threads", "threaded"), ("sync", "synchronous", "single-threaded")
_CLUSTER = ("processes", "cluster")


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""


# --- arguments ------------------------------------------------------------------------------


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: need integers such as 0,1") from None


def _chunks(text: str) -> Any:
    """Return ``auto``, ``preserve``, a size, or lengths: ``256,256,-1``."""
    parts = [part.strip() for part in text.split(",")]
    found = [int(p) if re.fullmatch(r"-?\d+", p) else p for p in parts]
    return found[0] if len(found) == 1 else tuple(found)


def _order(text: str) -> str | tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    return parts[0] if len(parts) == 1 else parts


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text} is not allowed: need a number of at least 1")
    return int(text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="IN", type=Path, help="Zarr array or group, HDF5 or .npy file")
    add("--component", metavar="NAME", help="array within a Zarr group or HDF5 file")
    add("--kind", default="fftn", metavar="NAME", help="fft, ifft, rfftn, ... (default: fftn)")
    add("--axes", type=_integers, metavar="A,B", help="transformed axes (default: as numpy.fft)")
    add("--n", type=int, metavar="N", help="length of the transform, for kinds of one axis")
    add("--s", type=_integers, metavar="N,M", help="lengths of the transform by axis")
    add("--norm", metavar="NAME", help="backward (default), ortho or forward")
    add("--order", type=_order, metavar="NAME",
        help="order of the spectrum: natural (default) or transposed, or one per axis")
    add("--chunks", type=_chunks, metavar="N,M",
        help="chunks of the result: auto (default), preserve, lengths, or a size such as 64MiB")
    add("--memory-limit", metavar="SIZE", help="memory that one process may use, such as '4 GiB'")
    add("--variant", metavar="NAME", help="data movement: auto, dif, dit, stockham or pease")
    add("--kernel", metavar="NAME",
        help="FFT library: auto (default), scipy, mkl_fft, ducc0 or pyfftw")
    add("--verify", metavar="NAME", help="checks on the way: none (default), energy or checksum")
    add("--device", metavar="NAME",
        help="where it is computed: auto (default), cpu, gpu or hybrid (both at once)")
    add("--device-memory-limit", metavar="SIZE", help="memory of each GPU that may be used")
    add("--planner", metavar="NAME",
        help="how the plan is chosen: estimate (default), or measure (the best few are tried)")
    add("--block-size", metavar="SIZE",
        help="size of the blocks that are read (default: 4 to 128 MiB; whole Zarr chunks)")
    add("--scheduler", default="threads", metavar="NAME",
        help="threads (default), sync, processes (a cluster on this machine) or the address of a "
             "cluster, which has to see the files")
    add("--workers", type=_count, metavar="N", help="number of threads, or of processes")
    add("--traceback", action="store_true", help="show where an error comes from")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dask-bigfft", description="FFTs of arrays on disk that need not fit into memory."
    )
    version = sys.modules["dask_bigfft"].__version__
    parser.add_argument("--version", action="version", version=f"dask-bigfft {version}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run", help="transform an array into a Zarr array",
        description="Transform a Zarr array, HDF5 or .npy file into a Zarr array.",
    )
    _add_options(run)
    run.add_argument("output", metavar="OUT", type=Path, help="Zarr array to be made")
    run.add_argument("--overwrite", action="store_true",
                     help="replace OUT, once the new one is complete; where OUT is IN itself, the "
                          "source is then gone")
    run.add_argument("--scratch", metavar="DIR", type=Path,
                     help="folder for this run's scratch files; if the run is killed, --resume "
                          "goes on from them")
    run.add_argument("--resume", action="store_true",
                     help="go on with the run that --scratch is of, or begin one; nothing is done "
                          "where OUT is its result")
    run.add_argument("--checksum", action="store_true",
                     help="tell a changed source by its contents, too (reads it once more)")
    run.add_argument("--inner-chunks", metavar="N,M", type=_integers,
                     help="chunks of the result inside of shards (default: no shards)")
    run.add_argument("--missing-chunks", default="refuse", metavar="NAME",
                     help="Zarr chunks that have no file: refuse (default), or fill, which reads "
                          "them as the fill value")
    run.add_argument("--quiet", action="store_true", help="show no progress")
    run.set_defaults(command=_run)
    plan = commands.add_parser(
        "plan", help="say how an array would be transformed",
        description="Say how an array would be transformed, why, and what it would need.",
    )
    _add_options(plan)
    plan.set_defaults(command=_plan)
    speeds = commands.add_parser(
        "calibrate", help="measure this machine, so that plans know its speeds",
        description="Measure this machine (or a cluster's workers and network) for less than a "
                    "minute, and keep what was found: plans are made for it from then on.",
    )
    speeds.add_argument("--output", metavar="FILE", type=Path,
                        help="where the profile goes, in a folder that exists (default: the user's "
                             "cache directory)")
    speeds.add_argument("--scheduler", default="threads", metavar="NAME",
                        help="threads (default), processes, or the address of a cluster")
    speeds.add_argument("--workers", type=_count, metavar="N",
                        help="number of threads, or of processes")
    speeds.add_argument("--traceback", action="store_true", help="show where an error comes from")
    speeds.set_defaults(command=_calibrate)
    return parser


def _joined(argv: Sequence[str]) -> list[str]:
    """Return arguments with values that begin with a minus, such as ``-2,-1``, tied to options."""
    found: list[str] = []
    for word in argv:
        if found and re.fullmatch(r"--\w+", found[-1]) and re.fullmatch(r"-\d+(,-?\d+)*", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


# --- where it runs --------------------------------------------------------------------------


@dataclass
class _Place:
    """Where tasks run, and how to make them stop."""

    pool: ThreadPoolExecutor | None = None
    client: Any = None
    cluster: Any = None

    def store(self, result: da.Array, target: Any, display: Display | None) -> None:
        """Write a result, showing how far it is; when it fails, nothing runs any more."""
        stored: Any = da.store(result, target, lock=False, compute=False)
        try:
            if self.client is not None:
                from distributed import futures_of

                from dask_bigfft.cluster.follow import follow

                follow(self.client, lambda: futures_of(self.client.persist(stored)), display)
            elif display is None:
                stored.compute()
            else:
                with LocalProgress(display):
                    stored.compute()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Wait for the tasks that run, and start no others."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        if self.client is not None:
            self.client.close()
        if self.cluster is not None:
            self.cluster.close()


@contextlib.contextmanager
def _place(scheduler: str, workers: int | None) -> Iterator[_Place]:
    """Give the place where the tasks run, as dask's settings and the planner then see it."""
    if scheduler in _SYNC:
        with dask.config.set(scheduler="sync"):
            yield _Place()
    elif scheduler in _THREADS:
        count = workers or os.cpu_count() or 1
        pool = ThreadPoolExecutor(count, thread_name_prefix="bigfft")
        with pool, dask.config.set(scheduler="threads", pool=pool, num_workers=count):
            yield _Place(pool)
    elif scheduler in _CLUSTER:
        yield from _local_cluster(workers)
    elif "://" in scheduler:
        yield from _connected(scheduler)
    else:
        refuse("scheduler", scheduler, "threads, sync, processes, or an address such as "
               "tcp://127.0.0.1:8786")


def _local_cluster(workers: int | None) -> Iterator[_Place]:
    from distributed import Client, LocalCluster

    threads = max(1, (os.cpu_count() or 1) // workers) if workers else None
    # Ctrl-C reaches a terminal's every process, and workers that it kills cannot stop in order:
    # those that are started meanwhile go on ignoring it.
    with _handled(signal.SIGINT, signal.SIG_IGN):
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=threads, silence_logs="CRITICAL",
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},  # any free port
        )
    with cluster, Client(cluster) as client:
        yield _Place(client=client, cluster=cluster)


@contextlib.contextmanager
def _handled(number: int, handler: Any) -> Iterator[None]:
    """Let a handler have a signal for a while, where that can be done."""
    try:
        before = signal.signal(number, handler)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(number, before)


def _connected(address: str) -> Iterator[_Place]:
    from distributed import Client

    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        refuse("scheduler", address, f"the address of a scheduler that answers ({error})")
    with client:
        yield _Place(client=client)


# --- what is asked --------------------------------------------------------------------------


#: Options that are keywords of transforms.
_OPTIONS = ("order", "chunks", "memory_limit", "variant", "kernel", "verify", "device",
            "device_memory_limit", "planner")


def _asked(args: argparse.Namespace) -> runs.Asked:
    options = {name: getattr(args, name) for name in _OPTIONS}
    return runs.Asked(
        args.input, getattr(args, "output", args.input), args.kind, args.component, _axes(args),
        args.norm, options, args.block_size, getattr(args, "inner_chunks", None),
        getattr(args, "missing_chunks", "refuse"),
    )


def _axes(args: argparse.Namespace) -> dict[str, Any]:
    """Return axes and lengths as the kind of transform takes them."""
    axes, kind = args.axes, args.kind
    if kind.endswith(("2", "n")):
        if args.n is not None:
            refuse("n", args.n, f"--s for {kind}")
        if axes is None and kind.endswith("2"):
            axes = (-2, -1)
        if axes is None and args.s is not None:
            axes = tuple(range(-len(args.s), 0))
        return {"s": args.s, "axes": axes}
    if args.s is not None:
        refuse("s", args.s, f"--n for {kind}")
    if axes is not None and len(axes) != 1:
        refuse("axes", axes, f"one axis for {kind}")
    return {"n": args.n, "axis": None if axes is None else axes[0]}


# --- commands -------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> None:
    asked = _asked(args)
    with _place(args.scheduler, args.workers):
        print(runs.planned_input(asked)[1].explain())


def _name_leftovers(path: Path) -> None:
    """Say what runs that were killed have left."""
    if not path.parent.is_dir():
        return
    for left in targets.leftovers(path):
        print(f"note: {left} is what a killed run has left; it may be deleted", file=sys.stderr)
    for left in targets.leftovers(path, targets.REPLACED):
        print(f"note: {left} was {path} until a run was killed that replaced it", file=sys.stderr)


def _run(args: argparse.Namespace) -> None:
    _name_leftovers(args.output)
    with _place(args.scheduler, args.workers) as place:
        done = runs.execute(
            _asked(args), lambda result, sink: place.store(result, sink, _display(args)),
            scratch=args.scratch, resume=args.resume, overwrite=args.overwrite,
            checksum=args.checksum,
        )
    _report(done)


def _calibrate(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    with _place(args.scheduler, args.workers) as place:
        profile = calibration.calibrate(place.client, args.output)
    print(f"{profile.name}, measured in {human_seconds(time.perf_counter() - started)}")
    rows = speed_rows(profile)
    width = 2 + max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:{width}}{value}")


def _display(args: argparse.Namespace) -> Display | None:
    return None if args.quiet else TextDisplay(sys.stderr)


def _report(done: runs.Done) -> None:
    if done.already:
        print(f"{done.path}: already done, {done.plan.spec.name} of {done.plan.spec.shape} "
              f"{done.dtype}; nothing was computed or changed")
        return
    speed = human_count((done.read + done.written) / done.seconds, "B/s")
    spec, count = done.plan.spec, len(done.plan.rounds)
    print(
        f"{done.path}: {spec.name} of {spec.shape} {done.dtype} in {count} "
        f"round{'' if count == 1 else 's'} {done.plan.notation}; read {human_bytes(done.read)}, "
        f"wrote {human_bytes(done.written)} in {human_seconds(done.seconds)} ({speed})"
    )


# --- what goes wrong ------------------------------------------------------------------------

#: Arguments of `run` and `calibrate` that have another name here.
_TYPED = {"source": "IN", "destination": "OUT", "path": "--output"}


def _failure(error: BaseException, kept: str) -> tuple[int, str]:
    """Return the exit status and the line that say what happened, and what is `kept` of it."""
    if isinstance(error, Terminated):
        return 143, f"ended by a signal; {kept}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {kept}"
    if isinstance(error, ArgumentError | ArgumentTypeError):
        return 2, _as_typed(str(error))
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, ScratchError):
        return 1, f"{text}; {kept}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 1, f"the disk is full; {kept} ({text})"
    if isinstance(error, MemoryError):
        return 1, f"out of memory; try --memory-limit ({error})"
    return 1, text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def _as_typed(text: str) -> str:
    """Return what is said of an argument, by its name on the command line.

    >>> _as_typed("`destination`='b' is not allowed: need another path, or overwrite=True")
    "`OUT`='b' is not allowed: need another path, or --overwrite"
    """
    named = re.sub(f"^`({'|'.join(_TYPED)})`=", lambda found: f"`{_TYPED[found[1]]}`=", text)
    return re.sub(r"\b(overwrite|resume)=True", r"--\1", named)


def _kept(args: argparse.Namespace) -> str:
    """Return what is left of a run that has failed."""
    scratch = getattr(args, "scratch", None)
    if scratch is None or not runs.has_begun(scratch):
        return "nothing was written"
    return f"{scratch} keeps what is done: --resume goes on from there"


def _terminate(number: int, frame: object) -> None:
    """Turn a request to end into an exception."""
    raise Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments, by default those of the process.
    """
    args = _parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        with _handled(signal.SIGTERM, _terminate):
            args.command(args)
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if args.traceback:
            raise
        status, text = _failure(error, _kept(args))
        print(f"dask-bigfft: error: {text}", file=sys.stderr)
        return status
    return 0

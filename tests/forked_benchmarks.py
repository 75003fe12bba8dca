"""Benchmark programs in processes that are forked from one that has imported everything.

A program starts a process for each contestant, and imports take most of the time of a tiny one.
"""

import contextlib
import importlib
import io
import json
import traceback
from multiprocessing import Pipe

import dask

from benchmarks import core
from dask_bigfft.testing.clusters import started

#: Setting by which workers of a cluster are forked, too.
FORKED_WORKERS = {"distributed.worker.multiprocessing-method": "forkserver"}


def run_in_forks(program, arguments):
    """Run a program; fail with its output if its exit status is not 0."""
    status, output = answer_of(main_in_fork, program, arguments)
    assert status == 0, output


def answer_of(
    function,
    *arguments,
    group=None,
    seconds=240.0,
):
    """Return what a function sends from a forked process, which is in a memory cgroup or none."""
    connection, connection_of_child = Pipe()
    process = started(when_told, connection_of_child, function, arguments)
    connection_of_child.close()
    with connection:
        if group is not None:
            (group.folder / "cgroup.procs").write_text(str(process.pid))
        connection.send(None)
        assert connection.poll(seconds), f"no answer within {seconds:.0f} s"
        answer = connection.recv()
    process.join()
    return answer


def when_told(connection, function, arguments):
    """Call a function once the parent says so, and send its result."""
    connection.recv()
    core.call = call_in_fork
    with dask.config.set(FORKED_WORKERS):
        connection.send(function(*arguments))


def main_in_fork(program, arguments):
    """Return the exit status and the output of a program."""
    module = importlib.import_module(f"benchmarks.{program}")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            status = module.main(arguments)
        except Exception:
            traceback.print_exc()
            status = 1
    return status, output.getvalue()


def call_in_fork(
    function,
    *arguments,
    memory="freed",
    limit=0,
    seconds=240.0,
):
    """Return the result of a program's function, as `core.call` does.

    What the process does with freed `memory` is that of its parent.
    """
    with core.memory_cgroup(limit) if limit else contextlib.nullcontext() as group:
        answer = answer_of(
            json_of_call,
            function.__module__,
            function.__name__,
            json.dumps(arguments, default=str),
            group=group,
            seconds=seconds,
        )
    if limit:
        answer["cgroup"] = group is not None
    return answer


def json_of_call(module, name, arguments):
    """Return the result of a function with arguments in JSON, as JSON has it, or its error."""
    function = getattr(importlib.import_module(module), name)
    try:
        return json.loads(json.dumps(function(*json.loads(arguments))))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}

"""Runs a function in a process, and kills it above a memory limit, as a batch system does."""

import multiprocessing
import time
from typing import NamedTuple

import psutil

#: Seconds between two looks at the process.
EVERY = 0.01


class Watched(NamedTuple):
    """What became of a process.

    Attributes: its end ("finished", "failed", "out of memory" or "killed"), seconds since its
    function was called and bytes of memory at these times, and the result of its function.
    """

    end: str
    seconds: list
    memory: list
    result: object


def watched(function, *arguments, limit, until=None):
    """Run a function in a new process; kill it above some bytes, or once `until()` is true."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, *arguments))
    process.start()
    sender.close()
    _received(receiver)  # imports are over
    started = time.perf_counter()
    handle = psutil.Process(process.pid)
    seconds = []
    memory = []
    end = ""
    result = None
    while process.is_alive():
        if result is None and receiver.poll():
            result = _received(receiver)
        try:
            rss = handle.memory_info().rss
        except psutil.NoSuchProcess:
            break
        if rss == 0:  # it is ending
            continue
        memory.append(rss)
        seconds.append(time.perf_counter() - started)
        if memory[-1] > limit:
            end = "out of memory"
            process.kill()
        elif until is not None and until():
            end = "killed"
            process.kill()
        time.sleep(EVERY)
    process.join()
    if result is None and receiver.poll():
        result = _received(receiver)
    end = end or ("finished" if process.exitcode == 0 else "failed")
    return Watched(end, seconds, memory, result)


def _send(sender, function, *arguments):
    """Send a word at the beginning, and the result of a function."""
    sender.send("begun")
    sender.send(function(*arguments))


def _received(receiver):
    """Return what a process has sent, None if it ended before."""
    try:
        return receiver.recv()
    except EOFError:
        return None

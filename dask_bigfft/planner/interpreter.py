"""How long threads wait for the interpreter, of which a process has one.

A thread works on a block without it, then Python needs it: for the block, its shards and tiles, and
to hand out the next task. Whoever finds it taken waits. That is a closed queue with one server,
whose mean values follow exactly from those with one thread less (Reiser and Lavenberg, J. ACM 27,
1980): with few threads hardly anyone waits, with many all of them take what Python takes::

    R(n) = S (1 + Q(n - 1)),   X(n) = n / (Z + R(n)),   Q(n) = X(n) R(n)

S is what Python takes for a block, Z what is done without it, X blocks per second, Q how many
threads need the interpreter.

Where threads wait for it all the time it takes longer: they sleep, and have to be woken while
nobody works; what Python needs has left the caches; and threads share cores. On 16 threads of a
virtual machine calls of 85 us took 280 us each so. Once begun that goes on by itself as long as the
threads need more than all the time there is, Python being so slow. It begins where they need a good
deal more: 16 threads that would have needed it for 2.1 times the time waited so, and 8 that would
have for 2.0 times, while 8 that would have for 1.2 times, and 4 for 0.8 times, did not. Between
`LEAST_CROWDED` and `MOST_CROWDED` the model goes from one to the other.

Pure: imports nothing of the package.
"""

__all__ = ["block_seconds"]

#: Threads that are reckoned with at most: beyond them nothing changes but the time this takes.
MOST = 256

#: How many times as long as there is threads need the interpreter, in company, between which it
#: becomes slow.
LEAST_CROWDED, MOST_CROWDED = 1.4, 1.9


def block_seconds(threads: int, free: float, python: float, company: float = 1.0) -> float:
    """Return the seconds that each of some threads takes for a block, waiting included.

    Parameters
    ----------
    threads : int
        Threads of a process that work on blocks.
    free : float
        Seconds for a block without the interpreter.
    python : float
        Seconds for a block with it.
    company : float
        How many times as long it takes where others wait for it all the time.

    Examples
    --------
    >>> block_seconds(1, 3.0, 1.0), block_seconds(2, 3.0, 1.0), round(block_seconds(64, 3.0, 1.0))
    (4.0, 4.25, 64)
    >>> block_seconds(2, 3.0, 1.0, company=3.0), round(block_seconds(64, 3.0, 1.0, company=3.0))
    (4.25, 192)
    """
    if python <= 0:
        return free
    slow = company * python
    needed = threads * slow / (free + slow)
    crowded = min(1.0, max(0.0, (needed - LEAST_CROWDED) / (MOST_CROWDED - LEAST_CROWDED)))
    return _queued(threads, free, python + (slow - python) * crowded)


def _queued(threads: int, free: float, python: float) -> float:
    """The mean time around a closed queue with one server."""
    needed, each = 0.0, free + python
    for count in range(1, min(threads, MOST) + 1):
        response = python * (1 + needed)
        each = free + response
        needed = count * response / each
    return max(each, threads * python)

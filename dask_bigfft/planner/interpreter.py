"""How long threads wait for the interpreter, of which a process has one.

A thread works on a block without it, then Python needs it: for the block, its shards and tiles, and
to hand out the next task. Whoever finds it taken waits. That is a closed queue with one server,
whose mean values follow exactly from those with one thread less (Reiser and Lavenberg, J. ACM 27,
1980): with few threads hardly anyone waits, with many all of them take what Python takes::

    R(n) = S (1 + Q(n - 1)),   X(n) = n / (Z + R(n)),   Q(n) = X(n) R(n)

S is what Python takes for a block, Z what is done without it, X blocks per second, Q how many
threads need the interpreter.

Pure: imports nothing of the package.
"""

__all__ = ["block_seconds"]

#: Threads that are reckoned with at most: beyond them nothing changes but the time this takes.
MOST = 256


def block_seconds(threads: int, free: float, python: float) -> float:
    """Return the seconds that each of some threads takes for a block, waiting included.

    Parameters
    ----------
    threads : int
        Threads of a process that work on blocks.
    free : float
        Seconds for a block without the interpreter.
    python : float
        Seconds for a block with it.

    Examples
    --------
    >>> block_seconds(1, 3.0, 1.0), block_seconds(2, 3.0, 1.0), round(block_seconds(64, 3.0, 1.0))
    (4.0, 4.25, 64)
    """
    if python <= 0:
        return free
    needed, each = 0.0, free + python
    for count in range(1, min(threads, MOST) + 1):
        response = python * (1 + needed)
        each = free + response
        needed = count * response / each
    return max(each, threads * python)

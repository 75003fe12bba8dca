"""How long threads wait for the interpreter, of which a process has one.

A thread works on a block without it, then Python needs it: for the block, its shards and tiles, and
to hand out the next task. Whoever finds it taken waits. That is a closed queue with one server,
whose mean values follow exactly from those with one thread less (Reiser and Lavenberg, J. ACM 27,
1980): with few threads hardly anyone waits, with many all of them take what Python takes::

    R(n) = S (1 + Q(n - 1)),   X(n) = n / (Z + R(n)),   Q(n) = X(n) R(n)

S is what Python takes for a block, Z what is done without it, X blocks per second, Q how many
threads need the interpreter.

Where others wait for it, it takes longer: each copy and each FFT is done without it, and whoever
comes back from one sleeps until it is handed on, and is woken while nobody has it. So S is longer
while two or more need it. Then states of the queue are added up, in each of which k threads
need it::

    p(k + 1) = p(k) (n - k) S(k + 1) / Z,   X = sum of p(k) / S(k), over that of p(k)

which is the former where S is the same for all k.

Pure: imports nothing of the package.
"""

__all__ = ["block_seconds"]

#: Threads that are reckoned with at most: beyond them nothing changes but the time this takes.
MOST = 256

#: Above it sums are made smaller, so that they stay finite.
LARGE = 1e100


def block_seconds(threads: int, free: float, python: float, wakes: float = 0.0) -> float:
    """Return the seconds that each of some threads takes for a block, waiting included.

    Parameters
    ----------
    threads : int
        Threads of a process that work on blocks.
    free : float
        Seconds for a block without the interpreter.
    python : float
        Seconds for a block with it.
    wakes : float
        Seconds by which that is longer while others wait for it.

    Examples
    --------
    >>> block_seconds(1, 3.0, 1.0), block_seconds(2, 3.0, 1.0), round(block_seconds(64, 3.0, 1.0))
    (4.0, 4.25, 64)
    >>> block_seconds(1, 3.0, 1.0, wakes=1.0), round(block_seconds(64, 3.0, 1.0, wakes=1.0))
    (4.0, 128)
    """
    if python <= 0:
        return free
    count = min(threads, MOST)
    slow = python + (wakes if count > 1 else 0.0)
    if free <= 0:
        return threads * slow
    state, states, done = 1.0, 1.0, 0.0
    for needed in range(1, count + 1):
        service = python if needed == 1 else slow
        state *= (count - needed + 1) * service / free
        states += state
        done += state / service
        if states > LARGE:
            state, states, done = state / LARGE, states / LARGE, done / LARGE
    return max(count * states / done, threads * python)

"""From a plan to a dask graph, and the functions that its tasks run.

::

    layer (in the graph; makes its tasks when asked) -> build (all tasks) -> weave (of an exchange)
        shuffles (of p2p), inside (blocks written back), wide (several at a time)
        carriers (by where the graph becomes tasks)
        names, groups (of blocks that exchange anything), known (rounds that plans share)
    run (a plan where it is executed), of which a task runs a function
        tasks, blocks (that come in), filters (Bluestein's), spare (idle threads)
        disk (scratch files) and holding (how long these stay)
        paused (a watch on workers that run tasks)
    results (one array after the last round), cutting (chunks merged, or cut, before the first one)
    dask_private (every name of dask's that is not public)
"""

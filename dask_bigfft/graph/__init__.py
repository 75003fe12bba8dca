"""From a plan to a dask graph, and the functions that its tasks run.

::

    layer (in the graph; makes its tasks when asked) -> build (all tasks, exchange by exchange)
        carriers (by where the graph becomes tasks; names of tasks, groups of blocks that
                  exchange anything, what p2p needs)
    tasks (a plan where it is executed, and what its tasks run)
        in_place (memory that rounds overwrite, and one array after the last round)
        disk (scratch files, and how long these stay)
        paused (a watch on workers that run tasks)
    dask_private (every name of dask's that is not public)
"""

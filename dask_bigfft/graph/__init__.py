"""From a plan to a dask graph, and the functions that its tasks run.

::

    layer (in the graph; builds its tasks on demand) -> build (all tasks, exchange by exchange)
        carriers (choice of the carrier, names of tasks, connected groups of blocks, p2p)
    tasks (a plan where it is executed, and the functions of its tasks)
        in_place (shared buffers that rounds overwrite, and the assembly of the result)
        disk (scratch files, and how long these stay)
        paused (a watch on workers that run tasks)
    dask_private (every name of dask's that is not public)
"""

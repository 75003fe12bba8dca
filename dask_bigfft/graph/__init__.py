"""From a plan to a dask graph.

::

    layer (in the graph; builds its tasks on demand) -> build (all tasks, stage by stage)
        cutting (blocks that are merged before a plan, or cut after it)
        assembly (the blocks of a result as one array)
    captured (element-wise expressions of a spectrum, read from a graph)
"""

"""From a plan to a dask graph, and the functions that its tasks run."""

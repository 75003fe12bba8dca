"""From a call to a lazy array.

`arguments` parses what a user passes and chooses the plan. `calls` normalises a call, asks for its
plan, and returns the dask array; the public modules of transforms use it.
"""

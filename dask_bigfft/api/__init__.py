"""From a call to a lazy array.

::

    calls        normalises a call, and returns the dask array
    captures     makes one plan of a transform, an element-wise expression, and the transform back
    plans        makes a request of the arguments, and gives it to the strategies of `planner`
    arguments    parses each argument
    keywords     refuses keywords that a function does not have
    slicing      makes transforms of slices of a result, where arrays are expressions
    rows         makes results for slices of an array of slices of a function's result
    kinds        lets functions that compute with arrays of dask take those of dask-array
"""

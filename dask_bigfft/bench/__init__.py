"""The benchmark program: ``python -m dask_bigfft.bench``.

Problems have names, peers run in turn with ours in one process, and every answer is checked. What
is timed: the graph is built once and its chunks lie in memory; ``persist()`` leaves the result in
blocks, ``compute()`` assembles it. Peers make their plans outside the clock and write into memory
that exists. ``--help`` says how to choose; `report` describes the JSON that comes out.

================  ==============================================================
`problems`        what is transformed
`data`            its numbers in memory, and how an answer is checked
`peers`           who transforms them: our kernels and other libraries
`measure`         warm rounds in one process, and cold runs, each in a new one
`machine`         what it runs on and how fast that is
`targets`         what is wanted, and whether it was reached
`report`          JSON, table and picture
`convolution`     a program of its own: convolutions, time and memory
`outofcore`       a program of its own: from file to file, larger than memory
`outofcore_data`  its problems, and whether answers are right
`cgroup`          a limit of memory that counts the page cache
`peaks`           the most memory that a process has used
`model`           a program of its own: forecasts against times, on `model_problems`
`sweep`           plans of a problem that are all run
================  ==============================================================
"""

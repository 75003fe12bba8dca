"""The benchmark program: ``python -m dask_bigfft.bench``.

Problems have names, peers run in turn with ours in one process, and every answer is checked. What
is timed: the graph is built once and its chunks lie in memory; ``persist()`` leaves the result in
blocks, ``compute()`` assembles it. Peers make their plans outside the clock and write into memory
that exists. ``--help`` says how to choose; `report` describes the JSON that comes out.

::

    the program      problems (what is transformed) -> data (its numbers, and how an answer is
                     checked) -> peers (by whom) -> measure (warm rounds, cold runs), children
                     (in processes of their own) -> report <- targets (what is wanted)
                     machine (what it runs on), peaks (the most memory that a process has used)
    on cards         gpu: gpu_bench (what its parts share), gpu_data, gpu_rounds, gpu_columns,
                     gpu_transforms, gpu_peers, gpu_report; gpu_heard (what is copied) ->
                     gpu_floor (how fast that can be); gpu_hybrid, gpu_routes (between two cards)

Programs of their own: `convolution`; `outofcore` (from file to file, larger than memory), with
`outofcore_data` and `cgroup` (a limit that counts the page cache); `clusters`; `verification`;
`tuning`; `paper`; `large` (many threads), and `tiles` (with tiles of several sizes); `model`
(forecasts against times, on `model_problems`) and `sweep` (plans of a problem that are all run).
"""

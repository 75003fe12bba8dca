"""Baselines: what the package plans, computes and shows, before a large change of its code.

::

    requests (what is asked, drawn by number) -> environments (machines that are asked)
        -> records (neutral form of plans and of task graphs)      data/plans.json.gz, texts.json.gz
    bits (digests of small results, for each FFT library)          data/bits.json
    surface (public names, settings, metrics, command line)        data/surface.json
    begun_run (a run that was interrupted)                         data/begun_run/
    compare (differences, readable) <- __main__ (make, check, compare)

``python -m tests.baselines make`` records all of it anew.
"""

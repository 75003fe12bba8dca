"""Benchmarks of dask_bigfft: ``python -m benchmarks PROGRAM``; ``--help`` lists the programs."""

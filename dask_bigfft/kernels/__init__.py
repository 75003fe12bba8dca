"""One round on one block or tile: the FFT libraries, and the CPU and GPU kernels built on them.

::

    a block comes    views (of memory, of shards where they are) -> composite, stacked (for GPUs)
    a round          loop (over tiles of a block); twiddle
    checked          checks, sums
    libraries        libraries (a class each), wisdom (the fastest here)
    copies           copies -> copy_loops, streaming (around the caches), copy_queue (for the ring)
    loops            compiled (the decorator), checksums (of bytes)
    cosines          cosines (factors before and after an FFT)
    CUDA             gpu_source (of kernels), gpu_factors, gpu_plans (calls of cuFFT)
"""

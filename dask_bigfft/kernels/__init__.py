"""One round on one block or tile: the FFT libraries, and the CPU kernels built on them.

::

    a block comes    views (of memory, of shards where they are) -> composite, stacked (for GPUs)
    a round          loop (over tiles of a block); twiddle
    checked          checks, sums
    libraries        libraries (a class each), wisdom (the fastest here)
    copies           copies -> copy_loops
    loops            compiled (the decorator), checksums (of bytes)
    cosines          cosines (factors before and after an FFT)
"""

"""One round on one block or tile: the FFT libraries, and the CPU kernels built on them.

::

    a block comes    views (of memory, of shards where they are) -> composite (for GPUs)
    a round          loop (over tiles of a block); twiddle (exact phases and factors)
    checked          checks (sums before and after, and checksums of bytes)
    libraries        libraries (a class each, and which is the fastest here)
    copies           copies (tables of strided copies, and the loops that do them)
    loops            compiled (the decorator)
"""

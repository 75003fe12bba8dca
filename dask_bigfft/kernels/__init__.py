"""One round on one block or tile: the FFT libraries, and the CPU kernels built on them.

::

    input            views (of memory and of segments) -> segmented (for GPUs)
    a round          loop (over tiles of a block); twiddle (exact phases and factors); transfer
                     (transfer functions of operators) -> products (with their values) and
                     elementwise (other expressions of a spectrum); indices (of digits at places)
    verification     checks (sums before and after, and checksums of bytes)
    libraries        libraries (a class for each) -> fastest (the choice by timing)
    copies           copies (tables of strided copies, and the loops that do them)
    loops            compiled (the decorator, and the cache of machine code), compiler (numba);
                     multi_index (an index that loops advance)
"""

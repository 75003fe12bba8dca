"""One round on one block or piece: the FFT libraries, and the CPU and GPU kernels built on them.

::

    a block comes    composite (as shards where they lie), stacked, lying (in common memory)
                     -> incoming (whole or by tiles), fresh (memory to fill)
    a round          cpu (on a block) -> on_tile; calls (what is asked of a library), twiddle;
                     in_place (as devices lie)
    checked          verify: checks, sums, weights, comparing
    libraries        libraries (plugs), backends (how each is called), fftw_plans,
                     answers (are they right here?), wisdom (the fastest here)
    copies           copy -> copy_loops, streaming (around the caches), copy_queue (for the ring);
                     warming (when they are compiled)
    loops            compiled (the decorator), squares, checksums (of bytes)
    cosines          cosines (factors before and after an FFT)
    CUDA             gpu_source (of kernels), gpu_factors, gpu_plans (calls of cuFFT)
"""

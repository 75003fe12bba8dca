"""GPUs: rounds are done tile by tile on a device while blocks stay in host memory.

::

    where            dispatch (device or CPU) -> find (the devices of this process, and leases)
                     work_sharing (blocks that CPU and devices share)
                     on_gpu (blocks that are on a GPU already, and copies between GPUs)
    what is asked    jobs (a round on a block, and the block)
    what is done     tile_work (for each tile of a tile plan), half_spectrum -> operations
    doing it         engine (memory, FFT plans, what to do without memory)
                     -> executor (the loop over tiles; what a device is)
    CuPy             cuda (is there one? what is pinned?)
                     cupy_gpu (a device; host copies) -> ring (blocks that are not pinned)
                     kernels (copies that multiply), ffts (calls and plans of cuFFT)

`testing.simulated` has a device made of NumPy, which `find.use` registers.
"""

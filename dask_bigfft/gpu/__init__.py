"""GPUs: rounds are done tile by tile on a device while blocks stay in host memory.

::

    where          dispatch (device or CPU; the devices of this process, and leases)
                   work_sharing (blocks that CPU and devices share)
                   on_gpu (blocks that are on a GPU already, and copies between GPUs)
    what is done   operations (FFTs, factors, copies) -> tile_work (those of each tile of a plan)
    doing it       engine (a round on a block: memory, FFT plans, what to do without memory)
                   executor (what a device is; the loop over tiles)
    CuPy           cuda (is there one? what is pinned?)
                   cupy_gpu (a device; host copies) -> ring (blocks that are not pinned)
                   kernels (copies that multiply), ffts (calls and plans of cuFFT)

`testing.simulated` has a device made of NumPy, which `dispatch.use` registers.
"""

"""GPUs: rounds done tile by tile on a device, for blocks in host memory.

::

    where          dispatch (device or CPU, devices of this process, leases)
                   work_sharing (hybrid rounds on CPU and devices)
                   on_gpu (blocks that are CuPy arrays)
    exchanges      gather (target blocks on GPUs) -> peers (transports) -> links (copies)
                   row_copies (many strided copies in one launch)
    descriptions   operations (FFTs, factors, copies) -> tile_work (each tile of a plan)
    execution      engine (rounds on blocks: memory, FFT plans, recovery)
                   executor (device protocol, pipeline of tiles)
    CuPy           cuda (available GPUs, pinned memory)
                   cupy_gpu (device, host copies) -> ring (pageable memory) -> copy_threads
                   kernels (copies that multiply)
    cuFFT          batches (plans of CuPy) -> work_areas (their memory, self-test)
                   -> ffts (calls and plans of the FFTs of an array)

`testing.simulated` has a device that computes with NumPy, registered by `dispatch.use`.
"""

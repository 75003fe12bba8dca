"""The card: rounds worked piece by piece on a device while blocks stay in host memory.

::

    where            dispatch (device or CPU) -> find (the devices), leases (who may), engine
                     work_sharing (blocks that CPU and devices share)
                     on_card (blocks that are on a card already), peers (several GPUs)
    what is asked    jobs (a round on a block) -> problem -> pieces (all of it, as a plan)
    the plan         schedule (which crossings) -> crossings (one of them) -> extents (its pieces)
                     ragged (half spectra), swaps (natural order), limits (of memory)
                     work (on one piece) -> factors; piecework (what is written down of it)
    doing it         fitting (memory, FFT plans) -> pipeline (copies and FFTs at a time) -> slots
                     convolving (lengths with nothing to split), busy (how long it had work)
    devices          protocol (what one is), operations (what it is asked), transfer (views' ways)
    CUDA             cuda (is there one?), cupy_device, cuda_copies, cuda_planes, cuda_operations,
                     cuda_kernels, cuda_pins; ring and copiers (blocks that are not pinned)
    made of NumPy    simulated, simulated_streams, simulated_ring, numpy_operations
"""

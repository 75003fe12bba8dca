"""One round on one block or piece: the FFT libraries, and the CPU and GPU kernels built on them."""

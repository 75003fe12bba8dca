"""``python -m benchmarks PROGRAM [argument ...]``; each program has ``--help``."""

import importlib
import json
import os
import sys

#: Programs by name and what they measure.
PROGRAMS = {
    "guard": "two source trees in alternating pairs of processes",
    "memory": "data in memory, against other FFT libraries",
    "small": "small calls, against dask.array",
    "first_calls": "first calls of fresh processes, against scipy.fft and dask.array",
    "out_of_core": "arrays larger than memory, against a plain copy",
    "bands": "a band of a spectrum, against reading and the first round",
    "limited": "time and peak memory against size, in 1 GiB, against dask.array",
    "clusters": "first tasks, tiny blocks and p2p on distributed",
    "convolution": "convolutions of long arrays",
    "operators": "filters in memory, against two plans and scipy.fft",
    "holes": "masked convolutions and filled gaps, against plain filters and astropy",
    "slices": "short-time transforms, against copies, memory and map_overlap",
    "verification": "cost of verification",
    "forecasts": "forecasts, the plan ranked first, and the tuner",
    "gpu": "data in host memory on a GPU",
    "on_gpus": "data that lives on GPUs, against CuPy, torch and NCCL",
    "pages": "result pages and the figures of README and guide",
}


#: Variables that limit the threads of FFT and BLAS libraries. Users have not set them, so what is
#: measured has not either. They go before a program imports NumPy, which reads them.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(argv: list[str]) -> int:
    for name in THREAD_VARIABLES:
        os.environ.pop(name, None)
    if argv[:1] == ["--call"]:  # by `core.call`
        program = importlib.import_module(f"benchmarks.{argv[1]}")
        print(json.dumps(getattr(program, argv[2])(*json.loads(argv[3]))))
        return 0
    if not argv or argv[0] not in PROGRAMS:
        print(__doc__, *(f"  {name:14} {what}" for name, what in PROGRAMS.items()), sep="\n")
        return int(argv[:1] not in ([], ["--help"]))
    return int(importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

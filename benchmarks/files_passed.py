"""Source files of the package that one transform passes: in its tasks, and in all.

What is counted are files of which a function written in Python is called, from the call of the
transform to its values, after the same transform has run once. The array is cut into two rounds.
The GPU is simulated: its own file and what that calls do not count. On a real GPU, `cupy_gpu`,
`cuda`, `kernels` and `ffts` are passed in its place.
"""

import argparse
import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import dask
import dask.array as da
import numpy as np

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.testing.devices import simulated_devices

PACKAGE = Path(dask_bigfft.__file__).parent

#: Files that may be passed at most, in tasks and in all; on a GPU in tasks alone.
LIMITS = {"cpu": (12, 26), "gpu": (15, None)}

ROUNDS = [{0: 64}, {0: 64}]


def passed(device: str) -> tuple[list[str], list[str]]:
    """Return the files that a transform on a device passes in its tasks, and those in all."""
    values = np.random.default_rng(0).standard_normal(4096) + 0j
    x = da.from_array(values, chunks=512)
    found: dict[str, set[str]] = {"tasks": set(), "call": set()}

    def listen(place: str) -> None:
        def called(frame: FrameType, event: str, _: object) -> None:
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            if event == "call" and not Path(caller).is_relative_to(PACKAGE / "testing"):
                found[place].add(frame.f_code.co_filename)

        sys.setprofile(called)

    def computed() -> np.ndarray:
        return fft.fft(x, rounds=ROUNDS, device=device, kernel="scipy").compute()

    with ThreadPoolExecutor(2) as pool, dask.config.set(scheduler="threads", pool=pool):
        computed()
    heard = ThreadPoolExecutor(2, initializer=listen, initargs=("tasks",))
    with heard as pool, dask.config.set(scheduler="threads", pool=pool):
        listen("call")
        try:
            spectrum = computed()
        finally:
            sys.setprofile(None)
    expected = np.fft.fft(values)
    assert np.linalg.norm(spectrum - expected) < 1e-13 * np.linalg.norm(expected)

    def named(paths: set[str]) -> list[str]:
        inside = (Path(path) for path in paths if Path(path).is_relative_to(PACKAGE))
        names = (str(path.relative_to(PACKAGE)) for path in inside)
        return sorted(name for name in names if not name.startswith("testing/"))

    return named(found["tasks"]), named(found["tasks"] | found["call"])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("files_passed", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where there are more files")
    parser.add_argument("--names", action="store_true", help="list the files")
    options, over = parser.parse_args(argv), False
    for device, (most_tasks, most) in LIMITS.items():
        here = simulated_devices(1 << 20) if device == "gpu" else contextlib.nullcontext()
        with here:
            tasks, every = passed(device)
        row = {"device": device, "tasks": len(tasks), "all": len(every)}
        print(json.dumps(row | ({"in_tasks": tasks, "files": every} if options.names else {})))
        over |= len(tasks) > most_tasks or (most is not None and len(every) > most)
    return int(options.check and over)

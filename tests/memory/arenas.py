"""What tests of the arena share: a process of its own, and pressure that is set."""

import subprocess
import sys
from pathlib import Path

import dask_bigfft.memory as memory

MIB = 1024**2
PACKAGE_PARENT = Path(memory.__file__).parents[2]


def address(block):
    return block.__array_interface__["data"][0]


def run_python(program):
    """Run `program` in an interpreter of its own; fail on any warning or traceback."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        cwd=PACKAGE_PARENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


class Pressure:
    """A process whose memory and clock the test sets."""

    def __init__(self):
        self.high = False
        self.now = 0.0
        self.requested = 0

    def __call__(self):
        self.requested += 1
        return self.high

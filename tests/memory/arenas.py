"""What tests of the arena share: a process of its own, and pressure that is set."""

from support import python

MIB = 1024**2


def address(block):
    return block.__array_interface__["data"][0]


def run_python(program):
    """Run `program` in an interpreter of its own; fail on any warning or traceback."""
    process = python(
        "-X",
        "dev",
        "-W",
        "error",
        "-c",
        program,
    )
    assert process.stderr == ""
    return process.stdout.strip()


class Pressure:
    """A process whose memory and clock the test sets."""

    def __init__(self):
        self.high = False
        self.now = 0.0
        self.requested = 0

    def __call__(self):
        self.requested += 1
        return self.high

"""The arena of a process: one, made anew in a fork, and gone in silence."""

import os

import numpy as np
import pytest
from memory.arenas import MIB, run_python
from support import in_threads

from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.memory import arena as memory
from dask_bigfft.memory.arena import ArenaBuffer


@pytest.fixture
def fresh_process(monkeypatch):
    """Let the test see the process's arena as a process does that has just begun."""
    process = memory._Process(64 * MIB)
    monkeypatch.setattr(memory, "_process", process)
    return process


# The process's arena


def test_default_arena_is_one(fresh_process):
    assert set(in_threads(8, lambda _: memory.default_arena())) == {fresh_process.arena}
    block = memory.allocate((512, 512), np.complex64)
    assert isinstance(block.base, ArenaBuffer)
    assert memory.default_arena().counters().allocated_bytes == block.nbytes


def test_configure_before_and_after(fresh_process):
    memory.configure(2 * MIB)
    arena = memory.default_arena()
    assert arena.limit == 2 * MIB
    memory.configure(8 * MIB)
    assert memory.default_arena() is arena
    assert arena.limit == 8 * MIB
    block = memory.allocate(MIB, np.uint8)
    del block
    memory.configure(8 * MIB, pressure=lambda: True)
    assert arena.counters().idle_bytes == 0
    memory.configure(0)
    assert not isinstance(memory.allocate(MIB, np.uint8).base, ArenaBuffer)
    assert memory.default_arena() is arena
    memory.configure(8 * MIB)
    assert isinstance(memory.allocate(MIB, np.uint8).base, ArenaBuffer)


def test_configure_refuses_and_changes_nothing(fresh_process):
    with pytest.raises(ArgumentError, match="limit"):
        memory.configure(-1)
    for limit in (1.5, "1 GiB", None):
        with pytest.raises(ArgumentTypeError, match="limit"):
            memory.configure(limit)
    assert memory.default_arena().limit == 64 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_makes_a_new_arena():
    program = """
import os
import warnings
import numpy as np
from dask_bigfft.memory import arena as memory

pressed = lambda: False
memory.configure(64 * 2**20, pressure=pressed, prefault=False)
arena = memory.default_arena()
block = memory.allocate(2**20, np.uint8)
idle = memory.allocate(2**20, np.uint8)
del idle
block.fill(1)
arena.pinner = object()  # of a GPU that the child has not
# Another thread holds every lock at the moment of the fork.
memory._process.lock.acquire()
arena.lock.acquire()
# From Python 3.12 on it warns of the threads that NumPy's BLAS has started.
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if not child:
    try:
        assert (block == 1).all()
        block.fill(2)
        del block
        own = memory.default_arena()
        assert own is not arena
        assert (own.limit, own.pressure, own.prefaults) == (64 * 2**20, pressed, False)
        assert own.pinner is None
        assert own.counters().allocated_bytes == 0
        mine = memory.allocate(2**20, np.uint8)
        mine.fill(3)
        assert memory.default_arena().counters().allocated_bytes == 2**20
        del arena, mine
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
arena.lock.release()
assert (block == 1).all()
assert arena.counters().allocated_bytes == arena.counters().idle_bytes == 2**20
print("same")
"""
    assert run_python(program) == "same"


# The end of the interpreter


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "cycle = [block, arena]; cycle.append(cycle)",
        "class Late:\n    def __del__(self): self.block.fill(9)\nlate = Late(); late.block = block",
        "import atexit; atexit.register(lambda: arena.allocate(2**20, 'u1').fill(1))",
        "import threading, time\n"
        "def work():\n"
        "    while True: arena.allocate(2**20, 'u1')[::4096] = 1\n"
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.05)",
    ],
)
def test_interpreter_ends_in_silence(ending):
    program = f"""
from dask_bigfft import memory

arena = memory.default_arena()
block = memory.allocate(2**20, "u1")
idle = memory.allocate(2**20, "u1")
del idle
views = [block[i::7] for i in range(7)]
{ending}
"""
    assert run_python(program) == ""


def test_blocks_of_tasks_go_back_to_the_system(monkeypatch):
    """The C library maps pages for each block of a plan that keeps to a limit, and keeps none."""
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)  # distributed's nannies set one, which outlives them
    program = """
import ctypes
import dask.array as da
import numpy as np
from dask_bigfft import fft

class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

def mapped():
    counters = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if counters is None:
        return None
    counters.restype = Counters
    for _ in range(2):  # glibc takes blocks of the size of one that was freed from its heap
        others = counters().e
        block = np.empty(2**23, np.uint8)
        nbytes = counters().e - others
        del block
    return nbytes >= 2**23

before = mapped()
y = fft.fftn(da.ones((64, 64, 64), chunks=(4, 64, 64)), memory_limit="2 MiB", kernel="scipy")
y.sum().compute(scheduler="synchronous")
print(before, mapped())
"""
    assert run_python(program) in ("False True", "None None")


def test_temporary_arrays_of_tiles_keep_their_pages():
    """While a plan keeps to a limit, threads reuse the memory of small blocks that are freed."""
    program = """
import resource
import numpy as np
from dask_bigfft.memory.limits import configure_arena

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(16):
        np.ones(2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

configure_arena(most=2**28)
faults()
print(faults() < 16 * 2**21 // 4096 // 4)
"""
    assert run_python(program) == "True"


def test_threads_of_small_plans_keep_no_freed_blocks(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    program = """
import resource
import numpy as np
from dask_bigfft.memory.limits import configure_arena

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(16):
        np.ones(3 * 2**15)  # 768 KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

configure_arena(most=2**28)
large = faults() and faults()
configure_arena(most=2**25)
print(large, faults() > 16 * 3 * 2**18 // 4096 // 2)
"""
    assert run_python(program) in ("0 True",)

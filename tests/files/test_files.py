"""Files around the page cache: the same bytes, whatever is aligned and whatever is refused."""

import errno
import os
import pickle
import threading
import time

import dask
import numpy as np
import pytest
from support import heard, python

from dask_bigfft import events, files

RNG = np.random.default_rng(3)


def aligned(size, shift=0):
    """Return bytes that begin some bytes after a unit of direct I/O."""
    memory = np.empty(size + shift + files.UNIT, np.uint8)
    start = -memory.ctypes.data % files.UNIT + shift
    return memory[start : start + size]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("begin", [0, 4096, 100])
@pytest.mark.parametrize("shift", [0, 64])
@pytest.mark.parametrize("size", [0, 5, files.LEAST, files.LEAST + 4095, 5_000_001])
def test_bytes_go_where_they_belong(
    tmp_path,
    direct,
    begin,
    shift,
    size,
):
    path = tmp_path / "file"
    wanted = bytearray(RNG.bytes(size + begin + 5000))
    path.write_bytes(wanted)
    data = aligned(size, shift)
    data[:] = np.frombuffer(RNG.bytes(size), np.uint8)
    with dask.config.set({"bigfft.scratch.direct": direct}), files.opened(path, os.O_RDWR) as file:
        assert (file.direct is not None) <= direct
        assert file.write(data, begin) == size
        out = aligned(size, shift)
        assert file.read(out, begin) == size
    wanted[begin : begin + size] = data.tobytes()
    assert path.read_bytes() == wanted
    assert out.tobytes() == data.tobytes()


def test_a_file_system_that_wants_other_units(tmp_path, monkeypatch):
    """What it refuses goes the ordinary way."""
    path = tmp_path / "file"
    calls = []
    real = os.pwritev

    def pwritev(handle, buffers, begin):
        calls.append(handle)
        if handle == file.direct:
            raise OSError(errno.EINVAL, "no")
        return real(handle, buffers, begin)

    monkeypatch.setattr(os, "pwritev", pwritev)
    data = aligned(1 << 20)
    data[:] = 7
    with files.opened(path, os.O_RDWR | os.O_CREAT) as file:
        if file.direct is None:
            pytest.skip("this file system does not go around the page cache")
        assert file.write(data, 0) == len(data)
    assert len(calls) == 2
    assert path.read_bytes() == data.tobytes()


# --- several at a time ----------------------------------------------------------------------


@pytest.fixture(params=[2, 8])
def threads(request):
    with dask.config.set({"bigfft.scratch.threads": request.param}):
        yield request.param


def test_pieces_of_a_file_are_under_way_at_a_time(tmp_path, monkeypatch, threads):
    """Two calls of the system wait for each other."""
    path = tmp_path / "file"
    meet = threading.Barrier(2, timeout=60)
    real = os.preadv
    size = 2 * files.PIECE
    path.write_bytes(RNG.bytes(size))

    def preadv(handle, buffers, begin):
        meet.wait()
        return real(handle, buffers, begin)

    monkeypatch.setattr(os, "preadv", preadv)
    out = aligned(size)
    with files.opened(path, os.O_RDONLY) as file:
        assert file.read(out, 0) == size
    assert out.tobytes() == path.read_bytes()


@pytest.mark.parametrize("asks", [True, False])
def test_after_an_error_nothing_is_under_way(threads, asks):
    running = set()
    most = []

    def call(i):
        running.add(i)
        most.append(i)
        time.sleep(0.01)
        running.discard(i)
        if i == 1:
            raise OSError(errno.EIO, "broken")

    def task():
        with files.Underway() as calls:
            for i in range(1000):
                calls.start(files.LEAST, lambda i=i: call(i))
            if asks:
                calls.results()
            raise KeyError("other")

    with pytest.raises(OSError if asks else KeyError):
        task()
    assert not running
    assert len(most) < 1000  # the others never began


def test_after_an_interruption_nothing_is_under_way(monkeypatch):
    """Else a file is closed while it is written, and its number may be another file's by then."""
    begun = threading.Event()
    finished = []
    wait = files.wait

    def call():
        begun.set()
        time.sleep(0.05)
        finished.append(True)

    def interrupted(*_, **__):
        monkeypatch.setattr(files, "wait", wait)
        raise KeyboardInterrupt

    def task():
        with files.Underway() as calls:
            calls.start(files.LEAST, call)
            begun.wait()
            monkeypatch.setattr(files, "wait", interrupted)
            calls.results()

    with pytest.raises(KeyboardInterrupt):
        task()
    assert finished


def test_a_task_waits_for_a_write_only_if_as_many_are_under_way(threads):
    may_end = threading.Event()
    started = []

    def write(i):
        started.append(i)
        assert may_end.wait(10)

    with files.WriteBehind(2) as writes:
        for i in range(2):
            writes.start(files.LEAST, lambda i=i: write(i))
        third = threading.Thread(target=writes.start, args=(files.LEAST, lambda: write(2)))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        assert 2 not in started
        may_end.set()
        third.join(10)
    assert sorted(started) == [0, 1, 2]


@pytest.mark.parametrize("at_once", [True, False])
def test_the_first_error_of_a_write_behind_is_raised(threads, at_once):
    def broken():
        raise OSError(errno.EIO, "broken")

    def task():
        with files.WriteBehind(0 if at_once else 2) as writes:
            writes.start(files.LEAST, broken)

    with pytest.raises(OSError, match="broken"):
        task()


def test_after_an_error_no_write_is_under_way(threads):
    finished = []

    def slow():
        time.sleep(0.05)
        finished.append(True)

    def task():
        with files.WriteBehind(2) as writes:
            writes.start(files.LEAST, slow)
            raise KeyError("other")

    with pytest.raises(KeyError):
        task()
    assert finished


def test_a_task_that_is_late_does_not_wait_for_ever(threads):
    """Dask's threads still run tasks after another one has failed, and Python waits for them."""
    written = []
    with files.WriteBehind(2) as writes:
        pass
    with pytest.raises(RuntimeError, match="ended"):
        writes.start(files.LEAST, lambda: written.append(True))
    assert not written


def test_a_copy_of_writes_behind_lets_none_wait():
    """A copy is in another process, where nobody waits for its writes."""
    ended = []
    copy = pickle.loads(pickle.dumps(files.WriteBehind(2)))

    def write():
        time.sleep(0.05)
        ended.append(True)

    copy.start(files.LEAST, write)
    assert ended


FORKED = """
import os
from dask_bigfft.files import LEAST, Underway

def five():
    with Underway() as calls:
        calls.start(LEAST, lambda: 5)
        return calls.results()

assert five() == [5]
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert five() == [5]
else:
    os._exit(five() != [5])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own():
    python("-W", "ignore", "-c", FORKED)


def test_events_name_the_task_that_started_the_call(threads):
    with heard("scratch_read") as seen, events.during("0a1b", 3), files.Underway() as calls:
        calls.start(files.LEAST, lambda: events.emit("scratch_read", nbytes=1))
        calls.results()
    assert [(numbers["plan"], numbers["index"]) for _, numbers in seen] == [("0a1b", 3)]


def test_calls_that_start_others_wait_for_none(threads):
    def outer(i):
        with files.Underway() as calls:
            for j in range(3):
                calls.start(files.LEAST, lambda j=j: 10 * i + j)
            return calls.results()

    with files.Underway() as calls:
        for i in range(3 * threads):
            calls.start(files.LEAST, lambda i=i: outer(i))
        assert calls.results() == [[10 * i, 10 * i + 1, 10 * i + 2] for i in range(3 * threads)]

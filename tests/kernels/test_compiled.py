"""Loops are compiled once on a machine; later processes load machine code, without numba."""

import os
import time

import numpy as np
import pytest
from support import heard, python

from dask_bigfft.events import during, emit, measured
from dask_bigfft.kernels.compiled import compiled, delete_unused_files


@compiled
def _weigh(values, matrix, weights, out):  # type: ignore[no-untyped-def]
    """Write values[i] * sum(matrix[i, j] * weights[j]) to `out`."""
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * weights[j]
        out[i] = total if values is None else values[i] * total


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has loaded nothing."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_weigh, "_functions", {})
    return tmp_path


def _check(layout, values):
    matrix = layout(np.arange(12.0).reshape(3, 4))
    weights = np.arange(1.0, 5)
    out = np.empty(3)
    _weigh(values, matrix, weights, out)
    scales = np.ones(3) if values is None else values
    np.testing.assert_array_equal(out, scales * (matrix @ weights))


@pytest.mark.parametrize("layout", [np.array, np.asfortranarray, lambda a: np.flip(a, 0)])
@pytest.mark.parametrize("values", [None, np.array([2.0, 0.5, -1.0])])
def test_arrays_of_any_layout(folder, layout, values):
    _check(layout, values)


def test_compiling_is_said_and_counts_for_no_phase(folder):
    with heard() as events, during("0a1b", 2):
        started = time.perf_counter()
        with measured("twiddle", 24):
            _check(np.array, None)
        whole = time.perf_counter() - started
        emit("round", nbytes=24, seconds=whole)
        with measured("fft", 24):
            _check(np.array, None)
    names = [name for name, _ in events]
    assert names == ["compiling", "compile", "round", "twiddle", "fft"]
    times = {name: numbers.get("seconds") for name, numbers in events}
    assert {numbers["plan"] for _, numbers in events} == {"0a1b"}
    assert times["compile"] + times["round"] == pytest.approx(whole, abs=1e-3)
    assert times["compile"] + times["twiddle"] <= 1.01 * whole


def _compilations(monkeypatch):
    """Return a list to which the signature of each later compilation is appended."""
    signatures = []
    compile_now = _weigh.compile

    def compile_and_note(signature):
        signatures.append(signature)
        return compile_now(signature)

    monkeypatch.setattr(_weigh, "compile", compile_and_note)
    return signatures


@pytest.mark.parametrize("damage", [lambda code: code[:-9], lambda code: b"", lambda code: code])
def test_a_damaged_file_is_replaced(folder, monkeypatch, damage):
    _check(np.array, None)
    [path] = folder.iterdir()
    code = path.read_bytes()
    path.write_bytes(damage(code))
    monkeypatch.setattr(_weigh, "_functions", {})
    signatures = _compilations(monkeypatch)
    _check(np.array, None)
    assert len(signatures) == (damage(code) != code)
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_files_that_nobody_loads_are_deleted(folder, monkeypatch):
    _check(np.array, None)
    [path] = folder.iterdir()
    unused = folder / path.name.replace("weigh", "waver")
    unused.write_bytes(path.read_bytes())
    other = folder / "notes.txt"
    other.write_text("")
    month_ago = time.time() - 40 * 86400
    for file in folder.iterdir():
        os.utime(file, (month_ago, month_ago))
    monkeypatch.setattr(_weigh, "_functions", {})
    _check(np.array, None)  # loads its file
    delete_unused_files()
    assert set(folder.iterdir()) == {path, other}


def test_a_folder_that_cannot_be_written(tmp_path, folder, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    _check(np.array, None)


#: A process that works until another one has compiled its loop, and says if it loaded the compiler.
PATIENT = """
import sys, time
import numpy as np
from dask_bigfft.kernels.checks import _weighted
words, out = np.arange(8, dtype=np.uint32), np.zeros(1, np.uint64)
started = time.perf_counter()
assert not _weighted.call((words, 3, out), may_compile=False)
assert time.perf_counter() - started < 1
deadline = time.monotonic() + float(sys.argv[1])
while time.monotonic() < deadline and not _weighted.call((words, 3, out), may_compile=False):
    time.sleep(0.05)
print(int(out[0]), "numba" in sys.modules)
"""


def test_another_process_compiles_for_those_that_do_not_wait(tmp_path):
    program = tmp_path / "patient.py"
    program.write_text(PATIENT)
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    expected = sum(i * (1 + (i + 1) * 3) for i in range(8))
    assert python(program, "60", env=env).stdout.split() == [str(expected), "False"]


def test_exit_waits_for_no_compiler(tmp_path):
    """The other process goes on, and a later process finds what it has compiled."""
    program = tmp_path / "patient.py"
    program.write_text(PATIENT)
    cache = tmp_path / "cache"
    started = time.monotonic()
    python(program, "0", env={"NUMBA_CACHE_DIR": str(cache)})
    assert not cache.exists() or not any(cache.iterdir()), time.monotonic() - started
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(cache.glob("*.bigfft")):
        time.sleep(0.05)
    assert any(cache.glob("*.bigfft"))


#: A thread imports a module of numba while another has begun with numba itself.
AT_ONCE = """
import faulthandler, sys, threading, time, numpy as np
from dask_bigfft.kernels import checks, copies
copies.compile_at_once()
faulthandler.dump_traceback_later(60, exit=True)
begun = threading.Event()

class Slow:
    def find_spec(name, *_):
        if name.startswith("numba.") and not begun.is_set():
            begun.set()
            time.sleep(0.2)

def second():
    begun.wait()
    checks.checksum(np.ones(9))

sys.meta_path.insert(0, Slow)
threading.Thread(target=second).start()
import dask_bigfft.kernels.copy_loops
"""


def test_threads_may_import_numba_at_once(tmp_path):
    python("-c", AT_ONCE, env={"NUMBA_CACHE_DIR": str(tmp_path)})

"""The decorator of this room's compiled loops, and the cache of their machine code; energies.

numba compiles a loop once on a machine (`compiler`), for the types of its arguments, into an object
file. Later processes load that file by llvmlite alone: 0.03 s of CPU time, where numba with its
contexts takes 0.35 s and 110 MiB. A loop is called through ctypes, without the GIL. Its arguments
are arrays, integers, floats, booleans and None, and its results are written to arrays. It cannot
allocate memory, because that would need numba. Where numba is missing, NumPy does all of this.
Files that no process has loaded for a month are deleted, such as those of older versions.

The first call of a loop in a process loads it, or compiles it if no file has it. That time is not
counted as part of a phase. `call` need not wait for the compiler: another process compiles then.
"""

import ctypes
import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial, update_wrapper
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft import config
from dask_bigfft.errors import FallbackWarning
from dask_bigfft.events import emit, interrupted

#: Flags of an array whose type differs for the compiler: C-contiguous, aligned.
_CONTIGUOUS = 0x1
_ALIGNED = 0x100

#: Name of the function in an object file.
ENTRY = "bigfft_entry"

#: Number of bytes of the hash at the beginning of a file of machine code.
_HASH_NBYTES = 32

#: Time without a load after which a file of machine code is deleted, and that after which a load is
#: recorded in the time of the file.
UNUSED_SECONDS = 30 * 86400
DAY_SECONDS = 86400

_ARRAY = np.ndarray

#: Types of arguments in C; arrays go by the address of their object.
_C_TYPES: dict[Any, Any] = {int: ctypes.c_int64, float: ctypes.c_double, bool: ctypes.c_int64}

log = logging.getLogger(__name__)

_lock = threading.RLock()

#: Held while another process compiles for this one.
_compiler_is_free = threading.Semaphore()


class compiled:
    """Function that is compiled for the types of its arguments, cached on disk, without the GIL.

    Parameters
    ----------
    function : callable or str
        The function, or ``"module:name"`` of one that only the compiler should import.
    **options
        Options of ``numba.njit``.
    """

    def __init__(self, function: Callable[..., Any] | str, **options: Any) -> None:
        self.options = options
        #: Functions by types of arguments; None where they cannot be compiled.
        self._functions: dict[tuple[Any, ...], Callable[..., int] | None] = {}
        #: Signatures for which another process was started to compile, and is still running.
        self._tried: set[str] = set()
        self._compiling: set[str] = set()
        if isinstance(function, str):
            self.path = function
            return
        self.path = f"{function.__module__}:{function.__name__}"
        update_wrapper(self, function)

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba has it, for other compiled functions and for the compiler."""
        return load_numba().njit(
            nogil=True,
            _nrt=False,  # no memory of numba's
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            **self.options,
        )(vars(self)["__wrapped__"])

    @property
    def _numba_type_(self) -> Any:
        """Type by which other compiled functions call this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        if not self.call(arguments, may_compile=True):
            raise RuntimeError(f"{self.path} cannot be compiled")

    def call(self, arguments: tuple[Any, ...], may_compile: bool) -> bool:
        """Call the compiled function; return False if it is not compiled.

        If it may not be compiled now, another process does that, and later calls find it. Without
        numba the answer is always False.
        """
        types = _types_of(arguments)
        function = self._functions.get(types)
        if function is None and types not in self._functions:
            function = self._load(types, may_compile)
        if function is None:
            return False
        values = [id(a) if type(a) is _ARRAY else a or 0 for a in arguments]
        if function(*values):
            raise RuntimeError(f"{self.path} failed")
        return True

    def is_loaded(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether the machine code for such arguments is loaded now, without a call.

        If no file has it, another process compiles it.
        """
        types = _types_of(arguments)
        if types in self._functions:
            return self._functions[types] is not None
        return self._load(types, may_compile=False) is not None

    def _load(self, types: tuple[Any, ...], may_compile: bool) -> Callable[..., int] | None:
        """Return the machine code for types of arguments; None if there is none yet, or never."""
        signature = " ".join(map(_type_name, types))
        if signature in self._compiling and not may_compile:
            return None
        started = time.perf_counter()
        with _lock:
            if types in self._functions:
                return self._functions[types]
            code = None
            compiles = False
            if has_llvmlite():
                code = _stored_code(self._file_name(signature))
                compiles = code is None
                if compiles and not may_compile and self._compile_aside(signature):
                    return None
                if compiles and load_numba() is not None:
                    emit("compiling")
                    code, _ = self.compile(signature)
            self._functions[types] = None if code is None else _function_of(code, types)
        seconds = time.perf_counter() - started
        interrupted(seconds)
        if compiles and code is not None:
            emit("compile", seconds=seconds)
        return self._functions[types]

    def compile(self, signature: str) -> tuple[bytes, bool]:
        """Return the machine code for a signature, compiled now, and whether a file has it now."""
        compile_loop = importlib.import_module(f"{__package__}.compiler").compile_loop
        code: bytes = compile_loop(self.path, signature, ENTRY)
        name = self._file_name(signature)
        for folder in _folders():
            with suppress(OSError):
                _write(folder / name, code)
                return code, True
        return code, False

    def _compile_aside(self, signature: str) -> bool:
        """Compile in another process, for which nobody waits; return False if that is impossible.

        It is tried once for a signature, and one loop is compiled at a time: others are in later
        calls. Without a folder for its file it is in vain.
        """
        if signature in self._tried:
            return signature in self._compiling
        if not _compiler_is_free.acquire(blocking=False):
            return True
        self._tried.add(signature)
        process = start_python("-m", "dask_bigfft.kernels.compiler", self.path, signature)
        if process is None:
            _compiler_is_free.release()
            return False
        self._compiling.add(signature)

        def wait() -> None:
            process.wait()
            _compiler_is_free.release()
            self._compiling.discard(signature)

        threading.Thread(target=wait, name="bigfft-compile", daemon=True).start()
        return True

    def _file_name(self, signature: str) -> str:
        """Return the name of the file with the machine code for a signature."""
        module, name = self.path.split(":")
        parts = (*_machine(), _source_hash(module), signature)
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"{name.strip('_')}-{digest[:32]}.bigfft"


def start_python(*arguments: str) -> subprocess.Popen[bytes] | None:
    """Start an interpreter that imports what this one does; return None if that is impossible."""
    executable = sys.executable or ""
    if "python" not in Path(executable).name.lower() or hasattr(sys, "frozen"):
        return None
    try:
        return subprocess.Popen(
            [executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    except OSError as error:
        log.info("no process can be started to compile loops: %s", error)
        return None


def _types_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of arguments; that of an array is its dtype, dimensions and flags."""
    return tuple(
        [(a.dtype, a.ndim, a.flags.num) if type(a) is _ARRAY else type(a) for a in arguments]
    )


def _type_name(argument_type: Any) -> str:
    """Return the name of a type in a signature.

    >>> _type_name(int), _type_name((np.dtype("F"), 2, 0x501)), _type_name((np.dtype("F"), 2, 1))
    ('int', 'c8,2,CA', 'c8,2,C')
    """
    if isinstance(argument_type, type):
        return argument_type.__name__
    dtype, ndim, flags = argument_type
    layout = ("C" if flags & _CONTIGUOUS else "") + ("A" if flags & _ALIGNED else "")
    return f"{dtype.str[1:]},{ndim},{layout}"


def load_numba() -> Any:
    """Return the package numba, or None where it cannot be imported.

    Every module takes it from here. Two threads that begin with different modules of it may each
    see the other's half done, and then numba's own lock is never released.

    Warns
    -----
    FallbackWarning
        Once, if numba is missing or does not work with this Python or this NumPy.
    """
    with _lock:
        return _numba()


@cache
def _numba() -> Any:
    """Import numba."""
    try:
        import numba
    except (ImportError, OSError) as error:  # OSError: llvmlite without its library
        _warn_once(error)
        return None
    return numba


@cache
def has_llvmlite() -> bool:
    """Return whether machine code can be loaded, and numba seems to be installed."""
    try:
        _machine()
    except (ImportError, OSError) as error:
        _warn_once(error)
        return False
    return True


@cache
def import_beside() -> None:
    """Import llvmlite in a thread, once, for loops that will be loaded: 0.05 s."""

    def load() -> None:
        with suppress(ImportError, OSError):  # `has_llvmlite` will say so
            _machine()

    if "llvmlite" not in sys.modules:
        threading.Thread(target=load, name="bigfft-llvmlite").start()


_warned = [False]


def _warn_once(error: Exception) -> None:
    """Warn that numba is missing."""
    if _warned[0]:
        return
    _warned[0] = True
    text = f"numba cannot be imported ({error}): NumPy copies and multiplies in place of "
    text += "compiled loops. Large transforms take up to twice as long, and those of large "
    text += "prime lengths four times"
    warnings.warn(text, FallbackWarning, stacklevel=2)


@cache
def _machine() -> tuple[str, ...]:
    """Return versions and the processor, which machine code depends on."""
    from llvmlite import binding

    return (
        version("numba"),
        version("llvmlite"),
        binding.get_process_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        f"{object.__basicsize__}",
    )


@cache
def _source_hash(module: str) -> str:
    """Return a hash of the source of a module of loops, and of what their machine code depends on.

    These are the compiler, this module, and those of its room that it imports, for their constants.
    """
    room = module.rpartition(".")[0]
    source = _source(module)
    imported = re.findall(rf"^from ({re.escape(room)}\.\w+) import", source, re.MULTILINE)
    names = {*imported, __name__, "dask_bigfft.kernels.compiler"}
    source += "".join(_source(name) for name in sorted(names))
    return hashlib.sha256(source.encode()).hexdigest()


def _source(module: str) -> str:
    """Return the source of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _folders() -> list[Path]:
    """Return the folders of machine code: beside this file, else the user's; or numba's own."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(os.environ["NUMBA_CACHE_DIR"])]
    return [
        Path(__file__).with_name("__pycache__"),
        Path(config.get("bigfft.wisdom.directory"), "loops"),
    ]


def _stored_code(name: str) -> bytes | None:
    """Return machine code from its file, None if there is none or it is damaged."""
    for folder in _folders():
        path = folder / name
        with suppress(OSError):
            content = path.read_bytes()
            code = content[_HASH_NBYTES:]
            if hashlib.sha256(code).digest() == content[:_HASH_NBYTES]:
                _record_use(path)
                return code
    return None


def _record_use(path: Path) -> None:
    """Set the time of a file of machine code to now, at most once a day."""
    with suppress(OSError):  # of another user
        if time.time() - path.stat().st_mtime > DAY_SECONDS:
            os.utime(path)


def delete_unused_files() -> None:
    """Delete files of machine code that no process has loaded for a month."""
    for folder in _folders():
        for path in folder.glob("*.bigfft*"):  # and parts of files that were never complete
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                    path.unlink()


def _write(path: Path, code: bytes) -> None:
    """Replace a file of machine code atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(hashlib.sha256(code).digest() + code)
    part.replace(path)


#: Engines that own the loaded machine code.
_engines: list[Any] = []


@cache
def _target() -> Any:
    """Return the processor as llvmlite describes it."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(jit=True)


def _function_of(code: bytes, types: tuple[Any, ...]) -> Callable[..., int]:
    """Load machine code into the process and return its function."""
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    c_types: list[Any] = [_C_TYPES.get(t, ctypes.c_int64) for t in types]
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *c_types)
    return prototype(engine.get_function_address(ENTRY))


# --- sums of squares, of which energies are made --------------------------------------------

#: Number of values summed in their own precision before the partial sum is added in double.
STRETCH = 4096

#: Optimisations allowed in sums. The assumption that NaN cannot occur is not among them.
FAST = {"reassoc", "contract", "nsz", "arcp"}


@partial(compiled, fastmath=FAST)
def squares(x):  # type: ignore[no-untyped-def]
    """Return the sum of squares of a one-dimensional real array, in its own precision."""
    total = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        total += v * v
    return total


@compiled
def added(total, lost, more):  # type: ignore[no-untyped-def]
    """Return a sum after one more value, and what its rounding has lost (Kahan's summation).

    The rounding errors of thousands of additions would exceed the tolerance of a check.
    """
    value = more - lost
    larger = total + value
    return larger, (larger - total) - value


@compiled
def squares_of_line(x, out):  # type: ignore[no-untyped-def]
    """Write the sum of squares of a line, in double precision, to `out`."""
    total = 0.0
    lost = 0.0
    for start in range(0, len(x), STRETCH):
        total, lost = added(total, lost, float(squares(x[start : start + STRETCH])))
    out[0] = total

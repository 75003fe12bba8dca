"""Blocks on a card stay there: a stand-in for CuPy whose arrays no NumPy function can read.

What is computed is NumPy's, at the addresses that the card's operations are given. An array that
went by the host would need one of the ways that CuPy has there, and all of them are errors here.
"""

import contextlib
import ctypes
import math
import sys
import threading
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.signal
from devices.blocks import fft_at, memory
from devices.kernel_text import kernels_of
from devices.random_cases import SIGNALS, random_case
from support import close, local

from dask_bigfft import fft, plan, report, signal, transposed_index
from dask_bigfft.api.arguments import parse_kernel
from dask_bigfft.errors import ArgumentError, PlanError
from dask_bigfft.gpu import cuda, cupy_gpu, kernels, links, on_gpu
from dask_bigfft.gpu.operations import FFT, Strided, Transfer
from dask_bigfft.gpu.peers import TRANSPORTS
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.planner import plan as plan_module
from dask_bigfft.signal import convolution, transfer
from dask_bigfft.testing.simulated import computed
from dask_bigfft.testing.strategies import random_array


class Memory:
    """A place in memory: an address, and what keeps it."""

    def __init__(self, owner, ptr, device=0):
        self.owner = owner
        self.ptr = ptr
        self.device = device

    def __add__(self, nbytes):
        return Memory(self.owner, self.ptr + nbytes, self.device)

    def at(self, shape, dtype, strides=None):
        told = {
            "data": (self.ptr, False),
            "shape": tuple(shape),
            "strides": strides,
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }
        return np.asarray(SimpleNamespace(__array_interface__=told, owner=self))


_current = threading.local()


class Card(contextlib.AbstractContextManager):
    """A device, and which of them is a thread's current one."""

    def __init__(self, ordinal=None):
        self.id = self.current() if ordinal is None else ordinal

    def use(self):
        pass

    def __enter__(self):
        _current.stack = [*getattr(_current, "stack", []), self.id]

    def __exit__(self, *error):
        _current.stack = _current.stack[:-1]

    @staticmethod
    def current():
        return (getattr(_current, "stack", None) or [0])[-1]


#: Functions whose result is another view of an array.
VIEWS = {np.moveaxis, np.swapaxes, np.expand_dims}


class CardArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that only its own methods reach into."""

    __array_priority__ = 100

    def __init__(
        self,
        shape,
        dtype=float,
        memptr=None,
        strides=None,
    ):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if memptr is None:
            bytes_ = np.full(math.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
            memptr = Memory(bytes_, bytes_.ctypes.data, Card.current())
        self.data = memptr
        self._values = memptr.at(shape, dtype, strides)

    @classmethod
    def of(cls, values):
        array = cls(np.shape(values), values.dtype)
        array._values[...] = values
        return array

    @classmethod
    def _view(cls, values, like):
        memory = Memory(like.data.owner, values.ctypes.data, like.data.device)
        return cls(
            values.shape,
            values.dtype,
            memory,
            values.strides,
        )

    @staticmethod
    def _inner(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(CardArray._inner, value))
        return getattr(value, "_values", value)

    def __array_function__(
        self,
        function,
        _,
        args,
        kwargs,
    ):
        """Do what CuPy does for functions of NumPy."""
        named = {name: self._inner(value) for name, value in kwargs.items()}
        values = function(*self._inner(args), **named)
        if not isinstance(values, np.ndarray):
            return values
        if function in VIEWS:
            return self._view(values, self)
        return CardArray.of(values)

    def __array_ufunc__(self, function, method, *args, out=(), **kwargs):
        """Do what CuPy does for ufuncs of NumPy, which it refuses for arrays of NumPy."""
        cards = [x for x in (*args, *out) if isinstance(x, CardArray)]
        assert not any(isinstance(x, np.ndarray) for x in (*args, *out)), "an array of the host"
        assert {x.data.device for x in cards} == {Card.current()}
        values = getattr(function, method)(*self._inner(args), **kwargs)
        if not out:
            return CardArray.of(values)
        out[0]._values[...] = values
        return out[0]

    def __array__(self, *_, **__):
        raise TypeError("an implicit conversion to a NumPy array")

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
        }

    device = property(lambda self: Card(self.data.device))
    real = property(lambda self: self._view(self._values.real, self))
    imag = property(lambda self: self._view(self._values.imag, self))

    def __getattr__(self, name):
        if name not in ["shape", "dtype", "strides", "size", "ndim", "nbytes", "itemsize", "flags"]:
            raise AttributeError(name)
        return getattr(self._values, name)

    def get(self, out):
        out[...] = self._values.reshape(-1)

    def set(self, values):
        self._values.reshape(-1)[...] = values

    def all(self):
        return CardArray.of(self._values.all())

    def any(self):
        return CardArray.of(self._values.any())

    def __bool__(self):
        """Wait for the device, as CuPy does."""
        return bool(self._values)

    def __len__(self):
        return len(self._values)

    def astype(self, dtype, copy=True):
        return CardArray.of(self._values.astype(dtype, copy=copy))

    def take(self, places, axis):
        assert not isinstance(places, np.ndarray)
        return CardArray.of(self._values.take(places._values, axis))

    def fill(self, value):
        self._values.fill(value)

    def reshape(self, *shape):
        reshaped = self._values.reshape(*shape)
        shared = np.shares_memory(reshaped, self._values) or not reshaped.size
        return self._view(reshaped, self) if shared else CardArray.of(reshaped)

    def __getitem__(self, index):
        return self._view(self._values[index], self)

    def __setitem__(self, index, values):
        assert not isinstance(values, np.ndarray)
        assert getattr(values, "data", self.data).device == self.data.device == Card.current()
        self._values[self._inner(index)] = self._inner(values)


def compute(
    plans,
    op,
    source,
    target,
    work,
):
    """What a GPU does, at addresses."""
    if isinstance(op, FFT):
        assert source % np.dtype(op.dtype).itemsize == 0  # which cuFFT needs
        fft_at(op, source, target)
    elif isinstance(op, Transfer):
        op.apply(CardArray(op.shape, op.dtype, Memory(None, target, Card.current())))
    else:  # of a block that is whole there
        shape = op.counts if isinstance(op, Strided) else op.shape
        ends = (source, getattr(op, "other", shape)), (target, shape)
        computed(op, *(memory(*end, op.dtype) for end in ends))


def by_rows(
    to,
    step,
    at,
    pitch,
    width,
    height,
    kind,
    stream,
):
    for row in range(height):
        ctypes.memmove(to + row * step, at + row * pitch, width)
    by_rows.calls += 1


by_rows.calls = 0


def at_home(x):
    return isinstance(x, CardArray) and x.data.device == Card.current()


def refused(*_, **__):
    raise AssertionError("a copy to the host")


class NullStream(contextlib.nullcontext):
    """A stream whose work is done as soon as it is asked for."""

    ptr = 0

    def __enter__(self):
        return self

    def synchronize(self, event=None):
        pass

    wait_event = synchronize

    def record(self, event):
        return event


def runtime_of_cards(opened):
    """`cupy.cuda.runtime`; pairs of GPUs that reach each other are added to `opened`."""
    return SimpleNamespace(
        CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
        getDevice=Card.current,
        deviceCanAccessPeer=lambda gpu, other: True,
        _deviceEnsurePeerAccess=lambda other: opened.add((Card.current(), other)),
        memcpyAsync=lambda to, at, size, kind, stream: ctypes.memmove(to, at, size),
        memcpy2DAsync=by_rows,
        memcpyPeerAsync=lambda to, _, at, __, size, ___: ctypes.memmove(to, at, size),
        getDeviceProperties=lambda _: {"totalGlobalMem": 1 << 34},
    )


def cupy_of_cards(opened):
    """The module `cupy`, as far as blocks need it; arrays do not go to the host."""
    pool = SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: 12345)
    return SimpleNamespace(
        opened=opened,
        ndarray=CardArray,
        asarray=lambda x: x if at_home(x) else CardArray.of(getattr(x, "_values", x)),
        empty=CardArray,
        zeros=lambda shape, dtype=float: CardArray.of(np.zeros(shape, dtype)),
        ascontiguousarray=lambda x: CardArray.of(x._values),
        multiply=lambda x, y, out: np.multiply(x._values, y, out=out._values),
        asnumpy=refused,
        positive=lambda x: CardArray.of(x._values),
        conj=lambda x, out: np.conj(x._values, out=out._values),
        roll=lambda x, shift, axis: CardArray.of(np.roll(x._values, shift, axis)),
        get_default_memory_pool=lambda: pool,
        cuda=SimpleNamespace(
            Device=Card,
            get_current_stream=NullStream,
            Stream=lambda non_blocking: NullStream(),
            Event=lambda disable_timing: NullStream(),
            alloc=lambda nbytes: CardArray(nbytes, np.uint8).data,
            alloc_pinned_memory=bytearray,
            UnownedMemory=lambda ptr, size, owner, device: Memory(owner, ptr, device),
            MemoryPointer=lambda memory, offset: memory + offset,
            memory=SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (Exception,), {})),
            runtime=runtime_of_cards(opened),
            cufft=SimpleNamespace(CuFFTError=type("CuFFTError", (Exception,), {})),
        ),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def card(monkeypatch, folder):
    """CuPy, as far as blocks need it; host memory is refused."""
    parse_kernel(None, np.dtype("c16"))  # tests itself in host memory, once in a process
    module = cupy_of_cards(opened=set())
    monkeypatch.setattr(links, "LINK_ROW_NBYTES", 32)
    monkeypatch.setattr(links, "MESSAGE_NBYTES", 256)
    monkeypatch.setitem(sys.modules, "cupy", module)
    cuda.cupy.cache_clear()
    monkeypatch.setattr(links, "_gpus", [links.Gpus()])
    monkeypatch.setattr(cuda, "_visible_devices", lambda: ((0,), None))
    monkeypatch.setattr(cupy_gpu, "compute", compute)
    monkeypatch.setattr(kernels, "kernel", kernels_of(folder))
    nothing = SimpleNamespace(prepare=lambda op: 0, trim=lambda: None, drop=lambda: None)
    monkeypatch.setattr(links.Gpus, "speed", lambda *_: 1e12)
    plans = on_gpu._Plans(nothing)
    monkeypatch.setattr(on_gpu, "_plans_of", lambda ordinal: plans)
    yield module
    cuda.cupy.cache_clear()


def assembled(persisted):
    """The values of a persisted array, and the devices of its blocks."""
    devices = set()

    def read(part):
        assert isinstance(part, CardArray)
        devices.add(part.device.id)
        return part._values

    host = persisted.map_blocks(
        read, dtype=persisted.dtype, meta=np.empty((0,) * persisted.ndim, persisted.dtype)
    )
    return host.compute(scheduler="sync"), devices


def uploaded(
    x,
    chunks,
    told=True,
    count=1,
):
    """A persisted array of blocks on cards, batch after batch, whose meta is on one if `told`."""
    host = da.from_array(x, chunks)
    meta = CardArray((0,) * x.ndim, x.dtype) if told else np.empty(0, x.dtype)

    def upload(block, block_id):
        with Card(block_id[0] * count // host.numblocks[0]):
            return CardArray.of(block)

    return host.map_blocks(upload, dtype=x.dtype, meta=meta).persist(scheduler="sync")


def test_a_check_is_refused_when_the_graph_is_built(card):
    blocks = uploaded(np.ones((8, 6)), (4, 6))
    for transform in (fft.fftn, signal.laplacian, signal.oaconvolve):
        given = (blocks, blocks[:2]) if transform is signal.oaconvolve else (blocks,)
        with pytest.raises(ArgumentError, match=r"`verify`='energy'"):
            transform(*given, verify="energy")


@pytest.mark.parametrize("name", ["fftn", "rfftn"])
@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
def test_blocks_stay_on_the_devices_that_hold_them(card, transport, name):
    x = np.random.default_rng(3).standard_normal((24, 10, 18))
    blocks = uploaded(x if name == "rfftn" else x + 0j, (4, 10, 18), count=2)
    floor = {"bigfft.planner.whole-axis-floor": 1}  # else one GPU does so little
    with dask.config.set({"bigfft.gpu.peer-transport": transport, **floor}):
        lazy = getattr(fft, name)(blocks)
        assert "shards in rows of" in plan(blocks, name).explain(details=True)
    by_rows.calls = 0
    persisted = lazy.persist(scheduler="threads")
    assert (by_rows.calls > 0) is (transport in ("direct", "auto"))
    on_host, devices = assembled(persisted)
    np.testing.assert_allclose(on_host, getattr(scipy.fft, name)(x), atol=1e-12)
    assert devices == {0, 1}
    opened = {"host": set(), "staged": {(0, 1)}}
    assert card.opened == opened.get(transport, {(0, 1), (1, 0)})


def test_memory_of_workers_does_not_limit_blocks_on_their_gpus(card):
    host = da.zeros((2048, 1024, 1024), chunks=(1024, 1024, 1024), dtype="c8")
    x = host.map_blocks(CardArray.of, dtype="c8", meta=CardArray((0, 0, 0), "c8"))
    with local(memory_limit="200 MiB"):
        assert plan(x, "fftn").chunks_in == host.chunks
        assert signal.laplacian(x).shape == x.shape
        with pytest.raises(PlanError):
            plan(host, "fftn")


def test_a_block_that_may_be_overwritten_becomes_the_result(card):
    block = CardArray.of(random_array((24, 10), "c16", 3))
    expected = scipy.fft.fft2(block._values)
    x = da.from_array(block, chunks=-1, asarray=False)
    beside, inside = (
        fft.fft2(x, overwrite_x=own).compute(scheduler="sync") for own in (False, True)
    )
    np.testing.assert_allclose([beside._values, inside._values], [expected] * 2, atol=1e-12)
    assert beside.data.ptr != block.data.ptr == inside.data.ptr


@pytest.mark.parametrize("seed", range(80))
def test_nothing_goes_by_the_host(card, monkeypatch, seed):
    x, chunks, name, keywords, expected, close = random_case(seed)
    blocks = uploaded(
        x,
        chunks,
        told=seed % 2 == 0,
        count=1 + seed % 3,
    )
    if seed % 3 == 0:  # filters of several GPUs come from the host
        monkeypatch.setattr(type(default_arena()), "allocate", refused)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        lazy = getattr(fft, name)(blocks, **keywords)
    on_host, _ = assembled(lazy.persist(scheduler="threads" if seed % 4 < 2 else "sync"))
    assert on_host.shape == expected.shape
    assert np.linalg.norm(on_host - expected) <= close * (np.linalg.norm(expected) + 1)
    assert report(lazy).runs[0].device_peaks[("", 0)] == 12345  # what the pool says


@pytest.mark.parametrize(
    ("name", "n", "chunk", "keywords"),
    [
        ("fft", 4096, 256, {}),
        ("fft", 600, 90, {"n": 720}),
        ("ihfft", 121, 30, {}),
        ("hfft", 61, 20, {}),
    ],
)
def test_one_axis_in_many_blocks(
    card,
    monkeypatch,
    name,
    n,
    chunk,
    keywords,
):
    x = random_array((n,), "f8" if name == "ihfft" else "c16", n)
    blocks = uploaded(x, chunk)
    monkeypatch.setattr(type(default_arena()), "allocate", refused)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        persisted = getattr(fft, name)(blocks, **keywords).persist()
    assert close(assembled(persisted)[0], getattr(scipy.fft, name)(x, **keywords))


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst", "dctn", "idstn"])
def test_cosines_and_sines(
    card,
    monkeypatch,
    name,
    type,
):
    cases = ((30, 7, "f8", {}), (31, 31, "f4", {"n": 40}), (2, 1, "c16", {"norm": "ortho"}))
    if name.endswith("n"):
        cases = (((9, 8, 5), (4, 8, 2), "f8", {"axes": (0, 1)}), ((6, 0), 3, "f4", {"axes": 0}))
    monkeypatch.setattr(default_arena().__class__, "allocate", refused)
    for shape, chunks, dtype, keywords in cases:
        x = random_array(shape, dtype, 1)
        coefficients = getattr(fft, name)(uploaded(x, chunks, count=2), type, **keywords)
        expected = getattr(scipy.fft, name)(x, type, **keywords)
        assert coefficients.dtype == expected.dtype
        on_host, _ = assembled(coefficients.persist(scheduler="sync"))
        close = 1e-6 if dtype == "f4" else 1e-14
        assert np.linalg.norm(on_host - expected) <= close * np.linalg.norm(expected)


def test_cosines_of_blocks_that_dask_takes_for_host_memory(card):
    with pytest.raises(ArgumentError, match=r"`x`=.*`meta`"):
        fft.dct(uploaded(np.ones((4, 6)), (2, 6), told=False)).compute()


def test_orders_shifts_and_primes(card):
    x = np.random.default_rng(0).standard_normal(4096) + 0j
    a = uploaded(x, (256,))
    spectrum = fft.fft(a, order="transposed")
    np.testing.assert_allclose(
        assembled(spectrum.persist())[0], scipy.fft.fft(x)[transposed_index(4096)], atol=1e-10
    )
    back = fft.ifft(spectrum, order="transposed")
    np.testing.assert_allclose(assembled(back.persist())[0], x, atol=1e-10)
    halves = fft.rfft(uploaded(x.real, (256,)), order="transposed")
    back = fft.irfft(halves, n=4096, order="transposed")
    np.testing.assert_allclose(assembled(back.persist())[0], x.real, atol=1e-10)
    shifted = fft.fftshift(fft.fft(fft.ifftshift(a)))
    expected = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(x)))
    np.testing.assert_allclose(assembled(shifted.persist())[0], expected, atol=1e-10)
    prime = fft.fft(uploaded(x[:4099], (500,)), n=4099)
    np.testing.assert_allclose(assembled(prime.persist())[0], scipy.fft.fft(x, 4099), atol=1e-10)
    digits = {"rounds": [{0: 64}, {0: -1}]}
    np.testing.assert_allclose(
        assembled(fft.fft(a, **digits).persist())[0], scipy.fft.fft(x), atol=1e-10
    )


@pytest.mark.parametrize("begin", [0, 1])
def test_blocks_that_begin_between_complex_numbers(card, begin):
    """As parts of larger arrays do. They are gathered first."""
    x = np.random.default_rng(1).standard_normal((8, 60)).astype("f4")
    blocks = {}
    for i in (0, 1):
        flat = CardArray.of(np.concatenate([x[:1, :begin].ravel(), x[4 * i : 4 * i + 4].ravel()]))
        blocks[("parts", i, 0)] = flat[begin:].reshape(4, 60)
    a = da.Array(
        blocks,
        "parts",
        ((4, 4), (60,)),
        meta=CardArray((0, 0), "f4"),
    )
    on_host, _ = assembled(fft.rfft2(a).persist())
    np.testing.assert_allclose(on_host, scipy.fft.rfft2(x), atol=1e-4)


def test_the_host_waits_for_streams_that_threads_do_not_share(card, monkeypatch):
    stream = type(card.cuda.get_current_stream())
    waits = []
    monkeypatch.setattr(stream, "synchronize", lambda self: waits.append(self))
    blocks = uploaded(np.ones((8, 6)) + 0j, (4, 6))
    fft.fft2(blocks).persist()
    assert not waits
    monkeypatch.setattr(stream, "ptr", 2)
    fft.fft2(blocks).persist()
    assert waits


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("work", SIGNALS.values(), ids=SIGNALS)
def test_signals(
    card,
    monkeypatch,
    work,
    dtype,
):
    def by_scipy(name, module=scipy.signal):
        def function(*args, **kwargs):
            filtered = getattr(module, name)(*CardArray._inner(args), **kwargs)
            return (
                list(map(CardArray.of, filtered))
                if name == "spectrogram"
                else CardArray.of(filtered)
            )

        return function

    named = {name: by_scipy(name) for name in ("spectrogram", "convolve", "oaconvolve")}
    monkeypatch.setitem(sys.modules, "cupyx.scipy.signal", SimpleNamespace(**named))
    names = ("fft", "ifft", "rfft", "irfft", "fftshift", "ifftshift")
    ffts = {name: by_scipy(name, scipy.fft) for name in names}
    monkeypatch.setitem(sys.modules, "cupyx.scipy.fft", SimpleNamespace(**ffts))
    pair = [random_array((36, 20), dtype, seed) for seed in (1, 2)]
    with dask.config.set({"bigfft.device": "cpu"}):
        wanted = work(*(da.from_array(x, (9, 20)) for x in pair)).compute()
    monkeypatch.setattr(type(default_arena()), "allocate", refused)
    processed = work(*(uploaded(x, (9, 20), count=2) for x in pair))
    on_host, _ = assembled(processed.persist(scheduler="sync"))
    most = 1e-4 if dtype == "f4" else 1e-12
    assert np.linalg.norm(on_host - wanted) <= most * np.linalg.norm(wanted)
    assert processed.dtype == on_host.dtype == wanted.dtype


def one_plan(lazy):
    (plan_of_both,) = transforms_in(lazy).values()
    return plan_of_both


#: Shapes and chunks of an array, and chunks of a transfer function.
LARGE_TRANSFERS = [
    ((12, 10, 18), (4, 10, 18), (5, 10, 3)),
    ((16, 12), (4, 12), (16, 5)),
    ((9, 31), (2, 31), (3, 31)),
    ((4096,), (512,), (1000,)),
]


@pytest.mark.pairs
@pytest.mark.parametrize("shape_of", ["spectrum", "rows", "columns"])
@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize(("shape", "chunks", "own_chunks"), LARGE_TRANSFERS)
def test_large_transfer_functions(
    card,
    monkeypatch,
    shape,
    chunks,
    own_chunks,
    dtype,
    counts,
    shape_of,
):
    """Their blocks are exchanged from GPU to GPU into those of the spectrum, in one plan."""
    for module in (plan_module, transfer):
        monkeypatch.setattr(module, "WHOLE_NBYTES", 16)
    x = random_array(shape, dtype, 1)
    spectrum_of, back = (np.fft.rfftn, np.fft.irfftn)
    if x.dtype.kind == "c":
        spectrum_of, back = (np.fft.fftn, np.fft.ifftn)
    h = random_array(spectrum_of(x).shape, "f8", 2)
    if len(shape) == 1 and dtype == "f8":  # the spectrum of a real axis in digits is whole
        h = np.abs(spectrum_of(random_array(shape, "f8", 3)))
    if shape_of == "rows":
        h = h[:1]
    elif shape_of == "columns":
        h = h[..., :1]
    own_chunks = tuple(map(min, own_chunks, h.shape))
    blocks = uploaded(x, chunks, count=counts[0])
    monkeypatch.setattr(type(default_arena()), "allocate", refused)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        lazy = signal.fourier_filter(blocks, uploaded(h, own_chunks, count=counts[1]))
    (operand,) = one_plan(lazy).operands
    assert (operand.plan is not None) is (counts[0] > 1 and h.size > 1)
    on_host, devices = assembled(lazy.persist(scheduler="sync"))
    assert devices == set(range(counts[0]))
    expected = back(spectrum_of(x) * h, s=shape, axes=range(x.ndim))
    most = 1e-5 if dtype == "c8" else 1e-12
    assert np.linalg.norm(on_host - expected) <= most * np.linalg.norm(expected)


def test_large_transfer_functions_that_are_not_finite(card, monkeypatch):
    monkeypatch.setattr(plan_module, "WHOLE_NBYTES", 0)
    x = random_array((12, 10), "c16", 1)
    h = np.ones((12, 10))
    h[7, 3] = np.inf
    lazy = signal.fourier_filter(uploaded(x, (3, 10), count=2), uploaded(h, (5, 4), count=2))
    with pytest.raises(ArgumentError, match="finite"):
        lazy.persist(scheduler="sync")


@pytest.mark.pairs
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["fftconvolve", "correlate"])
@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (2, 0), (3, 2)])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize(
    ("shape", "chunks", "own_shape", "own_chunks"),
    [
        ((24, 18), (6, 18), (21, 15), (7, 15)),
        ((24, 18), (24, 18), (21, 15), (21, 4)),
        ((13, 8, 10), (4, 8, 10), (12, 7, 9), (12, 3, 9)),
        ((2000,), (300,), (1501,), (400,)),
    ],
)
def test_two_long_arrays(
    card,
    monkeypatch,
    shape,
    chunks,
    own_shape,
    own_chunks,
    dtype,
    counts,
    name,
    mode,
):
    """One plan has the transforms of both; the shorter array may be in host memory (0 GPUs)."""
    monkeypatch.setattr(convolution, "is_small", lambda plan, shape: False)
    x = random_array(shape, dtype, 1)
    y = random_array(own_shape, dtype, 2)
    other = da.from_array(y, own_chunks)
    if counts[1]:
        other = uploaded(y, own_chunks, count=counts[1])
    options = {} if name == "fftconvolve" else {"method": "fft"}
    blocks = uploaded(x, chunks, count=counts[0])
    lazy = getattr(signal, name)(blocks, other, mode=mode, **options)
    assert one_plan(lazy).spec.factor.role == "samples"
    on_host, _ = assembled(lazy.persist(scheduler="sync"))
    expected = getattr(scipy.signal, name)(x, y, mode=mode, **options)
    assert on_host.dtype == dtype
    most = 1e-5 if dtype == "c8" else 1e-12
    assert np.linalg.norm(on_host - expected) <= most * np.linalg.norm(expected)


@pytest.mark.parametrize("chunks", [(24, 18), (5, 18), (6, 6)])
def test_persisted_blocks_are_no_tasks(card, chunks):
    """Dask schedules none of the blocks that are there, and keeps what it needs of the rest."""
    x = random_array((24, 18), "f8", 1)
    blocks = uploaded(x, chunks)
    lazy = fft.rfft2(blocks)
    expected = scipy.fft.rfft2(x)
    for array, values in (
        (lazy, expected),
        (lazy[2:9, 3:], expected[2:9, 3:]),
        (fft.rfft2(blocks + 1), scipy.fft.rfft2(x + 1)),
        (lazy * 2 + fft.rfft2(blocks), 3 * expected),
    ):
        on_host, _ = assembled(array.persist(scheduler="sync"))
        np.testing.assert_allclose(on_host, values, atol=1e-10)
    (graph,) = dask.optimize(lazy)
    assert sum(key[0] == blocks.name for key in dict(graph.dask)) <= 1

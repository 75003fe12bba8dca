"""Operations for a CUDA device: what kernels are told, followed by hand, is NumPy's answer."""

import contextlib
import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import cuda_kernels, cuda_operations, find, on_card
from dask_bigfft.gpu.cuda_operations import Operations
from dask_bigfft.gpu.operations import FFT, Transpose
from dask_bigfft.kernels.gpu_source import TILE


def memory(address, number, itemsize):
    """An element of host memory by its number, which may be below 0."""
    raw = (ctypes.c_char * itemsize).from_address(int(address) + number * itemsize)
    return np.frombuffer(raw, f"V{itemsize}")


class Card:
    """As much of CuPy as making a plan takes; writes down what is done with it."""

    def __init__(self, taken=0):
        self.did, self.free = [], 1 << 30
        plans = {name: self.making(name, taken) for name in ("PlanNd", "XtPlanNd")}
        kinds = {f"CUFFT_{name}": name for name in ("C2C", "R2C", "C2R", "Z2Z", "D2Z", "Z2D")}
        null = SimpleNamespace(synchronize=lambda: self.did.append("synchronized"))
        memory = SimpleNamespace(
            UnownedMemory=lambda address, size, owner: size, MemoryPointer=lambda size, at: size
        )
        self.cuda = SimpleNamespace(
            cufft=SimpleNamespace(**plans, **kinds),
            memory=memory,
            Stream=SimpleNamespace(null=null),
            runtime=SimpleNamespace(memGetInfo=lambda: (self.free, 1 << 30)),
            using_allocator=self.using,
        )

    @contextlib.contextmanager
    def using(self, lend):
        self.lend = lend
        yield
        self.lend = None

    def making(self, name, taken):
        def made(*arguments, **keywords):
            self.did.append(name)
            assert self.lend(1000) == 1000
            self.free -= taken
            return SimpleNamespace(handle=len(self.did))

        return made


def test_plans_are_made_once_and_ready_when_they_are_there(monkeypatch):
    """Their tables come in the null stream; their work area is lent at the call."""
    card, own = Card(taken=96), Operations()
    monkeypatch.setattr(cuda_operations, "cupy", lambda: card)
    monkeypatch.setattr(cuda_operations, "MAX_PLANS", 3)
    ops = [FFT("c2c", (n, 8), (n, 8), (1,), -1, "<c16") for n in range(2, 6)]
    assert [own.work_nbytes(op) for op in (*ops[:3], ops[0])] == [1024] * 4
    assert card.did == ["PlanNd", "synchronized"] * 3
    assert own.tables == 3 * 96
    own.work_nbytes(ops[3])  # beside the others: what is under way may need them all
    assert card.did == ["PlanNd", "synchronized"] * 4
    assert own.tables == 4 * 96
    own.trim()  # without the one that was needed longest ago
    assert own.tables == 3 * 96
    own.work_nbytes(ops[0])
    assert card.did == ["PlanNd", "synchronized"] * 4
    own.work_nbytes(ops[1])
    assert card.did == ["PlanNd", "synchronized"] * 5
    own.drop_plans()
    assert own.tables == 0


def test_no_plan_is_made_by_the_fft_that_needs_it(monkeypatch):
    """It would wait for the streams, and take memory that nobody counted."""
    card, own = Card(), Operations()
    card.cuda.cufft.CUFFT_FORWARD = -1
    monkeypatch.setattr(cuda_operations, "cupy", lambda: card)
    op = FFT("c2c", (8, 8), (8, 8), (1,), -1, "<c16")
    own.work_nbytes(op)
    own.drop_plans()
    with pytest.raises(DeviceError, match="no plan was made"):
        own.fft(op, 0, 0, 0)
    assert card.did == ["PlanNd", "synchronized"]


def test_sizes_of_64_bits_have_plans_of_their_own(monkeypatch):
    card = Card()
    monkeypatch.setattr(cuda_operations, "cupy", lambda: card)
    op = FFT("c2c", (1 << 28, 16), (1 << 28, 16), (1,), -1, "<c8")
    monkeypatch.setattr("dask_bigfft.kernels.gpu_plans.MOST_NBYTES", 1 << 62)
    Operations().work_nbytes(op)
    assert card.did == ["XtPlanNd", "synchronized"]


def test_grids_are_within_what_cuda_allows(monkeypatch):
    seen = []
    monkeypatch.setattr(
        cuda_kernels, "kernel", lambda source: lambda grid, block, args: seen.append(grid)
    )
    shape = (1 << 20, TILE * 3, 1 << 10)
    Operations().transpose(Transpose(shape, (0, 2, 1), "<c16"), 0, 0)
    Operations().transpose(Transpose((1 << 25, 8), (1, 0), "<c16"), 0, 0)
    assert all(x < 2**31 and y < 2**16 for x, y in seen)


def test_plans_for_blocks_that_live_on_cards_are_given_back_with_the_devices(monkeypatch):
    dropped, inside = [], []

    class Device:
        def __init__(self, ordinal):
            self.ordinal = ordinal

        def __enter__(self):
            inside.append(self.ordinal)

        def __exit__(self, *error):
            inside.remove(self.ordinal)

    monkeypatch.setattr(on_card, "_cards", {})
    monkeypatch.setattr(
        on_card, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(Device=Device))
    )
    freed = []
    monkeypatch.setattr(on_card, "free_pinned", lambda: freed.append(len(dropped)))
    monkeypatch.setattr(Operations, "drop_plans", lambda self: dropped.append(list(inside)))
    for ordinal in (0, 3, 5):
        on_card._card(ordinal)
    on_card._card(5).process += 1  # of a process that this one was forked from
    find.release()
    find.release()
    assert dropped == [[0], [3]]
    assert freed == [2]  # once, when there was something to give back
    assert list(on_card._cards) == [5]

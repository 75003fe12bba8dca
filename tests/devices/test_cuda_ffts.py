"""Operations for a CUDA device: what kernels are told, followed by hand, is NumPy's answer."""

import contextlib
from types import SimpleNamespace

import pytest

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import ffts, kernels
from dask_bigfft.gpu.ffts import FFTPlans
from dask_bigfft.gpu.kernels import TILE
from dask_bigfft.gpu.operations import FFT, transposed


class GPU:
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
    def using(self, allocate):
        self.allocate = allocate
        yield
        self.allocate = None

    def making(self, name, taken):
        def made(*arguments, **keywords):
            self.did.append(name)
            assert self.allocate(1000) == 1000
            self.free -= taken
            return SimpleNamespace(handle=len(self.did))

        return made


def test_plans_are_made_once_and_ready_when_they_are_there(monkeypatch):
    """Their tables come in the null stream; their work area is lent at the call."""
    gpu, own = GPU(taken=96), FFTPlans()
    monkeypatch.setattr(ffts, "cupy", lambda: gpu)
    monkeypatch.setattr(ffts, "MAX_PLANS", 3)
    ops = [FFT("c2c", (n, 8), (n, 8), (1,), -1, "<c16") for n in range(2, 6)]
    assert [own.prepare(op) for op in (*ops[:3], ops[0])] == [1024] * 4
    assert gpu.did == ["PlanNd", "synchronized"] * 3
    assert own.taken == 3 * 96
    own.prepare(ops[3])  # beside the others: what is under way may need them all
    assert gpu.did == ["PlanNd", "synchronized"] * 4
    assert own.taken == 4 * 96
    own.trim()  # without the one that was needed longest ago
    assert own.taken == 3 * 96
    own.prepare(ops[0])
    assert gpu.did == ["PlanNd", "synchronized"] * 4
    own.prepare(ops[1])
    assert gpu.did == ["PlanNd", "synchronized"] * 5
    own.drop()
    assert own.taken == 0


def test_no_plan_is_made_by_the_fft_that_needs_it(monkeypatch):
    """It would wait for the streams, and take memory that nobody counted."""
    gpu, own = GPU(), FFTPlans()
    gpu.cuda.cufft.CUFFT_FORWARD = -1
    monkeypatch.setattr(ffts, "cupy", lambda: gpu)
    op = FFT("c2c", (8, 8), (8, 8), (1,), -1, "<c16")
    own.prepare(op)
    own.drop()
    with pytest.raises(DeviceError, match="no plan was made"):
        own.fft(op, 0, 0, 0)
    assert gpu.did == ["PlanNd", "synchronized"]


def test_sizes_of_64_bits_have_plans_of_their_own(monkeypatch):
    gpu = GPU()
    monkeypatch.setattr(ffts, "cupy", lambda: gpu)
    op = FFT("c2c", (1 << 28, 16), (1 << 28, 16), (1,), -1, "<c8")
    monkeypatch.setattr("dask_bigfft.gpu.ffts.MOST_NBYTES", 1 << 62)
    FFTPlans().prepare(op)
    assert gpu.did == ["XtPlanNd", "synchronized"]


def test_grids_are_within_what_cuda_allows(monkeypatch):
    seen = []
    monkeypatch.setattr(
        kernels, "kernel", lambda source: lambda grid, block, args: seen.append(grid)
    )
    shape = (1 << 20, TILE * 3, 1 << 10)
    kernels.strided(transposed(shape, (0, 2, 1), "<c16"), 0, 0)
    kernels.strided(transposed((1 << 25, 8), (1, 0), "<c16"), 0, 0)
    assert all(x < 2**31 and y < 2**16 for x, y in seen)

"""The judges of an answer: they agree with the exact transform and find what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.fft

from dask_bigfft.bench.data import Data, direct_dft, sketch
from dask_bigfft.bench.problems import PROBLEMS, Problem
from dask_bigfft.testing.oracles import exact_transform

SHAPES = [(12,), (8192,), (9001,), (6, 35), (4, 3, 10)]
KINDS = {"complex": "1d-2p24-c128-x16", "real": "r3d-512x512x256-f64-x16"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("real", [False, True])
def test_direct_dft(shape: tuple[int, ...], real: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) + (0 if real else 1j * rng.standard_normal(shape))
    exact = exact_transform("fftn", x)
    places = [tuple(rng.integers(n) for n in shape) for _ in range(5)]
    found = direct_dft(x, places)
    assert np.allclose(found, [complex(exact[place]) for place in places], rtol=0, atol=1e-11)


def test_sketch_keeps_distances() -> None:
    rng = np.random.default_rng(1)
    for size in (1000, 2**18 + 17):
        a, b = rng.standard_normal((2, size)) + 1j * rng.standard_normal((2, size))
        ratio = np.linalg.norm(sketch(a) - sketch(b)) / np.linalg.norm(a - b)
        assert ratio == pytest.approx(1, abs=0.02)


def judged(name: str) -> tuple[Data, np.ndarray]:
    """A tiny problem with its judges, and the right answer."""
    data = Data(PROBLEMS[name].scaled(1e-3))
    data.fill()
    data.judge()
    right = getattr(scipy.fft, data.problem.kind)(data.x)
    data.references["scipy"] = sketch(right)
    return data, right


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_right_answer(name: str) -> None:
    data, right = judged(name)
    check = data.check(right, "ducc0")
    assert check.ok
    assert check.reference == "scipy"
    assert 0 < data.check(right * (1 + 1e-15), "ducc0").relative_l2 < check.tolerance
    alone = data.check(right, "scipy")  # nothing to hold it against: the direct judges remain
    assert alone.ok
    assert alone.relative_l2 is None
    assert not data.check(1.0001 * right, "scipy").ok


def swapped(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(-1).copy()
    flat[[5, 9]] = flat[[9, 5]]
    return flat.reshape(x.shape)


def not_a_number(x: np.ndarray) -> np.ndarray:
    found = x.copy()
    found.reshape(-1)[7] = np.nan
    return found


WRONG = {
    "conjugated": np.conj,
    "two elements swapped": swapped,
    "single precision": lambda x: x.astype(np.complex64).astype(np.complex128),
    "one NaN": not_a_number,
    "reversed": lambda x: np.ascontiguousarray(x[::-1]),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_wrong_answer(name: str, fault: str) -> None:
    data, right = judged(name)
    assert not data.check(WRONG[fault](right), "ducc0").ok


def test_one_wrong_element_in_a_large_answer() -> None:
    """Also where the sketch sums many elements."""
    problem: Problem = replace(PROBLEMS["1d-2p24-c128-x16"], shape=(2**20,))
    data = Data(problem)
    data.fill()
    data.judge()
    right = scipy.fft.fft(data.x)
    data.references["scipy"] = sketch(right)
    assert data.check(right, "").ok
    right[77777] *= 1 + 1e-6
    assert not data.check(right, "").ok

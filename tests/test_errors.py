"""The exception tree, and the form of a refusal."""

import pickle

import pytest

from dask_bigfft import errors


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (errors.ArgumentError, (errors.BigFFTError, ValueError)),
        (errors.ArgumentTypeError, (errors.BigFFTError, TypeError)),
        (errors.AxisError, (errors.ArgumentError, ValueError, IndexError)),
        (errors.PlanError, (errors.ArgumentError, ValueError)),
        (errors.CarrierError, (errors.BigFFTError, RuntimeError)),
        (errors.DeviceMemoryError, (errors.DeviceError, MemoryError)),
        (errors.KernelError, (errors.BigFFTError, RuntimeError)),
    ],
)
def test_each_is_caught_as_what_python_would_raise(kind, bases):
    assert all(issubclass(kind, base) for base in bases)
    with pytest.raises(kind, match=r"^`norm`='big' is not allowed: need backward, ortho$") as info:
        errors.raise_invalid(
            "norm",
            "big",
            "backward, ortho",
            kind=kind,
        )
    assert info.type is kind
    again = pickle.loads(pickle.dumps(info.value))  # it travels from a worker
    assert type(again) is kind
    assert str(again) == str(info.value)

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
        (errors.DeviceError, (errors.BigFFTError, RuntimeError)),
        (errors.DeviceMemoryError, (errors.DeviceError, MemoryError)),
        (errors.KernelError, (errors.BigFFTError, RuntimeError)),
    ],
)
def test_each_is_caught_as_what_python_would_raise(kind, bases):
    assert all(issubclass(kind, base) for base in bases)
    with pytest.raises(kind, match=r"^`norm`='big' is not allowed: need backward, ortho$") as info:
        errors.refuse("norm", "big", "backward, ortho", kind=kind)
    assert info.type is kind
    again = pickle.loads(pickle.dumps(info.value))  # it travels from a worker
    assert type(again) is kind
    assert str(again) == str(info.value)


def test_a_long_value_is_shortened():
    with pytest.raises(errors.ArgumentError) as info:
        errors.refuse("chunks", tuple(range(10**5)), "fewer")
    assert str(info.value) == "`chunks`=(0, 1, 2, 3, 4, 5, 6, 7, ...) is not allowed: need fewer"
    with pytest.raises(errors.ArgumentError) as info:
        errors.refuse("norm", "x" * 10**5, "a name")
    assert len(str(info.value)) < 150

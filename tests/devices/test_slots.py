"""A slot: whatever goes from it and comes to it, nothing comes to what is still there."""

import random

import pytest

from dask_bigfft.devices.operations import DeviceArray
from dask_bigfft.devices.slots import Slot

H2D, COMPUTE, D2H = "h2d", "compute", "d2h"


class Marks:
    """A device that only writes down which marks were made, and who waited for which."""

    def __init__(self):
        self.made, self.waits = [], []

    def event(self, name):
        return [name]

    def record(self, event, stream, stored=True):
        assert stream == D2H
        self.made.append(event)

    def wait(self, stream, event):
        self.waits.append((stream, id(event)))

    def waited(self, stream, events):
        return any((stream, id(event)) in self.waits for event in events)


def some(rng, most):
    """Parts of a slot, anywhere."""
    return [
        DeviceArray(rng.randrange(1000), (rng.randrange(1, 200),), "|u1")
        for _ in range(rng.randrange(most))
    ]


def meet(one, other):
    return one.offset < other.offset + other.span and other.offset < one.offset + one.span


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_what_comes_waits_for_what_goes_from_there(seed, in_parts):
    rng, device = random.Random(seed), Marks()
    slot = Slot(device, 0, (H2D, COMPUTE, D2H), in_parts)
    for _ in range(5):
        device.made.clear()
        going = some(rng, 6)
        assert [array for _, array in slot.going([(None, array) for array in going])] == going
        marks = list(device.made)
        assert len(marks) == (max(1, len(going)) if in_parts else 1)
        assert marks[-1] is slot.free
        device.waits.clear()
        slot.begin()
        for array in some(rng, 6):
            slot.make_room(array)
            for number, gone in enumerate(going):
                if meet(array, gone):
                    assert device.waited(H2D, marks[number if in_parts else 0 :])
            assert device.waited(H2D, [*marks, slot.done])  # at least until it was worked on
        slot.wait_for_all()
        assert device.waited(COMPUTE, [slot.loaded])
        assert device.waited(H2D, marks[-1:]) or device.waited(COMPUTE, [slot.free])
        assert len(device.waits) == len(set(device.waits))  # none twice

"""Pinned buffers: what is pinned, how much of it, and that it is let go before it is unmapped."""

import gc

import numpy as np
import pytest

from dask_bigfft.memory.arena import HostArena, Pinner, default_arena, pin_blocks, pinned

MIB = 1 << 20


class Driver:
    """Keeps what is registered, and refuses what a driver refuses."""

    def __init__(self, refuses=0, page=4096):
        self.ranges = {}
        self.refuses = refuses
        self.registered = 0
        self.page = page

    def register(self, address, nbytes):
        if self.refuses:
            self.refuses -= 1
            raise OSError("no more pages can be locked")
        assert address % self.page == 0
        for start, length in self.ranges.items():
            assert address + nbytes <= start or start + length <= address
        # Reading a byte of each page faults if the memory is not there.
        self.ranges[address] = nbytes
        self.registered += 1

    def unregister(self, address):
        del self.ranges[address]


def test_blocks_are_pinned_whole_and_let_go_with_their_memory():
    driver = Driver()
    arena = HostArena(64 * MIB)
    pinner = Pinner(driver.register, driver.unregister, 64 * MIB)
    arena.pinner = pinner
    block = arena.allocate((1024, 1024), "c16")
    address = block.ctypes.data
    assert driver.ranges == {address: 16 * MIB}
    assert pinner.covers(address, block.nbytes)
    assert pinner.covers(address + 4097, 100)
    assert not pinner.covers(address - 1, 8)
    assert not pinner.covers(address, 16 * MIB + 1)
    del block
    again = arena.allocate(1 << 20, "c16")
    assert again.ctypes.data == address
    assert driver.registered == 1  # the same pages, pinned once
    view = again[5:9]
    del again
    arena.trim()
    assert driver.ranges  # a view still looks at them
    del view
    arena.trim()
    assert driver.ranges == {}
    assert pinner.pinned_bytes == 0


def test_what_a_closed_pinner_had_pinned_is_pinned_again():
    driver = Driver()
    arena = HostArena(64 * MIB)
    for _ in range(2):
        arena.pinner = Pinner(driver.register, driver.unregister, 64 * MIB)
        block = arena.allocate((1024, 1024), "c16")
        assert driver.ranges == {block.ctypes.data: 16 * MIB}
        arena.pinner.close()
        assert driver.ranges == {}
        del block
    assert arena.counters().reuses == 1


def test_the_process_arena_pins_for_whoever_asks():
    driver = Driver()
    pinner = Pinner(driver.register, driver.unregister, 64 * MIB)
    default_arena().trim()
    before = default_arena().limit
    default_arena().resize(64 * MIB)  # whatever the last plan has left it
    previous = pin_blocks(pinner)
    try:
        block = default_arena().allocate((512, 1024), "c16")
        assert pinned(block.ctypes.data, block.nbytes)
        assert not pinned(np.zeros(4).ctypes.data, 8)
    finally:
        assert pin_blocks(previous) is pinner
        pinner.close()
        del block
        default_arena().trim()
        default_arena().resize(before)


def test_arrays_of_others_are_pinned_as_long_as_they_live():
    driver = Driver(page=1)
    pinner = Pinner(
        driver.register,
        driver.unregister,
        0,
        adopted=48 * MIB,
    )
    x = np.zeros((20, 1 << 20), np.uint8)
    part = x[3:9, 100:200]
    assert pinner.adopt(part)
    assert driver.ranges == {x.ctypes.data: x.nbytes}  # the array that owns the memory
    assert pinner.covers(part.ctypes.data, 5 * (1 << 20) + 100)
    assert not pinner.adopt(x)  # it is
    with pytest.raises(ValueError, match="resize"):
        x.resize((1,), refcheck=False)
    del x
    assert driver.ranges  # a part of it lives
    del part
    gc.collect()
    assert driver.ranges == {}
    assert pinner.adopted_bytes == 0


def test_what_cannot_be_watched_or_is_too_much_is_left_alone():
    driver = Driver(refuses=1, page=1)
    pinner = Pinner(
        driver.register,
        driver.unregister,
        1 << 40,
        adopted=48 * MIB,
    )
    refused = np.zeros(20 * MIB, np.uint8)
    assert not pinner.adopt(refused)
    assert not pinner.adopt(refused)  # the driver is not asked again
    assert not pinner.adopt(np.frombuffer(bytearray(20 * MIB), np.uint8))
    assert not pinner.adopt(np.zeros(MIB, np.uint8))
    assert not pinner.adopt(np.zeros(49 * MIB, np.uint8))
    assert driver.registered == 0
    first = np.zeros(30 * MIB, np.uint8)
    second = np.zeros(30 * MIB, np.uint8)
    assert pinner.adopt(first)
    assert not pinner.adopt(second)
    del first
    assert driver.ranges == {}
    assert pinner.adopt(second)
    pinner.close()
    assert driver.ranges == {}
    assert not pinner.adopt(second)


def test_a_driver_that_refuses_is_not_asked_for_ever():
    driver = Driver(refuses=100)
    arena = HostArena(64 * MIB)
    pinner = Pinner(driver.register, driver.unregister, 64 * MIB)
    arena.pinner = pinner
    blocks = [arena.allocate(4 * MIB, "u1") for _ in range(6)]
    for number, block in enumerate(blocks):
        block[:] = number
    assert all((block == number).all() for number, block in enumerate(blocks))
    assert driver.refuses == 97
    assert pinner.failures == 3
    assert pinner.pinned_bytes == 0

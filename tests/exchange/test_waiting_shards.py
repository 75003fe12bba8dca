"""Shards that wait in memory: what they take, what is given back, and what has gone."""

import numpy as np
import pytest

from dask_bigfft.exchange import p2p_shards
from dask_bigfft.exchange.p2p_shards import Gone, Kept, Room, Waiting

RNG = np.random.default_rng(5)


def part(name: int, count: int) -> Kept:
    values = RNG.standard_normal(count)
    return Kept((name,), [(name,)], [0, count], [0], values)


@pytest.mark.parametrize("most", [0, 80, 799, 4000, 1 << 30])
def test_no_more_is_kept_than_there_is_room_for_and_all_of_it_is_given_back(most: int) -> None:
    """Of two shuffles of one worker; one forgets its shards block by block, the other at once."""
    room = Room(most)
    one, two = Waiting(room), Waiting(room)
    kept: dict[int, int] = {0: 0, 1: 0}
    for turn in range(12):
        for which, waiting in enumerate((one, two)):
            size = 10 * (turn + 1)
            found = waiting.keep((turn % 4,), part(turn % 4, size), bool(turn % 2))
            kept[which] += 8 * size * found
            assert room.nbytes == sum(kept.values()) <= most
    assert (sum(kept.values()) > 0) == (most > 0)
    for name in range(4):
        found = sum(part.values.nbytes for part in one.parts((name,)))
        before = room.nbytes
        one.release((name,))
        one.release((name,))
        assert before - room.nbytes == found
    assert room.nbytes == kept[1]
    two.close()
    assert room.nbytes == 0
    assert not two.keep((0,), part(0, 1), False)  # what still comes is not taken in
    assert room.nbytes == 0


def test_nothing_is_kept_under_pressure() -> None:
    pressed = [False, True, True, False]
    answers = iter(pressed)
    waiting = Waiting(Room(1 << 20, lambda: next(answers)))
    found = [waiting.keep((0,), part(0, 10), False) for _ in pressed]
    assert found == [not answer for answer in pressed]
    assert len(waiting.parts((0,))) == found.count(True)


def test_room_is_given_back_where_there_is_no_memory_for_a_copy(monkeypatch) -> None:
    def lend(*_):
        raise MemoryError

    monkeypatch.setattr(p2p_shards, "lend", lend)
    room = Room(1 << 20)
    with pytest.raises(MemoryError):
        Waiting(room).keep((0,), part(0, 10), True)
    assert room.nbytes == 0


def test_copies_are_aligned_and_their_own() -> None:
    """What comes from a connection begins anywhere, in memory that others use."""
    memory = np.zeros(8 * 50 + 3, np.uint8)
    values = memory[3:].view(np.float64)
    values[:] = wanted = RNG.standard_normal(50)
    waiting = Waiting(None)
    assert waiting.keep((1,), Kept((0,), [(1,)], [0, 50], [7], values), True)
    memory[:] = 255
    (found,) = waiting.parts((1,))
    assert found.values.flags.aligned
    np.testing.assert_array_equal(found.values, wanted)
    assert found[:4] == ((0,), [(1,)], [0, 50], [7])


def test_what_was_released_is_not_taken_for_what_never_came() -> None:
    waiting = Waiting(Room(1 << 20))
    waiting.keep((1,), part(1, 5), False)
    assert waiting.parts((2,)) == []
    waiting.release((2,))  # nothing was there: it may be read again, from a file
    assert waiting.parts((2,)) == []
    waiting.release((1,))
    with pytest.raises(Gone):
        waiting.parts((1,))

"""Profiles: curves, JSON both ways, and what is not a profile."""

import json
import math
from dataclasses import replace

import dask.array as da
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_bigfft
from dask_bigfft.devices.engine import Job
from dask_bigfft.devices.walk import walked_seconds
from dask_bigfft.errors import ArgumentError
from dask_bigfft.planner.plan import Machine
from dask_bigfft.planner.profile import (
    DEFAULT,
    Curve,
    DeviceProfile,
    LibrarySpeeds,
    Peer,
    Profile,
    constant,
)

RATE = st.floats(1e-3, 1e15)
CURVE = st.builds(
    lambda points: Curve(tuple(sorted(points.items()))),
    st.dictionaries(st.floats(1e-3, 1e12), RATE, min_size=1, max_size=6),
)
DEVICE = st.builds(
    DeviceProfile, h2d=RATE, d2h=RATE, run=st.floats(0, 1), by_row=st.none() | CURVE,
    h2d_by_size=st.none() | CURVE, d2h_by_row=st.none() | CURVE,
    lengths=st.none() | CURVE, nbytes=st.integers(1, 1 << 50), name=st.text(max_size=5),
)
LIBRARY = st.builds(
    LibrarySpeeds, st.sampled_from(["scipy", "ducc0"]), st.sampled_from(["complex64"]), CURVE,
    CURVE, CURVE, CURVE, st.booleans(), away_across=st.none() | CURVE,
)
PROFILE = st.builds(
    Profile, name=st.text(max_size=5), threads=st.integers(1, 512), straight=CURVE, turned=CURVE,
    libraries=st.lists(LIBRARY, max_size=2).map(tuple), task=st.floats(0, 1),
    devices=st.lists(DEVICE, min_size=1, max_size=2).map(tuple),
    peers=st.just((Peer(0, 0, 1e9),)),
)


@given(PROFILE)
def test_json_both_ways(profile):
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert hash(again) == hash(profile)


@given(CURVE, st.floats(1e-6, 1e15))
def test_a_curve_stays_between_its_neighbours(curve, size):
    below = [p for p in curve.points if p[0] <= size][-1:] or [curve.points[0]]
    above = [p for p in curve.points if p[0] >= size][:1] or [curve.points[-1]]
    low, high = sorted((below[0][1], above[0][1]))
    assert low * (1 - 1e-9) <= curve.at(size) <= high * (1 + 1e-9)
    for x, y in curve.points:
        assert math.isclose(curve.at(x), y, rel_tol=1e-9)


def altered(**entries):
    found = json.loads(DEFAULT.to_json())
    found["profile"] |= entries
    return json.dumps(found)


def test_entries_can_be_altered():
    assert Profile.from_json(altered(task=1.0)).task == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "1", '"profile"', "{}", '{"schema": 1}',
        '{"schema": 1, "profile": {}}', '{"schema": 3, "profile": {}}',
        altered(copy=0), altered(copy=-1.0), altered(copy=float("nan")), altered(copy=None),
        altered(copy="fast"), altered(task=-1e-9), altered(threads=1.5), altered(unknown=1),
        altered(straight={"points": []}), altered(straight={"points": [[2, 1], [1, 1]]}),
        altered(straight={"points": [[1, 0]]}), altered(straight={"points": [[1]]}),
        altered(straight=[[1, 1]]), altered(libraries=[{"name": "scipy"}]),
        altered(devices=[{"h2d": 0}]), altered(peers=[{"source": 0, "target": 1, "speed": 1}]),
        altered(network=float("inf")), altered(threads=10**400), altered(copy=10**400),
        altered(copy=1e-320), altered(copy="1e9"), altered(copy=True), altered(threads=True),
        altered(straight={"points": [[10**400, 1]]}), altered(straight={"points": [[1, 1e-320]]}),
        altered(peers={}), altered(peers=""), altered(together=1.5), altered(shared_tiles=1.5),
        "[" * 100_000, '{"schema":' * 100_000,
    ],
)
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(ArgumentError, match="the JSON of a profile"):
        Profile.from_json(text)


def test_a_library_in_another_dtype_or_unknown():
    known = LibrarySpeeds("scipy", "complex128", constant(1e9), constant(2e9))
    profile = Profile(libraries=(known,), flops=7.0)
    assert profile.library("scipy", "complex128") == known
    assert profile.library("scipy", "complex64") == known
    assert profile.library("mkl_fft", "complex64").along.at(5) == 7.0


def test_devices_that_were_not_measured_are_like_the_others():
    assert Machine(cards=2).devices == (DeviceProfile(), DeviceProfile())
    slow = DeviceProfile(h2d=1.0)
    assert Machine(cards=3, profile=Profile(devices=(DeviceProfile(), slow))).devices[2] == slow
    assert Profile(devices=(slow,), peers=(Peer(0, 0, 3.0),)).peer(0, 0) == 3.0
    assert DEFAULT.peer(0, 1) is None


def test_copies_over_the_bus_take_what_was_measured_of_their_size_and_rows():
    plain = DeviceProfile(h2d=1e10, run=1e-6)
    assert plain.bus_seconds(10**6, 1, 1e10) == pytest.approx(1e-4)
    assert plain.bus_seconds(10**6, 11, 1e10) == pytest.approx(1e-4 + 1e-5)
    by_size = DeviceProfile(h2d=1e10, run=1e-6, by_size=Curve(((1e4, 1e9), (1e8, 1e10))))
    assert by_size.bus_seconds(10**4, 1, 1e10) == pytest.approx(1e-5)  # as it was measured
    assert by_size.bus_seconds(10**8, 1, 1e10) == pytest.approx(1e-2)
    assert by_size.bus_seconds(10**8, 1, 5e9) == pytest.approx(2e-2)  # the slower way
    by_row = DeviceProfile(h2d=1e10, run=1e-6, by_row=Curve(((1e3, 2e9), (1e6, 1e10))))
    assert by_row.bus_seconds(10**8, 10**5, 1e10) == pytest.approx(1e8 / 2e9)
    assert by_row.bus_seconds(10**8, 100, 1e10) == pytest.approx(1e-2)
    # Below what was measured each run costs what was drawn from that.
    assert by_row.bus_seconds(10**6, 10**4, 1e10) == pytest.approx(1e-4 + 9999e-6)


def test_a_walk_reckons_with_what_was_measured_of_the_bus():
    slow = replace(DeviceProfile(), by_row=Curve(((64.0, 1e9), (1e6, 50e9))))
    x = da.zeros((512, 512), chunks=(256, 512), dtype=complex)
    round_ = dask_bigfft.plan(x, "fft", kernel="scipy", device="cpu").rounds[0]
    job = Job(round_, (0, 0), "<c16", "<c16")
    narrow = replace(DeviceProfile(), by_size=Curve(((256.0, 1e8), (1e9, 50e9))))
    usual, small = (walked_seconds(job, device) for device in (DeviceProfile(), narrow))
    assert small > 2 * usual
    assert walked_seconds(job, slow) == pytest.approx(usual, rel=0.2)  # whole blocks: wide rows

"""Profiles, and layouts of plans: JSON both ways, and what is not a profile."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.errors import ArgumentError
from dask_bigfft.planner.profile import (
    DEFAULT,
    DeviceProfile,
    LibrarySpeeds,
    Profile,
    decode,
    encode,
)
from dask_bigfft.planner.request import Machine
from dask_bigfft.transforms.layout import Digit, Group, Range

RATE = st.floats(1e-3, 1e15)
PART = st.floats(0, 1)
DEVICE = st.builds(
    DeviceProfile,
    h2d=RATE,
    run=PART,
    nbytes=st.integers(1, 1 << 50),
)
LIBRARY = st.builds(
    LibrarySpeeds,
    st.just("ducc0"),
    st.just("complex64"),
    RATE,
    RATE,
    st.booleans(),
)
PROFILE = st.builds(
    Profile,
    name=st.text(max_size=5),
    threads=st.integers(1, 512),
    task=PART,
    libraries=st.tuples(LIBRARY),
    devices=st.lists(DEVICE, min_size=1, max_size=2).map(tuple),
)


@given(PROFILE)
def test_json_both_ways(profile):
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert hash(again) == hash(profile)


@pytest.mark.parametrize(
    "more",
    [(), (4,), (0, (Range(0, 3, 0, 2), Range(3, 3, 5, -2)))],
    ids=["plain", "offset", "runs"],
)
def test_groups_of_digits_come_back(more):
    group = Group((Digit(0, 1, 6, 6),), (2, 2, 2), *more)
    assert decode(Group, json.loads(json.dumps(group, default=encode))) == group


def altered(**entries):
    document = json.loads(DEFAULT.to_json())
    document["profile"] |= entries
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "{}",
        '{"schema": 1, "profile": {}}',
        altered(copy=0),
        altered(copy=float("nan")),
        altered(task=-1e-9),
        altered(threads=1.5),
        altered(unknown=1),
        altered(libraries=[{"name": "scipy"}]),
        altered(devices=[{"h2d": 0}]),
        altered(network=float("inf")),
        altered(copy=10**400),
        altered(copy=1e-320),
        altered(copy="1e9"),
        altered(threads=True),
        altered(together=1.5),
        "[" * 100_000,
    ],
)
def test_what_is_no_profile_is_refused(text):
    assert Profile.from_json(altered(task=1.0)).task == 1.0
    with pytest.raises(ArgumentError, match="the JSON of a profile"):
        Profile.from_json(text)


def test_a_library_in_another_dtype_or_unknown():
    known = LibrarySpeeds(
        "scipy",
        "complex128",
        1e9,
        2e9,
    )
    profile = Profile(libraries=(known,), flops=7.0)
    assert profile.library("scipy", "complex128") == known
    assert profile.library("scipy", "complex64") == known
    assert profile.library("mkl_fft", "complex64").flops == 7.0


def test_devices_that_were_not_measured_are_like_the_others():
    assert Machine(gpus=2).devices == (DeviceProfile(), DeviceProfile())
    slow = DeviceProfile(h2d=1.0)
    assert Machine(gpus=3, profile=Profile(devices=(DeviceProfile(), slow))).devices[2] == slow

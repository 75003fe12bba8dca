"""Layouts come back from JSON as they were, whatever they say of where values lie."""

import json

import pytest

from dask_bigfft.decomposition.layout import Digit, Group, Run
from dask_bigfft.planner.profile import decode, encode

DIGIT = Digit(0, 1, 6, 6)


@pytest.mark.parametrize(
    "group",
    [
        Group((DIGIT,), (2, 2, 2)),
        Group((DIGIT,), (2, 2, 2), 4),
        Group((DIGIT,), (3,), 0, (Run(0, 3, 0, 2), Run(3, 3, 5, -2))),
    ],
)
def test_groups_come_back(group):
    assert decode(Group, json.loads(json.dumps(encode(group)))) == group

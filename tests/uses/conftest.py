"""Tests of a use, a scheduler and a kind of arrays run in the process of this kind."""

from pathlib import Path

import pytest
from kinds import KIND, KINDS


@pytest.hookimpl(trylast=True)  # the root's hook has selected pairs among all kinds
def pytest_collection_modifyitems(config, items):
    """Leave out the tests of this folder for other kinds of arrays than this process has."""
    others = {kind for kind in KINDS if kind != KIND}
    left_out = [
        item
        for item in items
        if item.path.parent == Path(__file__).parent
        and hasattr(item, "callspec")
        and item.callspec.params.get("kind") in others
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]

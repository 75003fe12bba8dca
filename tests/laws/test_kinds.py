"""The laws of arrays hold for each kind of lazy arrays, and for xarray on each."""

import pytest
from kinds import KINDS, run_tests
from support import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_laws_of_arrays(kind):
    run_tests(kind, ROOT / "tests" / "laws" / "kinds_of_arrays.py")

"""What users do with a spectrum of arrays of other kinds than this process has."""

import pytest
from kinds import KIND, KINDS, run_tests
from support import ROOT


@pytest.mark.parametrize("other", [other for other in KINDS if other != KIND])
def test_uses_of_other_kinds(other):
    run_tests(other, ROOT / "tests" / "uses" / "test_uses.py")

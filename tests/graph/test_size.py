"""Graphs stay small: how many tasks and how much memory thousands of blocks take.

Run in processes of their own, so that peak memory is that of the call. The limits are those of the
issue with room for a busy machine; the figures of a quiet one are in the benchmark's results.
"""

import json

import pytest
from support import ROOT, python

CASES = {
    "1D, 4096 blocks": ((2**36,), (2**24,), 4096 * 4 + 4),
    "3D pencils, 64 x 64": ((4096, 4096, 4096), (64, 64, 4096), 4096 * 4 + 64 * 2 + 2),
}


@pytest.mark.parametrize(("case", "method"), [*zip(CASES, ["compute", "persist"], strict=True)])
def test_tasks_and_memory_to_the_first_task(case: str, method: str) -> None:
    shape, chunks, tasks = CASES[case]
    program = ROOT / "tests" / "graph" / "first_task.py"
    process = python(
        program,
        json.dumps([shape, chunks]),
        method,
        timeout=200,
    )
    count, nbytes = map(float, process.stdout.split())
    assert count <= tasks + 16
    assert nbytes <= 2**30

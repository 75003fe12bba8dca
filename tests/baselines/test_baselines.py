"""The package plans, computes and shows what it did when the baselines were recorded.

``python -m tests.baselines make`` records them anew, and ``compare`` compares two trees. A change
of plans on purpose is explained where the new data is committed.
"""

import json

import numpy as np
import pytest
from support import heard

from baselines import begun_run, bits, recording, store
from baselines.compare import DIFFERENCES
from baselines.requests import NUMBERS
from dask_bigfft.errors import ArgumentError

zarr = pytest.importorskip("zarr")

#: Requests that are planned in every run of the tests, and small transforms by each library.
FEW_PLANS = 100
FEW_BITS = 12

#: Lines of a message.
MOST_LINES = 60


def require_equal(part, content):
    """Fail with the differences from what is recorded."""
    lines = DIFFERENCES[part](store.read(store.DATA / store.NAMES[part]), content)
    if lines and store.PROVISIONAL.exists():
        pytest.skip(f"{part} differ from provisional baselines in {len(lines)} lines")
    if lines:
        more = f"\n... {len(lines) - MOST_LINES} more lines" if len(lines) > MOST_LINES else ""
        shown = "\n".join(lines[:MOST_LINES])
        pytest.fail(f"{part} differ from the baselines\n{shown}{more}", pytrace=False)


def require_equal_bits(numbers):
    """Fail if digests differ; skip on another machine."""
    unlike = bits.unlike(bits.machine(), store.read(store.DATA / store.NAMES["bits"])["machine"])
    if unlike:
        pytest.skip(f"digests were recorded elsewhere: {'; '.join(unlike)}")
    require_equal("bits", {"digests": bits.digests(numbers)})


def test_plans():
    require_equal("plans", recording.plans(NUMBERS[:FEW_PLANS]))


@pytest.mark.slow
def test_all_plans():
    require_equal("plans", recording.plans(NUMBERS[FEW_PLANS:]))


def test_explanations():
    require_equal("texts", recording.texts())


def test_bits():
    require_equal_bits(range(FEW_BITS))


@pytest.mark.slow
def test_all_bits():
    require_equal_bits(range(FEW_BITS, bits.COUNT))


def test_public_surface():
    pytest.importorskip("prometheus_client")
    from baselines import surface

    require_equal("surface", surface.surface())


def contents(folder):
    """The files of a folder by their names in it."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def record_format(folder):
    """The version of the format of a run's record."""
    return json.loads((folder / "scratch" / "run.json").read_text())["format"]


@pytest.mark.parametrize("when", begun_run.KILLED_AT)
def test_a_run_that_was_begun_is_resumed_or_refused_by_name(tmp_path, when):
    """It is refused only if records have another format now, and then nothing is lost."""
    before = tmp_path / "before"
    before.mkdir()
    begun_run.place(store.DATA / store.NAMES["begun_run"].format(when), before)
    written = contents(before)
    now = tmp_path / "now"
    now.mkdir()
    begun_run.begin_and_interrupt(now)
    if record_format(now) == record_format(before):
        with heard("source_read") as reads:
            begun_run.resume(before)
        assert sum(numbers["nbytes"] for _, numbers in reads) == 0, "nothing is read again"
        result = zarr.open_array(before / "out.zarr", mode="r")[...]
        np.testing.assert_allclose(result, np.fft.fft(begun_run.values()), atol=1e-11)
        assert sorted(path.name for path in before.iterdir()) == ["in.zarr", "out.zarr"]
        return
    with pytest.raises(ArgumentError, match="`scratch`"):
        begun_run.resume(before)
    left = contents(before)
    left.pop("scratch/lock", None)
    written.pop("scratch/lock", None)
    assert left == written

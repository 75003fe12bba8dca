"""What all tests share: profiles of hypothesis, and settings that no machine changes.

The profile `ci` is the default; HYPOTHESIS_PROFILE=thorough looks longer.
"""

import gc
import os
import signal
import tempfile

# Read when dask is imported, and inherited by the processes that tests start.
os.environ.setdefault("DASK_BIGFFT__KERNEL", "scipy")
os.environ.setdefault("DASK_BIGFFT__PLANNER__SMALL", "0")  # small arrays stand for large ones
os.environ.setdefault(
    "DASK_BIGFFT__WISDOM__DIRECTORY", os.path.join(tempfile.gettempdir(), "bigfft-test-wisdom")
)

import dask
import numpy as np
import pytest
import support
from hypothesis import HealthCheck, settings
from scipy._lib._array_api import array_namespace

# What is started in the background ignores Ctrl-C, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_FIXTURES = [HealthCheck.function_scoped_fixture]

settings.register_profile(
    "ci",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SLOW + _FIXTURES,
)
settings.register_profile(
    "thorough",
    max_examples=1500,
    deadline=None,
    suppress_health_check=_SLOW + _FIXTURES,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


#: Markers that SciPy's own tests carry.
SCIPYS = """skip_xp_backends xfail_xp_backends array_api_backends uses_xp_capabilities
skip_xp_invalid_arg parallel_threads_limit thread_unsafe fail_slow xslow xfail_on_32bit"""


def pytest_configure(config):
    for name in SCIPYS.split():
        config.addinivalue_line("markers", f"{name}: a marker of SciPy's tests")


def pytest_collection_modifyitems(config, items):
    """Slow tests run where BIGFFT_SLOW is set, or tests are chosen with -k or -m."""
    if os.environ.get("BIGFFT_SLOW") or config.option.keyword or config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_collection_finish(session):
    """What all test modules have imported stays: no collection need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def settings_are_kept():
    """After each test dask's settings are the same as before it."""
    before = repr(dask.config.config)
    yield
    assert repr(dask.config.config) == before


@pytest.fixture
def xp():
    """The array library that SciPy's own tests are run with."""
    return array_namespace(np.empty(0))


@pytest.fixture
def sync():
    """Tasks run one after the other, in the test's own thread."""
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def small(sync):
    """Axes of a few elements fall apart as long ones do."""
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, in which axes of a few elements fall apart as long ones do."""
    monkeypatch.chdir(tmp_path)
    with dask.config.set({"scheduler": "threads", "bigfft.planner.whole-axis-floor": 1}):
        yield tmp_path


@pytest.fixture(scope="module")
def client():
    """A client of two workers that are processes."""
    with support.local(processes=True) as client:
        yield client

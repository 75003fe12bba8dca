"""Markers that SciPy's own tests carry."""

SCIPYS = ["skip_xp_backends", "xfail_xp_backends", "array_api_backends", "uses_xp_capabilities",
          "skip_xp_invalid_arg", "parallel_threads_limit", "thread_unsafe", "fail_slow", "xslow"]


def pytest_configure(config):
    for name in SCIPYS:
        config.addinivalue_line("markers", f"{name}: a marker of SciPy's tests")

"""The list of other libraries' private names is complete, and each name is there today."""

import ast
import importlib.util
import json
import sys

import pytest
from support import ROOT, python

CI = ROOT / "ci"
PACKAGE = ROOT / "dask_bigfft"


def script(name):
    """Return a module of the folder of scripts, which is no package."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


foreign_names = script("foreign_names")


@pytest.fixture(scope="module")
def trees():
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@pytest.fixture(scope="module")
def text():
    return "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))


def last_names(table):
    """Return the names of a table of owners, without their owners."""
    return {name.rpartition(".")[2] for names in table.values() for name in names.split()}


def unlisted(trees, found_in, listed):
    """Return the names of all files that a list lacks, with their places."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, tree in trees.items()
        for line, name in found_in(tree)
        if name not in listed
    ]


def test_private_attributes_are_listed(trees):
    package_names = set().union(*map(foreign_names.defined_names, trees.values()))

    def found_in(tree):
        return foreign_names.private_names(tree, package_names)

    assert not unlisted(trees, found_in, last_names(foreign_names.ATTRIBUTES))


def test_private_modules_are_listed(trees):
    listed = {module for alternatives in foreign_names.MODULES for module in alternatives}
    assert not unlisted(trees, foreign_names.private_modules, listed)


def test_functions_of_c_are_listed(trees):
    listed = last_names(foreign_names.C_FUNCTIONS)
    assert not unlisted(trees, foreign_names.c_functions, listed)


OVERRIDDEN = """
import importlib, json, pkgutil, sys
import dask_array
import dask_bigfft

def is_foreign(kind):
    root = kind.__module__.partition(".")[0]
    return root != "dask_bigfft" and root not in sys.stdlib_module_names

def overridden(kind):
    for number, owner in enumerate(kind.__mro__):
        for name in () if is_foreign(owner) else vars(owner):
            for base in kind.__mro__[number + 1 :]:
                if name.startswith("_") and not name.startswith("__") and name in vars(base):
                    if is_foreign(base):
                        yield f"{base.__module__}:{base.__qualname__}", name
                    break

rows = set()
for info in pkgutil.walk_packages(dask_bigfft.__path__, "dask_bigfft."):
    if not info.name.endswith("__main__"):
        for kind in vars(importlib.import_module(info.name)).values():
            if isinstance(kind, type) and not is_foreign(kind):
                rows.update(overridden(kind))
print(json.dumps(sorted(rows)))
"""


def test_overridden_private_names_are_listed(text):
    """Classes of the package that are derived from those of others, in all kinds of arrays."""
    if importlib.util.find_spec("dask_array") is None:  # not imported: it sets options of dask
        pytest.skip("dask_array is not installed")
    process = python("-c", OVERRIDDEN, env={"DASK_ARRAY__QUERY_PLANNING": True})
    rows = [(owner, name) for owner, name in json.loads(process.stdout) if name in text]
    assert ["dask._expr:Expr", "_layer"] in map(list, rows)
    for owner, name in rows:
        assert name in foreign_names.ATTRIBUTES.get(owner, "").split(), (owner, name)


def test_listed_names_are_used(text):
    for table in (foreign_names.ATTRIBUTES, foreign_names.UNDOCUMENTED, foreign_names.C_FUNCTIONS):
        for name in last_names(table):
            if not name.startswith("CUFFT_"):  # whose names are put together
                assert name in text


def test_names_of_today_are_there():
    packages = ("dask", "dask-array", "distributed", "numba", "numpy", "scipy", "xarray", "zarr")
    process = python(CI / "imported_names.py", *packages)
    assert "0 of the names and self-tests fail" in process.stdout


EXAMPLE = """
import other._inner
from importlib import import_module

class Ours(other.Base):
    def __init__(self):
        self._own = import_module("other.deep._module")
        self._inherited.call()

    def work(self, x):
        x._own
        x._replace(a=1)
        getattr(x, "_named", None)
        for name in ("_listed",):
            getattr(x, name)
        library.cufftExecute(cupy().cuda.cufft.Plan1d, x._foreign)
"""


def test_names_of_an_example():
    """What the search finds in a file."""
    tree = ast.parse(EXAMPLE)
    own = foreign_names.defined_names(tree)
    names = {name for _, name in foreign_names.private_names(tree, own)}
    assert names == {"_inherited", "_named", "_listed", "_foreign"}
    assert [name for _, name in foreign_names.private_modules(tree)] == ["other.deep._module"]
    assert [name for _, name in foreign_names.c_functions(tree)] == ["cufftExecute"]
    assert ("cupy", "cuda.cufft.Plan1d") in {row[1:] for row in foreign_names.cupy_names(tree)}
    assert {row[1:] for row in foreign_names.imports(tree)} == {
        ("other._inner", ""),
        ("importlib", "import_module"),
    }


def test_a_missing_name_is_printed():
    sys.path.insert(0, str(CI))
    try:
        imported_names = script("imported_names")
    finally:
        sys.path.remove(str(CI))
    assert imported_names.problem_of("dask.array", "Array._meta") == ""
    assert imported_names.problem_of("concurrent.futures", "ThreadPoolExecutor._max_workers") == ""
    for module, name in (
        ("dask.array", "Array._gone"),
        ("concurrent.futures", "ThreadPoolExecutor._gone"),
        ("scipy.fft._gone", ""),
    ):
        assert imported_names.problem_of(module, name)

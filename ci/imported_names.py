"""Print which of the names that the package takes from other libraries are missing.

``python ci/imported_names.py PACKAGE ...`` imports each name of these packages, and of Python, that
files of the package import or that `foreign_names` lists. Private ones, with an underscore, are
marked. It also sends a block through distributed's shuffle, whose parameters no import tells, and
compares SciPy's private functions, and cuFFT with given work areas, with public functions. The exit
status is 1 if anything fails.
"""

import ast
import ctypes
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from pathlib import Path

import foreign_names

PACKAGE = Path(__file__).resolve().parents[1] / "dask_bigfft"

#: Modules of a package that have other names than it, or that it brings along.
MODULES_OF = {
    "cupy-cuda12x": ("cupy", "cupyx", "cupy_backends", "cuda"),
    "cupy-cuda13x": ("cupy", "cupyx", "cupy_backends", "cuda"),
    "dask-array": ("dask_array",),
    "numba": ("numba", "llvmlite"),
}


def modules_of(packages: Iterable[str]) -> set[str]:
    """Return the modules that packages install, and those of packages that they bring along."""
    return {module for package in packages for module in MODULES_OF.get(package, (package,))}


def problem_of(module: str, name: str) -> str:
    """Return why a name cannot be imported, or an empty text."""
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        return repr(error)
    if not name:
        return ""
    try:
        attrgetter(name)(imported)
        return ""
    except AttributeError:
        pass
    if is_set_by_methods(imported, name):
        return ""
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return "is missing"
    return ""


def is_set_by_methods(module: object, name: str) -> bool:
    """Return whether methods of a class set an attribute of its instances, by its source."""
    class_name, _, attribute = name.partition(".")
    owner = getattr(module, class_name, None)
    if not isinstance(owner, type) or not attribute:
        return False
    assignment = re.compile(rf"self\.{attribute}\b.*[^=]=[^=]")
    for base in owner.__mro__[:-1]:
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # a class of C
            continue
        if assignment.search(source):
            return True
    return False


def used_names() -> Iterator[tuple[str, str, str]]:
    """Yield place, module and name of each name that files of the package or the lists have."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, module, name in {
            *foreign_names.imports(tree),
            *foreign_names.cupy_names(tree),
        }:
            yield f"{path.relative_to(PACKAGE.parent)}:{line}", module, name
    for table in (foreign_names.ATTRIBUTES, foreign_names.UNDOCUMENTED):
        for owner, names in table.items():
            module, _, class_name = owner.partition(":")
            for name in names.split():
                yield "ci/foreign_names.py", module, f"{class_name}.{name}".lstrip(".")


def missing_names(modules: set[str]) -> Iterator[str]:
    """Yield a line for each missing name of some modules."""
    for place, module, name in used_names():
        if module.partition(".")[0] not in modules:
            continue
        problem = problem_of(module, name)
        if problem:
            whole = f"{module}.{name}".rstrip(".")
            kind = "private" if "._" in whole else "public"
            yield f"{place}: {kind} name {whole}: {problem}"
    for alternatives in foreign_names.MODULES:
        problems = [problem_of(module, "") for module in alternatives]
        if alternatives[0].partition(".")[0] in modules and all(problems):
            yield f"ci/foreign_names.py: private name {' or '.join(alternatives)}: {problems[0]}"


def missing_c_functions() -> Iterator[str]:
    """Yield a line for each missing function of CUDA's libraries."""
    for library, names in foreign_names.C_FUNCTIONS.items():
        try:
            path = library
            if not library.startswith("lib"):
                pathfinder = importlib.import_module("cuda.pathfinder")
                path = pathfinder.load_nvidia_dynamic_lib(library).abs_path
            loaded = ctypes.CDLL(path)
        except Exception as error:
            yield f"C library {library}: {error!r}"
            continue
        for name in names.split():
            if not hasattr(loaded, name):
                yield f"C library {library}: function {name}: is missing"


def self_tests(modules: set[str]) -> Iterator[str]:
    """Yield a line for each private surface that behaves otherwise than it is known."""
    from dask_bigfft.carriers.p2p import shuffle_module
    from dask_bigfft.gpu.work_areas import work_areas
    from dask_bigfft.kernels.compiled import load_numba
    from dask_bigfft.kernels.libraries import get_library

    tests: list[Callable[[], object]] = [shuffle_module, load_numba, get_library]
    if "cupy" in modules:
        tests.append(work_areas)
    for test in tests:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            test()
        for warning in caught:
            yield str(warning.message)


def main() -> int:
    """Print all that is missing; return the exit status."""
    modules = modules_of(sys.argv[1:])
    problems = [*missing_names(modules | {"concurrent", "multiprocessing"})]
    if "cupy" in modules:
        problems += missing_c_functions()
    problems += self_tests(modules)
    for problem in problems:
        print(f"ci/canary: {problem}")
    print(f"ci/canary: {len(problems)} of the names and self-tests fail")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

"""Print which of the names that the package imports from other libraries are missing.

``python ci/imported_names.py PACKAGE ...`` reads the imports of all files, also those inside
functions, and imports each name of the packages. Private ones, with an underscore, are marked. It
also sends a block through distributed's shuffle, whose parameters no import tells, and compares
SciPy's private functions with its public ones. The exit status is 1 if anything is missing.
"""

import ast
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dask_bigfft"


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import; the name is empty for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, node.module, alias.name


#: Private names that no import shows, because they are reached by attributes.
BY_ATTRIBUTE = (
    ("llvmlite.ir", "IRBuilder.gep"),
    ("llvmlite.ir", "IRBuilder.load"),
    ("numba.core", "types.Array"),
    ("numba.core.compiler_lock", "global_compiler_lock"),
    ("numba.extending", "intrinsic"),
    ("numba.np.arrayobj", "populate_array"),
)

#: Packages whose private names are used, with those that install them or that they bring along.
MODULES_OF = {
    "cupy-cuda12x": ("cupy", "cupyx", "cupy_backends"),
    "cupy-cuda13x": ("cupy", "cupyx", "cupy_backends"),
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
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return "is missing"
    return ""


def missing_names(packages: set[str]) -> Iterator[str]:
    """Yield a line for each missing name of some packages."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, module, name in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if module.partition(".")[0] not in packages:
                continue
            problem = problem_of(module, name)
            if problem:
                whole = f"{module}.{name}".rstrip(".")
                kind = "private" if "._" in f".{whole}" else "public"
                yield f"{path.relative_to(PACKAGE.parent)}:{line}: {kind} name {whole}: {problem}"
    for module, name in BY_ATTRIBUTE:
        if module.partition(".")[0] in packages:
            problem = problem_of(module, name)
            if problem:
                yield f"attribute {module}.{name}: {problem}"


def self_tests() -> Iterator[str]:
    """Yield a line for each private surface that behaves otherwise than it is known."""
    from dask_bigfft.carriers.p2p import shuffle_module
    from dask_bigfft.kernels.compiled import load_numba
    from dask_bigfft.kernels.libraries import get_library

    for test in (shuffle_module, load_numba, get_library):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            test()
        for warning in caught:
            yield str(warning.message)


def main() -> int:
    """Print all that is missing; return the exit status."""
    problems = [*missing_names(modules_of(sys.argv[1:])), *self_tests()]
    for problem in problems:
        print(f"ci/canary: {problem}")
    print(f"ci/canary: {len(problems)} of the imported names and self-tests fail")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

"""Measure how plain the code is, room by room: python ci/plain.py [folder ...]

Without a folder it measures the package room by room, the tests and the benchmarks. Size is counted
in tokens, because lines measure formatting. Size is shown and not limited; density, complexity and
names have limits. ``--check`` fails where one of these is passed, and ``--worst N`` lists the N
worst places of each kind. Python 3.12 and later split f-strings into more tokens: the limits are
those of Python 3.11.
"""

import argparse
import ast
import bisect
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Limits of the package. Counts are those in 1,000 lines. Libraries of the field have 6.7 to 7.1
#: tokens a line, and no bundled assignment or empty name.
PACKAGE_LIMITS = {
    "tokens a line": 8.5,
    "bundled": 2.0,
    "splats": 0.3,
    "empty names": 2.0,
    "complex, %": 8.0,
    "complexity": 15,
    "body lines": 60,
    "file lines": 700,
}

#: Limits of tests and benchmarks.
OTHER_LIMITS = PACKAGE_LIMITS | {
    "tokens a line": 10.5,
    "bundled": 6.0,
    "splats": 0.5,
    "empty names": 6.0,
    "complex, %": 10.0,
}

#: McCabe's number above which all tokens of a function count as complex.
COMPLEX = 10

#: Names that say nothing about a value.
EMPTY_NAMES = frozenset(
    [
        *("done", "each", "found", "got", "held", "here", "kept"),
        *("made", "one", "stuff", "taken", "there", "thing"),
    ]
)

#: Tokens that are no code.
LAYOUT_TOKENS = frozenset(
    [
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    ]
)

#: A line that has these alone is formatting.
BRACKETS = frozenset("()[]{},")

LOCKS = frozenset(["Condition", "Event", "Lock", "RLock", "Semaphore"])

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
DECISIONS = (
    ast.Assert,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.For,
    ast.If,
    ast.IfExp,
    ast.While,
    ast.comprehension,
)


@dataclass(frozen=True)
class Function:
    """A function or method. Its tokens include those of functions inside it.

    Attributes
    ----------
    place : str
        File, line and name.
    tokens : int
        Tokens without comments and docstrings.
    complexity : int
        McCabe's number.
    arguments : int
        Number of parameters without ``self``.
    body_lines : int
        Lines without signature and docstring.
    splats : int
        Calls that unpack a tuple that the function itself has built.
    """

    place: str
    tokens: int
    complexity: int
    arguments: int
    body_lines: int
    splats: int


@dataclass(frozen=True)
class SourceFile:
    """Counts of a file.

    Attributes
    ----------
    path : Path
        The file.
    lines : int
        Lines of code: no comments, docstrings, lines inside strings, or lines of brackets alone.
    tokens : int
        Tokens without comments and docstrings.
    functions : list of Function
        Its functions and methods.
    bundled : list of str
        Places of assignments that pack unrelated values into a tuple.
    empty_names, walruses, classes, caches, locks : int
        Number of bindings of empty names, of ``:=``, of classes, caches and locks.
    """

    path: Path
    lines: int
    tokens: int
    functions: list[Function]
    bundled: list[str]
    empty_names: int
    walruses: int
    classes: int
    caches: int
    locks: int

    @property
    def tokens_a_line(self) -> float:
        """Return the density of the code."""
        return self.tokens / max(self.lines, 1)


# --- tokens ---------------------------------------------------------------------------------


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings take."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            numbers.update(range(docstring.lineno, docstring.end_lineno + 1))
    return numbers


def code_tokens(text: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each token that is code."""
    documentation = docstring_lines(tree)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type not in LAYOUT_TOKENS and line not in documentation:
            yield line, token.string


# --- functions ------------------------------------------------------------------------------


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those inside its inner functions."""
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            pending.extend(ast.iter_child_nodes(node))


def complexity(function: ast.AST) -> int:
    """Return McCabe's number: one more than the decisions of a function."""
    number = 1
    for node in own_nodes(function):
        if isinstance(node, DECISIONS):
            number += 1
        if isinstance(node, ast.comprehension):
            number += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            number += len(node.values) - 1
    return number


def splats(function: ast.AST) -> int:
    """Return the number of arguments that unpack a tuple that the function has built."""
    tuples = set()
    calls = []
    for node in own_nodes(function):
        if isinstance(node, ast.Call):
            calls.append(node)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            target = node.targets[0]
            if isinstance(target, ast.Name):
                tuples.add(target.id)
    number = 0
    for call in calls:
        for argument in call.args:
            if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                number += argument.value.id in tuples
    return number


def measure_function(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    path: Path,
    token_lines: Sequence[int],
) -> Function:
    """Return the counts of a function; `token_lines` has the line of each token of its file."""
    first_token = bisect.bisect_left(token_lines, function.lineno)
    end_token = bisect.bisect_right(token_lines, function.end_lineno)
    parameters = function.args
    names = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return Function(
        place=f"{path}:{function.lineno} {function.name}",
        tokens=end_token - first_token,
        complexity=complexity(function),
        arguments=sum(name.arg not in ("self", "cls") for name in names),
        body_lines=function.end_lineno - body[0].lineno + 1 if body else 0,
        splats=splats(function),
    )


# --- files ----------------------------------------------------------------------------------


def is_bundled(node: ast.AST) -> bool:
    """Return whether an assignment packs unrelated values into a tuple.

    Swaps and simultaneous updates read a name that they write, and need the tuple.

    >>> statements = ast.parse("a, b = 1, 2; a, b = b, a + b; a, b = pair").body
    >>> [is_bundled(statement) for statement in statements]
    [True, False, False]
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) != len(node.value.elts):
        return False
    written = {element.id for element in target.elts if isinstance(element, ast.Name)}
    names = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
    return not written & names


def bound_name(node: ast.AST) -> str | None:
    """Return the name or attribute that a node binds, if it binds one."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return None


def called_names(nodes: Sequence[ast.AST]) -> Counter[str]:
    """Return how often functions are called, by the last part of their names.

    >>> called_names(list(ast.walk(ast.parse("threading.Lock()"))))
    Counter({'Lock': 1})
    """
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Counter(ast.unparse(call.func).rpartition(".")[2] for call in calls)


def measure_file(path: Path) -> SourceFile:
    """Return the counts of a file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    tokens = list(code_tokens(text, tree))
    token_lines = [line for line, _ in tokens]
    nodes = list(ast.walk(tree))
    types = Counter(map(type, nodes))
    called = called_names(nodes)
    functions = []
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            functions.append(measure_function(node, path, token_lines))
    return SourceFile(
        path=path,
        lines=len({line for line, string in tokens if string not in BRACKETS}),
        tokens=len(tokens),
        functions=functions,
        bundled=[f"{path}:{node.lineno}" for node in nodes if is_bundled(node)],
        empty_names=sum(bound_name(node) in EMPTY_NAMES for node in nodes),
        walruses=types[ast.NamedExpr],
        classes=types[ast.ClassDef],
        caches=called["lru_cache"],
        locks=sum(called[name] for name in LOCKS),
    )


def measure(folder: Path) -> list[SourceFile]:
    """Return the counts of all Python files below a folder."""
    return [measure_file(path) for path in sorted(folder.rglob("*.py"))]


# --- figures --------------------------------------------------------------------------------


def functions_of(files: Sequence[SourceFile]) -> list[Function]:
    """Return the functions of some files."""
    return [function for file in files for function in file.functions]


def total(records: Sequence[Any], field: str) -> int:
    """Return the sum of a field of files or functions."""
    return sum(getattr(record, field) for record in records)


def largest(records: Sequence[Any], field: str) -> int:
    """Return the largest value of a field of files or functions."""
    return max((getattr(record, field) for record in records), default=0)


def figures_of(files: Sequence[SourceFile]) -> dict[str, float]:
    """Return the figures of some files by name.

    *bundled*, *splats*, *empty names* and *walruses* are numbers in 1,000 lines. *complex* is the
    part of the functions' tokens in those above `COMPLEX`. *complexity*, *body lines* and *file
    lines* are those of the worst place, and *median* is the tokens of the median function.
    """
    functions = functions_of(files)
    complex_functions = [function for function in functions if function.complexity > COMPLEX]
    sizes = [function.tokens for function in functions]
    lines = max(total(files, "lines"), 1)
    thousands = lines / 1000
    return {
        "files": len(files),
        "lines": total(files, "lines"),
        "tokens": total(files, "tokens"),
        "tokens a line": total(files, "tokens") / lines,
        "bundled": sum(len(file.bundled) for file in files) / thousands,
        "splats": total(functions, "splats") / thousands,
        "empty names": total(files, "empty_names") / thousands,
        "walruses": total(files, "walruses") / thousands,
        "complex, %": 100 * total(complex_functions, "tokens") / max(sum(sizes), 1),
        "complexity": largest(functions, "complexity"),
        "body lines": largest(functions, "body_lines"),
        "file lines": largest(files, "lines"),
        "median": round(statistics.median(sizes)) if sizes else 0,
        "classes": total(files, "classes"),
        "caches": total(files, "caches"),
        "locks": total(files, "locks"),
    }


def misses(
    name: str,
    files: Sequence[SourceFile],
    limits: dict[str, float],
) -> list[str]:
    """Return a line for each limit that some files pass."""
    figures = figures_of(files)
    return [
        f"{name}: {figure} {figures[figure]:.4g}, at most {limit:g}"
        for figure, limit in limits.items()
        if figures[figure] > limit
    ]


def worst_places(files: Sequence[SourceFile]) -> dict[str, list[tuple[float, str]]]:
    """Return values and places by kind, the worst first."""
    places: dict[str, list[tuple[float, str]]] = {
        "bundled": [(1, place) for file in files for place in file.bundled]
    }
    for field in ("lines", "tokens_a_line", "empty_names"):
        places[f"{field} of files"] = [(getattr(file, field), str(file.path)) for file in files]
    functions = functions_of(files)
    for field in ("complexity", "arguments", "body_lines", "splats"):
        places[field] = [(getattr(function, field), function.place) for function in functions]
    return {kind: sorted(values, reverse=True) for kind, values in places.items()}


# --- printing -------------------------------------------------------------------------------


def rooms_of(folder: Path, files: Sequence[SourceFile]) -> dict[str, list[SourceFile]]:
    """Return the files of each folder just below a folder, and those that lie in none."""
    rooms: dict[str, list[SourceFile]] = {}
    for file in files:
        parts = file.path.relative_to(folder).parts
        room = f"  {parts[0]}/" if len(parts) > 1 else "  files"
        rooms.setdefault(room, []).append(file)
    return dict(sorted(rooms.items()))


def row(name: str, cells: dict[str, str]) -> str:
    """Return a line of a table; `cells` has a text for each figure."""
    columns = [text.rjust(max(7, len(figure))) for figure, text in cells.items()]
    return name.ljust(16) + "  ".join(columns)


def row_of(name: str, files: Sequence[SourceFile]) -> str:
    """Return the line of some files."""
    cells = {}
    for figure, value in figures_of(files).items():
        cells[figure] = f"{value:,.1f}" if isinstance(value, float) else f"{value:,d}"
    return row(name, cells)


def show(folder: Path, files: Sequence[SourceFile]) -> None:
    """Print a line for each room of a folder, and one for all of it."""
    for name, room in rooms_of(folder, files).items():
        print(row_of(name, room))
    print(row_of(folder.name, files))


def show_worst(files: Sequence[SourceFile], count: int) -> None:
    """Print the worst places of each kind."""
    for kind, places in worst_places(files).items():
        print(f"\n{kind.replace('_', ' ')}")
        for value, place in places[:count]:
            if value:
                print(f"  {value:6.4g}  {place}")


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="measured by the package's limits")
    parser.add_argument("--check", action="store_true", help="fail where a limit is passed")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list N places of a kind")
    options = parser.parse_args(arguments)
    limits_of = dict.fromkeys(options.folders, PACKAGE_LIMITS)
    if not options.folders:
        limits_of = {
            ROOT / "dask_bigfft": PACKAGE_LIMITS,
            ROOT / "tests": OTHER_LIMITS,
            ROOT / "benchmarks": OTHER_LIMITS,
        }
    print(row("", {figure: figure for figure in figures_of([])}))
    missed = []
    for folder, limits in limits_of.items():
        files = measure(folder)
        show(folder, files)
        missed += misses(folder.name, files, limits)
        if options.worst:
            show_worst(files, options.worst)
    if not options.check:
        return 0
    print("\n".join(missed) or "No limit is passed.")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

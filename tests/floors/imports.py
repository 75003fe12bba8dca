"""Checks who imports whom in the package, and the size of its files and functions.

Reads the source with `ast` and runs none of it. `check(package)` returns every breach of the rules
as one line of text; run as a script it prints them. The rules are tables at the top of this file.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "dask_bigfft"

#: A module may import rooms on its own floor and below. "" is the package's own `__init__`.
FLOORS = {
    "errors": 0,
    "config": 0,
    "events": 0,
    "record": 0,
    "kept": 0,
    "files": 0,
    "transforms": 1,
    "decomposition": 1,
    "memory": 1,
    "planner": 2,
    "kernels": 3,
    "devices": 4,
    "exchange": 5,
    "graph": 6,
    "memory_settings": 2,
    "threads": 2,
    "fft": 7,
    "front": 7,
    "frequencies": 7,
    "signal": 7,
    "cosines": 7,
    "planning": 7,
    "watch": 7,
    "observe": 7,
    "shifts": 7,
    "runs": 7,
    "calibration": 7,
    "storage": 7,
    "cluster": 7,
    "integrations": 7,
    "xarray": 7,
    "cli": 8,
    "__main__": 9,
    "": 10,
    "testing": 10,
}

#: Rooms that import none of these, nor anything of the package that does.
PURE = ("transforms", "decomposition", "planner")
NOT_PURE = ("dask", "distributed", "cupy", "numba")

#: The only places, as beginnings of module names, that may import a dependency. "" is the package.
DOORS = {
    "xarray": ("xarray",),
    "cupy": ("devices", "testing"),
    "cupyx": ("devices", "testing"),
    "distributed": (
        "cluster", "cli", "exchange.p2p", "graph", "testing",
    ),
    "bokeh": ("cluster.dashboard",),
}

#: Rooms whose functions may import the package.
LATE = ("", "cli", "__main__")

FILE_LINES = 500
FUNCTION_LINES = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where it stands."""

    target: str
    line: int
    late: bool  # inside a function
    typing: bool  # for annotations only, never at run time


@dataclass(frozen=True)
class Module:
    """One source file: its full name, its tree and what it imports."""

    name: str
    path: Path
    tree: ast.Module
    nlines: int
    imports: tuple[Import, ...]

    @property
    def inside(self) -> str:
        """The name without that of the package."""
        return self.name[len(PACKAGE) + 1 :]

    @property
    def room(self) -> str:
        return _room(self.name)


def _room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def _own(name: str) -> bool:
    return name.split(".")[0] == PACKAGE


def _unit(name: str) -> str:
    """Return a module of the package as it is, and any other as the dependency it belongs to."""
    return name if _own(name) else name.split(".")[0]


def read(package: Path) -> list[Module]:
    """Return the modules under the folder `package`, whatever the folder is called."""
    paths = {}
    for path in sorted(package.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(package).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        paths[".".join(parts)] = path
    known = frozenset(paths)
    modules = []
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        home = name if path.stem == "__init__" else name.rpartition(".")[0]
        found = tuple(_imports(tree, home, known, late=False))
        modules.append(Module(name, path, tree, len(text.splitlines()), found))
    return modules


def _imports(
    node: ast.AST, home: str, known: frozenset[str], *, late: bool, typing: bool = False
) -> Iterator[Import]:
    """Yield what is imported under `node` by a file whose package is `home`."""
    late = late or isinstance(node, Function | ast.Lambda)
    typing = typing or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        for target in _targets(child, home, known):
            yield Import(target, child.lineno, late, typing)
        yield from _imports(child, home, known, late=late, typing=typing)


def _targets(node: ast.AST, home: str, known: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            up = home.split(".")[: len(home.split(".")) - node.level + 1]
            base = ".".join([*up, base]) if base else ".".join(up)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            # `from package import module` imports the module, not what its folder holds
            yield full if full in known else base
    elif isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        first = node.args[0]
        if (
            called in ("import_module", "__import__")
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
        ):
            yield first.value


def check(package: Path) -> list[str]:
    """Return every breach of the rules under the folder `package`."""
    modules = read(package)
    breaches = []
    for module in modules:
        if module.room not in FLOORS:
            breaches.append(f"{module.path}:1: the room {module.room!r} has no floor")
            continue
        breaches += _directions(module)
        breaches += _doors(module)
        breaches += _sizes(module)
    breaches += _purity(modules)
    edges = {m.name: {i.target for i in m.imports if not i.typing} for m in modules}
    breaches += _cycles(edges, "modules")
    breaches += _cycles(_rooms(modules), "rooms")
    return breaches


def _directions(module: Module) -> Iterator[str]:
    floor = FLOORS[module.room]
    for found in module.imports:
        where = f"{module.path}:{found.line}: {module.name}"
        if not _own(found.target):
            continue
        room = _room(found.target)
        if found.late and module.room not in LATE:
            yield f"{where} imports {found.target} inside a function"
        if room not in FLOORS:
            yield f"{where} imports {found.target}, a room without a floor"
        elif room != module.room and room == "testing" and module.room:
            yield f"{where} imports {found.target}, which nobody may"
        elif FLOORS[room] > floor:
            yield f"{where} (floor {floor}) imports upwards {found.target} (floor {FLOORS[room]})"


def _doors(module: Module) -> Iterator[str]:
    for found in module.imports:
        dependency = found.target.split(".")[0]
        doors = DOORS.get(dependency, ("",))
        if not module.inside.startswith(doors):
            yield (
                f"{module.path}:{found.line}: {module.name} imports {dependency}, "
                f"which only {', '.join(doors)} may"
            )


def _purity(modules: list[Module]) -> Iterator[str]:
    """Yield what pure rooms import that is not pure, straight or by way of the package."""
    stained = {name: name for name in NOT_PURE}
    before = -1
    while before != len(stained):  # until a pass stains no further module
        before = len(stained)
        for module in modules:
            for found in module.imports:
                cause = stained.get(_unit(found.target))
                if cause is not None and not (found.late and _own(found.target)):
                    stained.setdefault(module.name, cause)
    for module in modules:
        if module.room not in PURE:
            continue
        for found in module.imports:
            cause = stained.get(_unit(found.target))
            if cause is not None:
                way = "" if _unit(found.target) == cause else f" by way of {found.target}"
                yield (
                    f"{module.path}:{found.line}: {module.name} is in a pure room "
                    f"and imports {cause}{way}"
                )


def _sizes(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.path}:1: {module.name} has no docstring"
    if module.nlines > FILE_LINES:
        yield f"{module.path}:1: {module.nlines} lines, more than {FILE_LINES}"
    for node in ast.walk(module.tree):
        if not isinstance(node, Function):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        nlines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
        if nlines > FUNCTION_LINES:
            yield (
                f"{module.path}:{node.lineno}: the body of {node.name} has {nlines} lines, "
                f"more than {FUNCTION_LINES}"
            )


def _rooms(modules: list[Module]) -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {}
    for module in modules:
        targets = {_room(found.target) for found in module.imports if _own(found.target)}
        rooms.setdefault(module.room, set()).update(targets - {module.room})
    return rooms


def _cycles(edges: dict[str, set[str]], what: str) -> Iterator[str]:
    """Yield one circle for each edge that closes one in a walk over `edges`."""
    done: set[str] = set()
    path: list[str] = []

    def walk(name: str) -> Iterator[str]:
        if name in path:
            circle = [*path[path.index(name) :], name]
            yield f"{what} import in a circle: {' -> '.join(part or PACKAGE for part in circle)}"
        elif name not in done:
            path.append(name)
            for target in sorted(edges[name] & edges.keys()):
                yield from walk(target)
            done.add(path.pop())

    for name in sorted(edges):
        yield from walk(name)


def main() -> int:
    """Print the breaches in the package beside this folder's parent; return 1 if there are any."""
    breaches = check(Path(__file__).resolve().parents[2] / PACKAGE)
    print("\n".join(breaches) or "imports: clean")
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())

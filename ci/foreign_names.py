"""Names of other libraries that the package uses: those that its files show, and a list of others.

Imports show most names. Attributes, overridden methods and functions of C libraries do not tell
whose they are, so the tables below say it. `tests/test_foreign_names.py` keeps them complete.
"""

import ast
import re
from collections.abc import Iterator

#: Private names that are attributes of objects, or that classes of the package override. Keys are a
#: module and, after a colon, one of its classes; without one the names are of the module.
ATTRIBUTES = {
    "concurrent.futures:ThreadPoolExecutor": "_max_workers",
    "cupy.cuda.runtime": "_deviceEnsurePeerAccess",
    "dask._expr:Expr": "_defaults _layer _meta _name _parameters _simplify_up",
    "dask.array:Array": "_meta",
    "dask.array._array_expr._expr:ArrayExpr": "_operands_for_repr",
    "dask_array:Array": "_meta",
    "dask_array._expr:ArrayExpr": "_layer _operands_for_repr",
    "distributed:Scheduler": "_instances",
    "distributed.shuffle._core:ShuffleRun": "_disk_buffer",
    "distributed.shuffle._disk:DiskShardsBuffer": "_write_frames",
    "distributed.shuffle._rechunk:ArrayRechunkRun": (
        "_get_output_partition _read_from_disk _receive _shard_partition"
    ),
    "distributed.shuffle._scheduler_plugin:ShuffleSchedulerPlugin": "_set_restriction",
    "distributed.shuffle._worker_plugin:ShuffleWorkerPlugin": "_executor",
    "multiprocessing.pool:Pool": "_processes",
    "numba.core.cgutils:_StructProxy": "_getvalue",
    "numba.core.codegen:CPUCodeLibrary": "_final_module _get_compiled_object",
    "numba.core.registry:CPUDispatcher": "_numba_type_",
}

#: Names without an underscore that no documentation has, in the same form.
UNDOCUMENTED = {
    "cuda.pathfinder": "load_nvidia_dynamic_lib",
    "cupy.cuda.cufft": """CUFFT_C2C CUFFT_C2R CUFFT_D2Z CUFFT_FORWARD CUFFT_INVERSE CUFFT_R2C
        CUFFT_Z2D CUFFT_Z2Z CuFFTError PlanNd XtPlanNd getVersion""",
    "cupy.cuda.cufft:PlanNd": "fft handle",
    "cupy.cuda.cufft:XtPlanNd": "fft handle",
    "llvmlite.ir:IRBuilder": "gep load",
    "numba.core": "types.Array",
    "numba.core.compiler_lock": "global_compiler_lock",
    "numba.extending": "intrinsic",
    "numba.np.arrayobj": "populate_array",
}

#: Private modules that are imported by a text: one of each row is there.
MODULES = (("scipy.fft._duccfft.pyduccfft", "scipy.fft._pocketfft.pypocketfft"),)

#: Functions of C libraries that ctypes calls. The loader of NVIDIA's package finds cuFFT.
C_FUNCTIONS = {
    "libcuda.so.1": "cuDeviceGet cuDevicePrimaryCtxRetain cuInit cuMemcpy2DAsync_v2",
    "cufft": "cufftSetWorkArea",
}

#: Names with an underscore that Python and IPython document.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace", "_repr_html_"}

_PRIVATE_NAME = re.compile(r"_[a-zA-Z]\w*")
_PRIVATE_MODULE = re.compile(r"[a-z]\w*(\.\w+)*\._\w+(\.\w+)*")
_C_FUNCTION = re.compile(r"cu(fft)?[A-Z]\w+")


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import; the name is empty for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, node.module, alias.name


def cupy_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each name of CuPy, which a function `cupy()` imports.

    Variables that hold a module of CuPy, as in ``cuda = cupy().cuda``, are followed.
    """
    if not any(isinstance(node, ast.Name) and node.id == "cupy" for node in ast.walk(tree)):
        return
    variables = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("cupy()")
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        owner = ast.unparse(node.value)
        module = variables.get(owner, owner)
        if re.fullmatch(r"cupy\(\)(\.[a-z_]+)*", module):
            path = module.replace("cupy()", "cupy").partition(".")
            yield node.lineno, path[0], f"{path[2]}.{node.attr}".lstrip(".")


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a file gives to functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(value=ast.Name("self" | "cls"), ctx=ast.Store()):
                names.add(node.attr)
            case ast.Assign(targets=[ast.Name("__slots__")]):
                names.update(ast.literal_eval(node.value))
    return names


def private_names(tree: ast.AST, package_names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private attribute that another library defines.

    Attributes of `self` are the package's own if any of its files defines them, and attributes of
    other objects if this file does.
    """
    file_names = defined_names(tree)
    for line, owner, name in _accesses(tree):
        own_names = package_names if owner in ("self", "cls") else file_names
        if _PRIVATE_NAME.fullmatch(name) and name not in own_names | DOCUMENTED:
            yield line, name


def _accesses(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, owner and name of each attribute, also by `getattr` and loops over names."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner)):
                yield node.lineno, owner, node.attr
            case ast.Attribute():
                yield node.lineno, "", node.attr
            case ast.Call(
                func=ast.Name("getattr" | "hasattr" | "setattr"),
                args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, owner, name
            case ast.For(iter=ast.Tuple(elts=names)):
                for element in names:
                    if isinstance(element, ast.Constant) and isinstance(element.value, str):
                        yield element.lineno, "", element.value


def private_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private module of another library that a text names."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _PRIVATE_MODULE.fullmatch(text):
                yield node.lineno, text


def c_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function of CUDA's C libraries."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _C_FUNCTION.fullmatch(node.attr):
            yield node.lineno, node.attr

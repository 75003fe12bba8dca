"""The compiler of loops into object files, by numba; imported only to compile.

A program, too: ``python -m dask_bigfft.kernels.compiler MODULE:NAME SIGNATURE`` compiles a loop for
the signature of its arguments, and stores it where later processes look for it.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from dask_bigfft.kernels.compiled import delete_unused_files, load_numba
from dask_bigfft.system import lower_priority

numba = load_numba()
types = numba.core.types
populate_array = importlib.import_module("numba.np.arrayobj").populate_array

# Offsets in an array's object, in words after the head.

#: Offset of the address of the values.
_DATA = 0

#: Offset of the address of the shape.
_SHAPE = 2

#: Offset of the address of the strides.
_STRIDES = 3

#: Functions of the operating system that machine code may call, besides those of LLVM.
_EXTERNAL = ("llvm.", "mem", "pthread_", "__")

_WORD = ir.IntType(64)


def compile_loop(path: str, signature: str, entry: str) -> bytes:
    """Return the machine code of a loop for a signature.

    Parameters
    ----------
    path : str
        ``"module:name"``.
    signature : str
        Names of the types of the arguments.
    entry : str
        Name of the function in C.
    """
    module, name = path.split(":")
    dispatcher = getattr(importlib.import_module(module), name).dispatcher
    argument_types = tuple(_numba_type(type_name) for type_name in signature.split())
    dispatcher.compile(argument_types)
    overload = dispatcher.overloads[argument_types]
    with numba.core.compiler_lock.global_compiler_lock:
        library = overload.target_context.codegen().create_library(f"{path} {signature}")
        library.enable_object_caching()
        library.add_linking_library(overload.library)
        library.add_ir_module(_entry(overload, entry))
        library.finalize()
    for function in library._final_module.functions:
        if function.is_declaration and not function.name.startswith(_EXTERNAL):
            raise RuntimeError(f"{path} calls {function.name}, which only numba has")
    return bytes(library._get_compiled_object())


def _numba_type(name: str) -> Any:
    """Return numba's type of a name in a signature.

    >>> _numba_type("c8,2,CA")
    Array(complex64, 2, 'C', False, aligned=True)
    """
    scalars = {
        "int": types.int64,
        "float": types.float64,
        "bool": types.boolean,
        "NoneType": types.none,
    }
    if name in scalars:
        return scalars[name]
    dtype, ndim, layout = name.split(",")
    return types.Array(
        numba.from_dtype(np.dtype(dtype)),
        int(ndim),
        "C" if "C" in layout else "A",
        aligned="A" in layout,
    )


def _entry(overload: Any, name: str) -> Any:
    """Return the function that C calls: it makes numba's arrays from addresses of NumPy's."""
    context = overload.target_context
    argument_types = overload.signature.args
    module = context.create_module(name)
    callee = ir.Function(
        module,
        context.call_conv.get_function_type(overload.fndesc.restype, argument_types),
        overload.fndesc.llvm_func_name,
    )
    c_types = [ir.DoubleType() if t == types.float64 else _WORD for t in argument_types]
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), c_types), name)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    values = [
        _value(context, builder, argument_type, argument)
        for argument_type, argument in zip(argument_types, entry.args, strict=True)
    ]
    status, _ = context.call_conv.call_function(
        builder,
        callee,
        overload.fndesc.restype,
        argument_types,
        values,
    )
    builder.ret(builder.zext(status.is_error, ir.IntType(32)))
    return module


def _value(
    context: Any,
    builder: Any,
    argument_type: Any,
    argument: Any,
) -> Any:
    """Return an argument of the C function as numba has it."""
    if argument_type == types.none:
        return context.get_dummy_value()
    if argument_type == types.boolean:
        return builder.icmp_signed("!=", argument, _WORD(0))
    if not isinstance(argument_type, types.Array):
        return argument
    head = builder.inttoptr(argument, _WORD.as_pointer())
    first = object.__basicsize__ // 8

    def word(pointer: Any, place: int) -> Any:
        if not getattr(pointer.type, "is_opaque", False):
            return builder.load(builder.gep(pointer, [_WORD(place)]))
        # newer llvmlite's pointers know no type
        address = builder.gep(pointer, [_WORD(place)], source_etype=_WORD)
        return builder.load(address, typ=_WORD)

    def words(place: int) -> list[Any]:
        pointer = builder.inttoptr(word(head, first + place), _WORD.as_pointer())
        return [word(pointer, d) for d in range(argument_type.ndim)]

    array = context.make_array(argument_type)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(word(head, first + _DATA), array.data.type),
        shape=words(_SHAPE),
        strides=words(_STRIDES),
        itemsize=_WORD(context.get_abi_sizeof(context.get_data_type(argument_type.dtype))),
        meminfo=None,
    )
    return array._getvalue()


def main(arguments: Sequence[str]) -> None:
    """Compile a loop, with the lowest priority, and delete files that are not used any more."""
    lower_priority()
    path, signature = arguments
    module, name = path.split(":")
    _, is_stored = getattr(importlib.import_module(module), name).compile(signature)
    delete_unused_files()
    sys.exit(0 if is_stored else 1)


if __name__ == "__main__":
    main(sys.argv[1:])

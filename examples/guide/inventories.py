"""Inventories for intersphinx, made from what docstrings name: the build needs no network.

A name such as `scipy.signal.welch` in single backquotes becomes a link, if such a function or
class exists. The pages of these libraries have the names of their objects.
"""

import re
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np

import dask_bigfft

#: Documentation of each library, and the page of an object in it; $ stands for the name.
LIBRARIES = {
    "dask": ("https://docs.dask.org/en/stable/", "generated/$.html#$"),
    "numpy": ("https://numpy.org/doc/stable/", "reference/generated/$.html#$"),
    "scipy": ("https://docs.scipy.org/doc/scipy/", "reference/generated/$.html#$"),
    "xarray": ("https://docs.xarray.dev/en/stable/", "generated/$.html#$"),
}

_NAME = re.compile(r"`((?:dask\.array|numpy|scipy|xarray)\.[\w.]*\w)`")


def mentioned_names():
    """Return the names of other libraries' objects in the package, in alphabetical order."""
    names = set()
    for path in Path(dask_bigfft.__file__).parent.rglob("*.py"):
        names.update(_NAME.findall(path.read_text(encoding="utf-8")))
    return sorted(names)


def object_named(name):
    """Return a function or class by its name; None for modules and what does not exist."""
    module_name, _, attribute = name.rpartition(".")
    try:
        found = getattr(import_module(module_name), attribute, None)
    except ImportError:  # a method: its class is in a module
        class_name, _, _ = name.rpartition(".")
        owner = object_named(class_name) if class_name.count(".") else None
        found = getattr(owner, attribute, None)
    is_scalar = isinstance(found, type) and issubclass(found, np.generic)  # on a common page
    return found if callable(found) and not is_scalar else None


def write_inventories(folder):
    """Write an inventory for each library; return the mapping for intersphinx."""
    lines = {library: [] for library in LIBRARIES}
    for name in mentioned_names():
        found = object_named(name)
        library = name.partition(".")[0]
        if found is not None:
            role = "class" if isinstance(found, type) else "function"
            page = LIBRARIES[library][1].replace("$", name)
            lines[library].append(f"{name} py:{role} 1 {page} -\n")
    mapping = {}
    for library, (address, _) in LIBRARIES.items():
        path = Path(folder, f"{library}.inv")
        head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        path.write_bytes(head.encode() + zlib.compress("".join(lines[library]).encode()))
        mapping[library] = (address, str(path))
    return mapping

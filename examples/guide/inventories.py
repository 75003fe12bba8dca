"""Inventories for intersphinx, made from what docstrings and pages name, without network.

A name such as `scipy.signal.welch` in single backquotes becomes a link, if such a function, class
or module exists. The pages of these libraries have the names of their objects.
"""

import re
import zlib
from importlib import import_module
from pathlib import Path

import links
import numpy as np

import dask_bigfft

GUIDE = Path(__file__).resolve().parent

#: Documentation of each library, and the page of an object in it; $ stands for the name.
LIBRARIES = {
    "dask": ("https://docs.dask.org/en/stable/", "generated/$.html#$"),
    "numpy": ("https://numpy.org/doc/stable/", "reference/generated/$.html#$"),
    "scipy": ("https://docs.scipy.org/doc/scipy/", "reference/generated/$.html#$"),
    "xarray": ("https://docs.xarray.dev/en/stable/", "generated/$.html#$"),
    "zarr": ("https://zarr.readthedocs.io/en/stable/", "api/zarr/"),
}

#: Pages of modules, and of functions without a page of their own.
PAGES = {
    "dask.array": "array.html",
    "dask.array.fft": "array-api.html",
    "dask.config": "configuration.html",
    "dask.config.set": "configuration.html#$",
    "dask.delayed": "delayed-api.html#$",
    "dask.optimize": "api.html#$",
    "numpy.fft": "reference/routines.fft.html",
    "scipy.fft": "reference/fft.html",
    "scipy.signal": "reference/signal.html",
}

_NAME = re.compile(r"`([\w.]+)`")


def mentioned_names():
    """Return the names of other libraries' objects in the package and the guide, sorted."""
    files = [*Path(dask_bigfft.__file__).parent.rglob("*.py"), *GUIDE.glob("*.md")]
    names = {
        links.full_name(name)
        for path in files
        for name in _NAME.findall(path.read_text(encoding="utf-8"))
        if links.is_name(name)
    }
    return sorted(name for name in names if name.partition(".")[0] in LIBRARIES)


def object_named(name):
    """Return a function or class by its name; None for modules and what does not exist."""
    module_name, _, attribute = name.rpartition(".")
    try:
        target = getattr(import_module(module_name), attribute, None)
    except ImportError:  # a method: its class is in a module
        class_name, _, _ = name.rpartition(".")
        owner = object_named(class_name) if class_name.count(".") else None
        target = getattr(owner, attribute, None)
    is_scalar = isinstance(target, type) and issubclass(target, np.generic)  # on a common page
    return target if callable(target) and not is_scalar else None


def role_of(name):
    """Return the role of a name in the Python domain; None for what has no page."""
    target = object_named(name)
    if target is not None:
        return "class" if isinstance(target, type) else "function"
    return "module" if name in PAGES else None


def write_inventories(folder):
    """Write an inventory for each library; return the mapping for intersphinx."""
    lines = {library: [] for library in LIBRARIES}
    for name in mentioned_names():
        library = name.partition(".")[0]
        role = role_of(name)
        if role is not None:
            page = PAGES.get(name, LIBRARIES[library][1]).replace("$", name)
            lines[library].append(f"{name} py:{role} 1 {page} -\n")
    mapping = {}
    for library, (address, _) in LIBRARIES.items():
        path = Path(folder, f"{library}.inv")
        head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        path.write_bytes(head.encode() + zlib.compress("".join(lines[library]).encode()))
        mapping[library] = (address, str(path))
    return mapping

"""Links from names in pages, such as `da.fft`, to the reference and to other libraries.

Pages stay plain Markdown. The first mention of a name on a page becomes a link if the reference or
an inventory has the name.
"""

from docutils import nodes
from sphinx.addnodes import pending_xref

#: Modules by the names under which pages import them.
IMPORTED_AS = {
    "da": "dask.array",
    "np": "numpy",
    "xr": "xarray",
    "fft": "dask_bigfft.fft",
    "signal": "dask_bigfft.signal",
}


def full_name(name):
    """Return the name of an object with that of its module in full.

    >>> full_name("da.pad"), full_name("scipy.fft")
    ('dask.array.pad', 'scipy.fft')
    """
    module, dot, rest = name.partition(".")
    return IMPORTED_AS.get(module, module) + dot + rest


def is_name(text):
    """Return whether a text is a name with that of a module.

    >>> is_name("da.pad"), is_name("chunks"), is_name("da.pad(x)")
    (True, False, False)
    """
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def add_links(app, doctree):
    """Make the first mention of each name on a page a reference, except in headings and links."""
    linked = set()
    for literal in list(doctree.findall(nodes.literal)):
        target = full_name(literal.astext())
        is_plain = isinstance(literal.parent, (nodes.paragraph, nodes.entry, nodes.term))
        if not is_plain or target in linked or not is_name(literal.astext()):
            continue
        linked.add(target)
        reference = pending_xref("", refdomain="py", reftype="obj", reftarget=target)
        reference["refdoc"] = app.env.docname
        literal.replace_self(reference)
        reference += literal


def setup(app):
    """Make Sphinx add the links."""
    app.connect("doctree-read", add_links)
    return {"parallel_read_safe": True}

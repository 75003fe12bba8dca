"""The reference: tables of functions, and docstrings without the parameters that all share.

The directive ``functions`` is a table of functions and classes, one line each, which links to their
descriptions. It has the public names of the module that is its argument, and the names that it
contains. The parameters of transforms are described once for one axis
(`dask_bigfft.fft.fft`) and once for several (`dask_bigfft.fft.fftn`). A class that lists its public
names has those fields alone, as attributes: the package makes its objects.
"""

import re
from importlib import import_module

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from dask_bigfft.api.arguments import Extras

#: Functions with all parameters.
IN_FULL = ("dask_bigfft.fft.fft", "dask_bigfft.fft.fftn")

#: Classes without a public constructor, beside those that list their public names.
RESULTS = (
    "dask_bigfft.planner.plan.Forecast",
    "dask_bigfft.planner.plan.Machine",
    "dask_bigfft.runs.Done",
    "dask_bigfft.signal.segment_plan.SegmentForecast",
    "dask_bigfft.watch.report.Row",
)

#: The last keyword of all transforms and filters, and those before it.
*_OTHERS, _LAST = Extras.__annotations__

#: These keywords at the end of a signature. The argument `order` of a filter is none of them.
_KEYWORDS = re.compile(rf"( \*,)?( ({'|'.join(_OTHERS)})=None,)* {_LAST}=None\)$")


class FunctionsDirective(Directive):
    """A table of functions: name, and first line of the docstring."""

    optional_arguments = 1
    has_content = True

    def run(self):
        """Return the table."""
        names = []
        for module_name in self.arguments:
            module = import_module(module_name)
            names += [f"{module_name}.{name}" for name in sorted(module.__all__)]
        names += list(self.content)
        rows = [f"   ~{name}" for name in names]
        lines = [".. autosummary::", "   :nosignatures:", "", *rows]
        section = nodes.container()
        self.state.nested_parse(StringList(lines, "functions"), 0, section)
        return section.children


def without_files(app, what, name, obj, options, lines):
    """Leave the list of its files out of the docstring of a module."""
    if what == "module":
        text = "\n".join(lines).partition(" The modules::")[0]
        lines[:] = [*text.splitlines(), ""]


def public_fields(app, what, name, obj, options, lines):
    """Replace the parameters of a class that lists its public names by its public fields."""
    names = getattr(obj, "_public_names", ())
    if what != "class" or not names:
        return
    text, _, parameters = "\n".join(lines).partition("\nParameters\n----------\n")
    entries = re.split(r"^(?=\S)", parameters, flags=re.MULTILINE)
    public = [entry for entry in entries if entry.partition(" : ")[0] in names]
    if public:
        text += f"\nAttributes\n----------\n{''.join(public)}"
    lines[:] = [*text.splitlines(), ""]


def shortened_docstring(app, what, name, obj, options, lines):
    """Replace the parameters that a docstring shares with others by a reference."""
    text = "\n".join(lines)
    if name in IN_FULL or f"\n{_LAST} : " not in text:
        return
    summary, _, others = text.partition("\nParameters\n")
    examples = others.partition("\nExamples\n")[2]
    several = "\naxes : " in others
    same = "fftn" if several else "fft"
    text = f"{summary}\nArguments, keywords, result and errors are described for `{same}`.\n"
    if examples:
        text += f"\nExamples\n{examples}"
    lines[:] = text.splitlines()


def shortened_signature(app, what, name, obj, options, signature, returned):
    """Leave the keywords of all transforms out of a signature, and all arguments of results."""
    if name in RESULTS or (what == "class" and getattr(obj, "_public_names", ())):
        return "", None
    if signature is None or name in IN_FULL:
        return None
    return _KEYWORDS.sub(" **keywords)", signature), returned


def setup(app):
    """Make the directive and the shorter texts known."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("functions", FunctionsDirective)
    app.connect("autodoc-process-docstring", shortened_docstring, priority=400)
    app.connect("autodoc-process-docstring", without_files, priority=400)
    app.connect("autodoc-process-docstring", public_fields, priority=400)
    app.connect("autodoc-process-signature", shortened_signature)
    return {"parallel_read_safe": True}

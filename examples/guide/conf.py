"""Configuration of Sphinx with MyST for `ci/docs`.

Two directives draw from the package itself, so that pictures and tables cannot grow old: `plan`
shows the drawing of the plan that its arguments give, `settings` lists every setting.
"""

import sys
from pathlib import Path

import dask.array as da
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dask_bigfft
from dask_bigfft.config import SETTINGS

project = "dask_bigfft"
author = copyright = "dask_bigfft developers"
version = release = dask_bigfft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dask_bigfft {release}"
html_show_copyright = False
html_copy_source = html_show_sourcelink = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False


class PlanDirective(Directive):
    """The drawing of a plan: the directive's argument is that of `dask_bigfft.plan`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        """Return the drawing as HTML."""
        names = {"da": da, "plan": dask_bigfft.plan}
        plan = eval(f"plan({self.arguments[0]})", names)
        return [nodes.raw("", f'<div class="plan">{plan._repr_html_()}</div>', format="html")]


class SettingsDirective(Directive):
    """A definition list of every setting: key, default, unit and meaning."""

    def run(self):
        """Return the list."""
        lines = []
        for setting in SETTINGS.values():
            default = "null" if setting.default is None else str(setting.default)
            lines += [
                f"``{setting.key}``",
                f"    default ``{default}`` ({setting.unit})",
                "",
                *(f"    {line}" for line in setting.description.splitlines()),
                "",
            ]
        section = nodes.container()
        self.state.nested_parse(StringList(lines, "settings"), 0, section)
        return section.children


def setup(app):
    """Make the directives known."""
    app.add_directive("plan", PlanDirective)
    app.add_directive("settings", SettingsDirective)

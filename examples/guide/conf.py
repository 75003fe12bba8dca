"""Configuration of Sphinx with MyST for `ci/docs`.

Directives draw from the package itself, so that pictures and tables cannot grow old: `plan` shows
the drawing of the plan that its arguments give, `settings` lists every setting, and `functions`
the functions of a module. The code of pages and notebooks is run (`outputs`, myst-nb); with
``-D run_code=0 -D nb_execution_mode=off`` it is not.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import dask.array as da
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import inventories

import dask_bigfft
from dask_bigfft.config import SETTINGS

GUIDE = Path(__file__).resolve().parent

project = "dask_bigfft"
author = copyright = "dask_bigfft developers"
version = release = dask_bigfft.__version__

extensions = ["myst_nb", "links", "outputs", "reference", "sphinx.ext.autodoc"]
extensions += ["sphinx.ext.autosummary", "sphinx.ext.intersphinx", "sphinx.ext.napoleon"]
default_role = "py:obj"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dask_bigfft {release}"
html_show_copyright = False
html_copy_source = html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["guide.css"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = napoleon_use_param = False
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
os.environ.pop("MPLBACKEND", None)  # notebooks would show no figures

#: Folder of the inventories, until the build ends.
INVENTORIES = tempfile.TemporaryDirectory()
intersphinx_mapping = inventories.write_inventories(INVENTORIES.name)


class PlanDirective(Directive):
    """The drawing of a plan: the directive's argument is that of `dask_bigfft.plan`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        """Return the drawing as HTML."""
        names = {"da": da, "plan": dask_bigfft.plan}
        plan = eval(f"plan({self.arguments[0]})", names)
        drawing = re.search(r"<table.*</table>", plan._repr_html_(), re.DOTALL)[0]
        caption = f"<p>{plan.notation}</p>"
        return [nodes.raw("", f'<div class="plan">{caption}{drawing}</div>', format="html")]


class SettingsDirective(Directive):
    """A definition list of every setting: key, default, unit and meaning."""

    def run(self):
        """Return the list."""
        lines = []
        for setting in SETTINGS.values():
            default = "null" if setting.default is None else str(setting.default)
            lines += [
                f"`{setting.key}`",
                f": default `{default}` ({setting.unit})",
                "",
                *(f"  {line}" for line in setting.description.splitlines()),
                "",
            ]
        section = nodes.container()
        self.state.nested_parse(StringList(lines, "settings"), 0, section)
        return section.children


def copy_notebooks(app, config):
    """Copy the notebooks to a folder below the pages, where Sphinx finds them."""
    shutil.copytree(GUIDE.parent / "notebooks", GUIDE / "notebooks", dirs_exist_ok=True)


def setup(app):
    """Make the directives known."""
    app.connect("config-inited", copy_notebooks)
    app.add_directive("plan", PlanDirective)
    app.add_directive("settings", SettingsDirective)

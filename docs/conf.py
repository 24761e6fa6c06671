"""Settings of the documentation site; `make docs` builds it."""

import os
import sys
from pathlib import Path

from sphinx.util.nodes import make_refnode
from sphinx_gallery.sorting import ExplicitOrder

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
os.environ["LIESPARSE_DOCS"] = "gallery"  # two how-tos learn from less
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two scripts at a time, one thread each

import liesparse

project = "liesparse"
author = "The liesparse developers"
copyright = author  # noqa: A001
version = release = liesparse.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "tutorial", "howto"]  # the galleries are written to generated/
nitpicky = True

autodoc_typehints = "none"  # shapes are in the docstrings
autosummary_generate = True
autosummary_ignore_module_all = False
numpydoc_show_class_members = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

HOWTOS = ["discover", "canonicalize", "classify", "three", "particles", "nuisance", "layer", "prior"]
sphinx_gallery_conf = {
    "examples_dirs": ["tutorial", "howto"],
    "gallery_dirs": ["generated/tutorial", "generated/howto"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": ExplicitOrder([*(f"{name}.py" for name in HOWTOS), "first_model.py"]),
    "copyfile_regex": r"^$",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "parallel": 2,
    "abort_on_example_error": True,
    "capture_repr": (),
    "write_computation_times": False,
    "backreferences_dir": "generated/backreferences",
    "show_memory": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "liesparse"
html_static_path = ["_static"]
html_css_files = ["liesparse.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "liesparse"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc", "sg_download_links"], "architecture": []},
}
html_sidebars = {"index": []}


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out what a class inherits from other packages."""
    function = getattr(obj, "fget", None) or getattr(obj, "func", None) or getattr(obj, "__func__", obj)
    home = getattr(function, "__module__", None)
    return skip or not (home or "").startswith("liesparse")


def find_by_name(app, env, node, contnode):
    """Link a name to the object of that name, if there is one: it may be documented under a shorter path."""
    name = "." + node.get("reftarget", "").rpartition(".")[2]
    found = [path for path in env.get_domain("py").objects if path.endswith(name) and path.count(".") <= 2]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    entry = env.get_domain("py").objects[found[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, found[0])


def setup(app):
    """Connect the above."""
    app.connect("missing-reference", find_by_name)
    app.connect("autodoc-skip-member", skip_foreign)

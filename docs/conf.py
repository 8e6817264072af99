"""How Sphinx builds this documentation: ``make docs``. Nothing is fetched while it is built or read."""

import importlib.util
import re
import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from explorations import write_explorations

project = "robustnmf"
author = "The robustnmf developers"
copyright = author
version = release = version_of("robustnmf")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
nitpicky = False  # types of other packages have no pages here

# --- Text -------------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]  # the settings of the gallery hold a function

# Links that are right in the repository, and what they are called here.
MOVED = {"../benchmarks/results/speed.md": "speed_results.md", "../SECURITY.md": "security.md"}

# --- Reference --------------------------------------------------------------------------------------------------------

default_role = "autolink"  # `name` in a docstring is a link where there is something of that name
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc names the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"

# --- Gallery ----------------------------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "doc_module": ("robustnmf",),
    "reference_url": {"robustnmf": None},
    "backreferences_dir": "generated/backreferences",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "min_reported_time": 1,
    "show_memory": False,
    "write_computation_times": False,
}

# --- Pages ------------------------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "robustnmf"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
# Pages without others below them.
ALONE = ("getting_started", "theory", "scikit_learn", "reproduction", "security", "contributing", "changelog")
html_sidebars = {page: [] for page in ALONE}
html_context = {"default_mode": "auto"}  # light or dark, as the system is
html_theme_options = {
    "logo": {"text": "robustnmf"},
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Drawn as SVG: one file, and no fonts, which browsers do not load for pages that are opened from a disk.
mathjax_path = "mathjax/tex-svg.js"


def move_links(app, docname, source):
    """Make links work that lead out of this folder."""
    for old, new in MOVED.items():
        source[0] = source[0].replace(f"]({old})", f"]({new})")


def skip_member(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator: its texts link to pages that are not here."""
    theirs = {"get_feature_names_out", "get_metadata_routing", "get_params", "set_output", "set_params"}
    return True if name in theirs or re.fullmatch("set_.*_request", name) else None


def read_as_plain_text(app, what, name, obj, options, lines):
    """Let |r| and scale_ in docstrings be what they are; for reStructuredText they are substitutions and links."""
    if lines and lines[0].startswith("Alias for field number"):  # what Python says of a field of a named tuple
        lines.clear()
    for place, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        head, colon, rest = line.partition(" : ") if re.match(r"\w+(, \w+)* : ", line) else ("", "", line)
        parts = re.split(r"(`+[^`]*`+)", rest)
        parts[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
        lines[place] = head + colon + "".join(parts)


def copy_mathjax(app, error):
    """Put MathJax beside the pages; the package that it comes from would copy 24 MB."""
    if error is None and app.builder.format == "html":
        package = importlib.util.find_spec("sphinx-mathjax-offline")
        source = Path(package.origin).parent / "static" / mathjax_path
        target = Path(app.outdir) / "_static" / mathjax_path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def add_explorations(app, error):
    """Put the pages of finished explorations beside the others, in ``demo``."""
    if error is None and app.builder.format == "html":
        write_explorations(Path(app.outdir) / "demo")


def setup(app):
    """Connect the functions above."""
    app.connect("source-read", move_links)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", read_as_plain_text, priority=100)  # before numpydoc
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", add_explorations)

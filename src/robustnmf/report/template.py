"""Pages from templates (Jinja2, extra ``report``); all of them extend ``base.html.j2``."""

from importlib.resources import files
from typing import Any

from robustnmf.utils.extras import optional

BASE = "base.html.j2"


def template(package: str, name: str) -> Any:
    """Return a page without its contents: the file `name` of a package, which may extend ``base.html.j2``."""
    jinja2 = optional("jinja2", "report")
    # Read here and not by a loader of Jinja: the package may lie in a zip file.
    places = {BASE: "robustnmf.report", name: package}
    sources = {file: files(place).joinpath(file).read_text(encoding="utf-8") for file, place in places.items()}
    # What is not known to be markup is escaped; a name that is not known is an error, not a gap in the page.
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)

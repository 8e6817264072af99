"""A page in the browser to explore a factorisation: ``robustnmf view``.

The server listens on 127.0.0.1 only, and answers only requests that carry the token that it has drawn at its start. The
page loads nothing from elsewhere. `write_page` writes a page of a finished exploration that needs no server.
"""

from robustnmf.view.demo import write_page
from robustnmf.view.server import serve
from robustnmf.view.study import Study

__all__ = ["Study", "serve", "write_page"]

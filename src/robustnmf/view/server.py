"""The server of the page: on this machine only, for who has the token."""

from __future__ import annotations

import json
import secrets
import socket
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from robustnmf.formats.options import MAX_BYTES
from robustnmf.utils.extras import optional
from robustnmf.utils.files import new_scratch_folder, remove_scratch, remove_scratch_folder, write_atomically
from robustnmf.view import exports, views
from robustnmf.view.study import Study, StudyError

HOST = "127.0.0.1"
STATIC = Path(__file__).parent / "static"
MOST_STUDIES = 8
"""Data sets that are open at a time; the oldest is closed for a new one."""
# Nothing is loaded from elsewhere, nothing that a file names is run, and no other page can frame this one.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Studies:
    """What is open, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Study] = {}
        self._next = 1

    def add(self, study: Study) -> int:
        """Open a study; the oldest is closed where there are too many."""
        while len(self._open) >= MOST_STUDIES:
            self._open.pop(min(self._open)).stop()
        number, self._next = self._next, self._next + 1
        self._open[number] = study
        return number

    def __getitem__(self, number: int) -> Study:
        if number not in self._open:
            raise LookupError("This data is not open any more. Open the file again.")
        return self._open[number]

    def listed(self) -> list[dict[str, Any]]:
        """Return numbers and names."""
        return [{"id": number, "name": study.name} for number, study in self._open.items()]


def serve(
    path: Path | None = None,
    *,
    uncertainties: Path | None = None,
    port: int = 0,
    show: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page until the process is interrupted.

    Parameters
    ----------
    path : Path or None
        What to open: a file of data, or a folder that ``robustnmf fit`` has written.
    uncertainties : Path or None
        File with an uncertainty for every entry of the data.
    port : int
        Port of 127.0.0.1; 0 takes a free one.
    show : bool
        Whether to open the page in the browser.
    say : function of str
        Is told the address of the page.
    """
    uvicorn = optional("uvicorn", "view")
    studies, token = Studies(), secrets.token_urlsafe(24)
    if path is not None:
        studies.add(Study.open(path, uncertainties))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        address = f"http://{HOST}:{listener.getsockname()[1]}/#token={token}"
        say(f"Open {address}")
        if show:
            webbrowser.open(address)
        with uploads() as folder:
            app = application(studies, token, folder)
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
    finally:
        listener.close()


@contextmanager
def uploads() -> Iterator[Path]:
    """Make a folder for files that are dropped on the page, and remove it afterwards."""
    folder = new_scratch_folder(None)
    before = set(folder.iterdir())
    try:
        yield folder
    finally:
        for path in set(folder.iterdir()) - before:
            remove_scratch(path)
        remove_scratch_folder(folder)


def application(studies: Studies, token: str, folder: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the application: the page, and what it asks for.

    Parameters
    ----------
    studies : Studies
        What is open.
    token : str
        What requests must carry in the header ``Authorization``.
    folder : Path
        Where dropped files are kept.
    max_bytes : int
        Largest file that is taken.
    """
    applications = optional("starlette.applications", "view", "starlette")
    routing, static = (optional(f"starlette.{name}", "view", "starlette") for name in ("routing", "staticfiles"))
    api = _Api(studies, folder, max_bytes)
    of_study = "/api/studies/{number:int}"
    routes = [
        routing.Route("/api/studies", api.answer(api.list_studies)),
        routing.Route("/api/studies", api.upload, methods=["POST"]),
        routing.Route(of_study, api.answer(api.overview)),
        routing.Route(of_study + "/export/{file}", api.answer(api.export)),
        routing.Route(of_study + "/{view}", api.answer(api.view)),
        routing.Route(of_study + "/{view}/{place:int}", api.answer(api.line)),
        routing.Route(of_study + "/{action}", api.act, methods=["POST"]),
        routing.Mount("/", static.StaticFiles(directory=STATIC, html=True)),
    ]
    return _Guard(applications.Starlette(routes=routes), token)


class _Guard:
    """Refuses requests of other hosts, other pages, and without the token."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        problem = self._problem(scope["path"], headers)
        if problem is not None:
            status, words = problem
            await _json({"error": words}, status)(scope, receive, send)
            return
        await self.app(scope, receive, _with_headers(send))

    def _problem(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        # A page elsewhere can make the browser send requests here, under a name of its own for this machine.
        if host.rsplit(":", 1)[0] not in (HOST, "localhost"):
            return 403, f"This server answers only to {HOST}."
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "This request comes from another page."
        if not path.startswith("/api/"):
            return None
        given = headers.get("authorization", "")
        if not secrets.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return 401, "The token is wrong: open the address that the command has printed."
        return None


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message = message | {"headers": [*message.get("headers", []), *extra]}
        await send(message)

    return sending


def _json(content: Any, status: int = 200) -> Any:
    responses = optional("starlette.responses", "view", "starlette")
    body = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return responses.Response(body, status, HEADERS, "application/json")


class _Api:
    """What the page asks for."""

    def __init__(self, studies: Studies, folder: Path, max_bytes: int) -> None:
        self.studies, self.folder, self.max_bytes = studies, folder, max_bytes

    def answer(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a handler that answers what a function returns, or what is wrong in words.

        It is no coroutine, so that it runs in a thread: other requests do not wait for it.
        """

        def handle(request: Any) -> Any:
            return _in_words(lambda: function(request))

        return handle

    def list_studies(self, request: Any) -> Any:
        return self.studies.listed()

    def overview(self, request: Any) -> Any:
        return views.overview(self._study(request))

    def view(self, request: Any) -> Any:
        study, asked = self._study(request), request.path_params["view"]
        if asked == "map":
            numbers = {name: _integer(request, name) for name in ("top", "bottom", "left", "right", "height", "width")}
            rows, columns = (numbers["top"], numbers["bottom"]), (numbers["left"], numbers["right"])
            return views.outlier_map(study, rows, columns, (numbers["height"], numbers["width"]))
        simple: dict[str, Callable[[Study], Any]] = {
            "job": views.job,
            "components": views.components,
            "contributions": views.contributions,
            "outliers": views.outlier_list,
            "histogram": views.residual_histogram,
        }
        if asked not in simple:
            raise LookupError("There is no such view.")
        return simple[asked](study)

    def line(self, request: Any) -> Any:
        study, place = self._study(request), int(request.path_params["place"])
        found = {"sample": (views.sample, 0), "feature": (views.feature, 1)}.get(request.path_params["view"])
        if found is None or place >= study.shape[found[1]]:
            raise LookupError("There is no such line.")
        stop = _integer(request, "stop", -1)
        return found[0](study, place, _integer(request, "start", 0), None if stop < 0 else stop)

    def export(self, request: Any) -> Any:
        study, file = self._study(request), PurePath(request.path_params["file"])
        content, kind = exports.export(study, file.stem, file.suffix.removeprefix("."))
        responses = optional("starlette.responses", "view", "starlette")
        named = {"Content-Disposition": f'attachment; filename="{file.name}"'}
        return responses.Response(content, 200, named, kind)

    async def upload(self, request: Any) -> Any:
        """Take a file that was dropped on the page."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_bytes:
            return _too_large(self.max_bytes)
        name = PurePath(request.query_params.get("name", "data")).name or "data"
        suffix = "".join(PurePath(name).suffixes[-2:])
        # The name of the file comes from anywhere: only its suffix, of plain letters, becomes part of a path.
        kept = suffix if all(sign.isalnum() or sign == "." for sign in suffix) and len(suffix) < 20 else ""
        target = self.folder / f"{secrets.token_hex(8)}{kept}"
        try:
            with write_atomically(target) as temporary, temporary.open("wb") as file:
                await _receive(request, file, self.max_bytes)
        except OverflowError:
            return _too_large(self.max_bytes)
        concurrency = optional("starlette.concurrency", "view", "starlette")
        return await concurrency.run_in_threadpool(_in_words, lambda: self._opened(target, name))

    def _opened(self, path: Path, name: str) -> Any:
        return {"id": self.studies.add(Study.read(path, name, max_bytes=self.max_bytes))}

    async def act(self, request: Any) -> Any:
        """Start or stop work, or take what the user says of an entry."""
        body = await request.body()
        return _in_words(lambda: self._acted(request, json.loads(body or b"{}")))

    def _acted(self, request: Any, given: Any) -> Any:
        study, action = self._study(request), request.path_params["action"]
        if not isinstance(given, dict):
            raise StudyError("The request must be an object of JSON.")
        if action == "verdict":
            if given.get("revision") not in (None, study.revision):
                raise _ChangedError("Another window has changed this study; here is its present state.")
            verdict = given.get("verdict")
            if verdict not in ("accept", "reject", None):
                raise StudyError(f"A verdict is 'accept', 'reject' or null; got {verdict!r}.")
            study.judge(_whole(given, "sample"), _whole(given, "feature"), verdict)
        elif action == "fit":
            rank = given.get("rank", "auto")
            study.start_fit("auto" if rank == "auto" else _whole(given, "rank"))
        elif action == "refit":
            study.start_refit()
        elif action == "rank":
            study.start_rank()
        elif action == "cancel":
            study.stop()
        else:
            raise LookupError("There is no such action.")
        return views.overview(study)

    def _study(self, request: Any) -> Study:
        return self.studies[int(request.path_params["number"])]


class _ChangedError(Exception):
    """A request rests on an earlier state."""


async def _receive(request: Any, file: Any, max_bytes: int) -> None:
    received = 0
    async for piece in request.stream():
        received += len(piece)
        if received > max_bytes:
            raise OverflowError
        file.write(piece)


def _too_large(max_bytes: int) -> Any:
    words = (
        f"The file is larger than {max_bytes / 2**30:.3g} GiB. Start 'robustnmf view' with its path, or take a part."
    )
    return _json({"error": words}, 413)


def _in_words(work: Callable[[], Any]) -> Any:
    """Return the answer of some work, or what is wrong with the request."""
    responses = optional("starlette.responses", "view", "starlette")
    try:
        found = work()
    except LookupError as error:
        return _json({"error": str(error.args[0] if error.args else error)}, 404)
    except _ChangedError as error:
        return _json({"error": str(error)}, 409)
    except (ValueError, TypeError, OSError, ImportError, MemoryError, ArithmeticError) as error:
        return _json({"error": str(error) or type(error).__name__}, 400)
    return found if isinstance(found, responses.Response) else _json(found)


def _integer(request: Any, name: str, default: int = 0) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 12 else default


def _whole(given: dict[str, Any], name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise StudyError(f"{name} must be a whole number; got {value!r}.")
    return value

"""The server: a page, two routes that infer images in a queue, a page about the routes, and uvicorn with its limits.

Before any route come checks of Host, Origin, and the size and time of a body; every response has safety headers.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from jaxtyping import Float
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from liesparse import __version__
from liesparse._checks import plain, reject
from liesparse.web import TEMPLATES
from liesparse.web.session import FORMATS, MAX_PIXELS, Session, View, infer, make_document, normalized, read_upload

QUEUE_SIZE = 64  # images that may wait
MAX_BATCH = 32
MAX_BYTES = 4 * 2**20  # of a request's body
MAX_HEAD_BYTES = 2**16
MAX_CONNECTIONS = 100  # each may hold a body of the largest size
KEEP_ALIVE_SECONDS = 5
MAX_VALUE = 1e6  # of a pixel; the scale of an image does not matter
SHUTDOWN_SECONDS = 2  # for running requests after Ctrl-C
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",  # unless a route sets its own
}
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")
_CLOSE = {"Connection": "close"}

Prepare = Callable[[], tuple[Float[Tensor, " pixel"], str]]  # makes an image of norm 1, and a note about it
logger = logging.getLogger(__name__)


class SafetyMiddleware:
    """Rejects requests for another host, from another page, or with a body that is too large or too slow.

    A Host header must name ``host``, which the server binds to, or localhost; if the server binds to all interfaces
    (0.0.0.0 or ::), it may be any IP address. This stops DNS rebinding: a page elsewhere whose name suddenly points to
    this machine sends its own name.
    """

    def __init__(self, app: ASGIApp, *, host: str, max_bytes: int, body_seconds: float = 15.0) -> None:
        self.app, self.max_bytes, self.body_seconds = app, max_bytes, body_seconds
        address = _ip_address(host)
        self.any_address = address is not None and address.is_unspecified
        self.hosts = LOCAL_HOSTS | {str(address or host.lower())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it with JSON that says why."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check_headers(Headers(scope=scope))
            body = await self._read_body(Request(scope, receive))
            await self._run_app(scope, body, receive, send_with_headers)
        except ClientDisconnect:
            return
        except HTTPException as error:
            response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            await response(scope, receive, send_with_headers)
        except Exception:
            logger.exception("A request failed: %s %s", scope["method"], ascii(scope["path"]))
            if not started:
                detail = "The server failed. What went wrong is in the terminal where it runs."
                await JSONResponse({"detail": detail}, 500)(scope, receive, send_with_headers)

    def _check_headers(self, headers: Headers) -> None:
        host = ", ".join(headers.getlist("host")).lower()  # two hosts, or none, are no host
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]) if match else ""
        address = _ip_address(name)
        known = str(address or name) in self.hosts or (self.any_address and address is not None)
        if not (match and known):
            raise HTTPException(421, "This server does not answer to that name. Use the address that it printed.")
        if not {origin.lower() for origin in headers.getlist("origin")} <= {f"http://{host}", f"https://{host}"}:
            raise HTTPException(403, "Requests from other pages are not answered.")

    async def _read_body(self, request: Request) -> bytes:
        """Return the body; one that is too large is read to its end, as a browser hears no answer before that."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.max_bytes:
                        body += chunk
                    else:
                        body.clear()
        except TimeoutError:
            if size <= self.max_bytes:
                raise HTTPException(408, "The request took too long to arrive.", _CLOSE) from None
        if size > self.max_bytes:
            raise HTTPException(413, f"More than {self.max_bytes / 2**20:g} MB. Send a smaller file.", _CLOSE)
        return bytes(body)

    async def _run_app(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the application with the whole body; cancel it if the client disconnects."""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        disconnect = asyncio.ensure_future(receive())  # after the body there is no other message

        async def receive_body() -> Message:
            return messages.pop() if messages else await asyncio.shield(disconnect)

        run = asyncio.ensure_future(self.app(scope, receive_body, send))
        try:
            await asyncio.wait({run, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                await run
        finally:
            run.cancel()
            disconnect.cancel()
            await asyncio.gather(run, disconnect, return_exceptions=True)


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Problem(BaseModel):
    """What was wrong, for people."""

    detail: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: "The request cannot be read",
        403: "The request comes from another page",
        408: "The request took too long to arrive",
        413: f"More than {MAX_BYTES // 2**20} MB",
        421: "The Host header names another server",
        422: "No image that the model can read",
        500: "The server failed",
        503: "Too many requests are waiting already",
    }.items()
}
_PICTURE = {
    "requestBody": {
        "required": True,
        "description": f"The bytes of a picture ({', '.join(FORMATS)}), at most {MAX_PIXELS:,} pixels.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class InferenceQueue:
    """Infers images in the order of submission, outside the event loop; a batch takes hardly longer than one image."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._waiting: dict[asyncio.Future[View], Prepare] = {}
        self._submitted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)  # each further thread would need its own working memory

    async def submit(self, prepare: Prepare) -> View:
        """Return what the model infers from the image that ``prepare`` makes; it runs in the queue's thread."""
        if len(self._waiting) >= QUEUE_SIZE:
            full = f"{QUEUE_SIZE} images wait already. Try again in a moment."
            raise HTTPException(503, full, headers={"Retry-After": "1"})
        result: asyncio.Future[View] = asyncio.get_running_loop().create_future()
        self._waiting[result] = prepare
        self._submitted.set()
        try:
            return await result
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        finally:
            self._waiting.pop(result, None)  # a cancelled request leaves the queue at once

    async def run(self) -> None:
        """Process requests until cancelled."""
        while True:
            await self._submitted.wait()
            batch = dict(islice(self._waiting.items(), MAX_BATCH))
            for request in batch:
                del self._waiting[request]
            if not self._waiting:
                self._submitted.clear()
            prepares = list(batch.values())
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._infer, prepares)
            for request, result in zip(batch, results, strict=True):
                if request.done():  # cancelled meanwhile
                    continue
                if isinstance(result, View):
                    request.set_result(result)
                else:
                    request.set_exception(result)

    def _infer(self, prepares: list[Prepare]) -> list[View | Exception]:
        """Prepare and infer all images together or, if one fails, each alone: an error stays with its own request."""
        try:
            pixels, notes = zip(*(prepare() for prepare in prepares), strict=True)
            views = infer(self.session, torch.stack(pixels))
        except Exception as error:
            return [error] if len(prepares) == 1 else [self._infer([prepare])[0] for prepare in prepares]
        return [view.model_copy(update={"note": note}) for view, note in zip(views, notes, strict=True)]


def make_app(session: Session, *, host: str = "127.0.0.1", on_start: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the application for one model; ``on_start`` is called when it begins to serve."""
    document, queue = make_document(session, live=True), InferenceQueue(session)
    n_pixels = session.coder.model_.n_pixels
    value = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE, allow_inf_nan=False, strict=True)]

    # No `from __future__ import annotations` here: FastAPI could not resolve the name of a local class.
    class Drawing(BaseModel):
        """An image of the model's size."""

        pixels: list[value] = Field(
            min_length=n_pixels, max_length=n_pixels, description="Row by row; the scale does not matter."
        )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.run())
        on_start()
        yield
        worker.cancel()

    app = FastAPI(title="liesparse explorer", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(SafetyMiddleware, host=host, max_bytes=MAX_BYTES)
    app.add_exception_handler(RequestValidationError, _explain)

    @app.post("/api/drawing", summary="Infer codes and pose of a drawing", responses=_PROBLEMS)
    async def drawing(image: Annotated[Drawing, Body()]) -> View:
        """Return what the model infers from an image given as numbers."""
        return await queue.submit(lambda: (normalized(torch.tensor(image.pixels, dtype=torch.float32)), ""))

    @app.post("/api/picture", summary="Infer codes and pose of a picture", responses=_PROBLEMS, openapi_extra=_PICTURE)
    async def picture(request: Request) -> View:
        """Return what the model infers from a picture file, resized to the model's size."""
        content = await request.body()
        return await queue.submit(lambda: read_upload(session, content))

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        policy = f"{document.policy}; frame-ancestors 'none'"  # allowed in a header only, not in the page
        return HTMLResponse(document.content, headers={"Content-Security-Policy": policy})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        described = TEMPLATES.get_template("api.html").render(app.openapi(), pretty=partial(json.dumps, indent=2))
        return HTMLResponse(described)  # without scripts; FastAPI's own pages load them from other servers

    return app


async def _explain(_request: Request, error: Any) -> JSONResponse:
    """Name the first invalid field, in the form of all other problems."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"detail": f"{where}: {first['msg']}" if where else first["msg"]}, 422)


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on a port, 0 for any free one; clients that connect before the server runs wait."""
    if not host or not host.isprintable():
        reject("--host", "an address", repr(host) if host else "none", "Pass 127.0.0.1 for this machine alone.")
    v6 = ":" in host
    try:
        host.encode("idna")
        family = socket.AF_INET6 if v6 else socket.AF_INET
        return socket.create_server((host, port), family=family, dualstack_ipv6=v6 and socket.has_dualstack_ipv6())
    except (OSError, UnicodeError) as error:
        fix = "Pass an address of this machine as --host, and another --port or none for a free one."
        reason = str(error.strerror).partition(" (while")[0] if isinstance(error, OSError) else "not a name"
        raise ValueError(f"Cannot listen on {plain(host, 100)}, port {port}: {reason}. {fix}") from None


def address_of(listening: socket.socket, host: str) -> str:
    """Return the address for a browser on this machine, also if the server binds to all interfaces."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/"


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return uvicorn with our limits; its ``run(sockets=[...])`` serves until Ctrl-C."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="critical",  # the middleware logs errors in routes, and malformed requests need no message
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,  # beyond it requests get 503
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)

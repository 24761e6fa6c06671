"""The server: a page, two routes that infer images in a queue, a page about the routes, and uvicorn with its limits."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from jaxtyping import Float
from pydantic import BaseModel, Field
from torch import Tensor

from liesparse import __version__
from liesparse._checks import plain, reject
from liesparse.web import TEMPLATES
from liesparse.web.middleware import SafetyMiddleware
from liesparse.web.session import FORMATS, MAX_PIXELS, Session, View, infer, make_document, normalized, read_upload

QUEUE_SIZE = 64  # images that may wait
MAX_BATCH = 32
MAX_BYTES = 4 * 2**20  # of a request's body
MAX_HEAD_BYTES = 2**16
MAX_CONNECTIONS = 100  # each may hold a body of the largest size
KEEP_ALIVE_SECONDS = 5
MAX_VALUE = 1e6  # of a pixel; the scale of an image does not matter
SHUTDOWN_SECONDS = 2  # for running requests after Ctrl-C

Prepare = Callable[[], tuple[Float[Tensor, " pixel"], str]]  # makes an image of norm 1, and a note about it


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

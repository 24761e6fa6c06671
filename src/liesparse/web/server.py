"""The application: a page, two ways to ask what the model thinks of an image, and a page about both."""

import asyncio
import contextlib
import html
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import torch
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from liesparse import __version__
from liesparse.web.html import make_document
from liesparse.web.inference_queue import MOST_WAITING, FullError, InferenceQueue, Prepare
from liesparse.web.middleware import Guard, allowed_hosts
from liesparse.web.session import Session, View, normalized
from liesparse.web.uploads import FORMATS, MAX_BYTES, MAX_PIXELS, read_upload

LARGEST = 1e6  # of a pixel; the scale of an image does not matter


class Problem(BaseModel):
    """What was wrong, for people."""

    detail: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be read"},
    403: {"model": Problem, "description": "The request comes from another page"},
    408: {"model": Problem, "description": "The request took too long to arrive"},
    413: {"model": Problem, "description": f"More than {MAX_BYTES // 2**20} MB"},
    421: {"model": Problem, "description": "The server was called by a name that is not its own"},
    422: {"model": Problem, "description": "No image that the model can read"},
    500: {"model": Problem, "description": "The server failed"},
    503: {"model": Problem, "description": "Too many questions wait already"},
}
_PICTURE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def make_app(session: Session, *, host: str = "127.0.0.1", most_waiting: int = MOST_WAITING) -> FastAPI:
    """Return the application for one model."""
    document = make_document(session, live=True)
    queue = InferenceQueue(session, most_waiting=most_waiting)
    n_pixels = session.coder.model_.n_pixels
    value = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False, strict=True)]

    # FastAPI reads annotations as they are: a local class is lost if their evaluation is postponed.
    class Drawing(BaseModel):
        """An image of the model's size."""

        pixels: list[value] = Field(
            min_length=n_pixels, max_length=n_pixels, description="Row by row; the scale does not matter."
        )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(queue.work())
        yield
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker

    app = FastAPI(title="liesparse explorer", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, hosts=allowed_hosts(host), max_bytes=MAX_BYTES)

    async def ask(prepare: Prepare) -> View:
        try:
            return await queue.submit(prepare)
        except FullError:
            detail = f"{most_waiting} images wait already. Try again in a moment."
            raise HTTPException(503, detail, headers={"Retry-After": "1"}) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        policy = f"{document.policy}; frame-ancestors 'none'"  # which a page cannot say of itself
        return HTMLResponse(document.content, headers={"Content-Security-Policy": policy})

    @app.post("/api/drawing", summary="Infer codes and pose of a drawing", responses=_PROBLEMS)
    async def drawing(image: Annotated[Drawing, Body()]) -> View:
        """Tell what the model thinks of an image given as numbers."""
        return await ask(lambda: (normalized(torch.tensor(image.pixels, dtype=torch.float32)), ""))

    picture_text = f"The bytes of a picture ({', '.join(FORMATS)}), at most {MAX_PIXELS:,} pixels."

    @app.post(
        "/api/picture",
        summary="Infer codes and pose of a picture",
        responses=_PROBLEMS,
        openapi_extra={"requestBody": {"required": True, "description": picture_text, "content": _PICTURE}},
    )
    async def picture(request: Request) -> View:
        """Tell what the model thinks of a picture file, brought to the model's size."""
        content = await request.body()
        return await ask(lambda: read_upload(session, content))

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(describe_api(app.openapi()))

    @app.exception_handler(RequestValidationError)
    async def explain(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"detail": f"{where}: {first['msg']}" if where else first["msg"]}, 422)

    return app


def describe_api(schema: dict[str, Any]) -> str:
    """Return a plain page about the routes; the usual ones fetch their scripts from elsewhere."""
    parts = [f"<h1>{html.escape(schema['info']['title'])} {html.escape(schema['info']['version'])}</h1>"]
    parts.append('<p>As <a href="/openapi.json">OpenAPI</a>. <a href="/">The explorer itself.</a></p>')
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(about['summary'])}. {html.escape(about.get('description', ''))}</p><ul>")
            body = about.get("requestBody", {})
            kinds = ", ".join(body.get("content", {}))
            parts.append(f"<li>takes {html.escape(kinds)}. {html.escape(body.get('description', ''))}</li>")
            parts += [
                f"<li>{code}: {html.escape(answer['description'])}</li>" for code, answer in about["responses"].items()
            ]
            parts.append("</ul>")
    for name, about in schema["components"]["schemas"].items():
        parts.append(f"<h2>{html.escape(name)}</h2><pre>{html.escape(json.dumps(about, indent=2))}</pre>")
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>liesparse explorer: API</title></head>'
    return f"{head}<body>{''.join(parts)}</body></html>"

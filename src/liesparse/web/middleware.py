"""Checks before any route runs: Host, Origin, size and time of a body. Safety headers on every response."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

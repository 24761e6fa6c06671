"""Who may ask, and how much they may send: checked before any route sees a request."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_SECONDS = 15

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",  # unless a route has its own
}


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Return the names by which the server may be called; None for any address, of a server for everyone.

    A page elsewhere whose name suddenly points to this machine (DNS rebinding) comes with its own name, not ours.
    """
    try:
        everyone = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everyone = False
    return None if everyone else LOCAL | {host.lower()}


class Guard:
    """Checks Host and Origin, reads the body up to a limit and in good time, and adds the headers of safety."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None, max_bytes: int) -> None:
        self.app, self.hosts, self.max_bytes = app, hosts, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"]] + [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in present
                ]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refuse(headers)
        body = b""
        if refusal is None:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    taken = await self._read(receive)
            except TimeoutError:
                taken, refusal = b"", (408, "The request took too long to arrive.")
            if taken is None:
                refusal = refusal or (413, f"More than {self.max_bytes // 2**20} MB. Send a smaller file.")
            body = taken or b""
        if refusal is not None:
            await _answer(send_safely, *refusal)
            return
        await self.app(scope, _replay(body, receive), send_safely)

    def _refuse(self, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._known(host):
            return 421, "This server does not answer to that name. Use the address that it printed."
        origin = headers.get("origin")
        if origin is not None and urlsplit_or_none(origin) != host.lower():
            return 403, "Requests from other pages are not answered."
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self.max_bytes:
            return 413, f"More than {self.max_bytes // 2**20} MB. Send a smaller file."
        return None

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if self.hosts is not None:
            return name in self.hosts
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in LOCAL
        return True

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, or None if it is too long."""
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the client left
                break
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.max_bytes:
                return None
            more = message.get("more_body", False)
        return b"".join(chunks)


def urlsplit_or_none(origin: str) -> str | None:
    """Return host and port of an origin; ``null`` and nonsense have none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read, then whatever comes."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def _answer(send: Send, status: int, detail: str) -> None:
    content = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})

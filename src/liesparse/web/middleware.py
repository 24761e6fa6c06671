"""Who may ask, and how much they may send: checked before any route sees a request."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_SECONDS = 15.0
MOST_REQUESTS = 100  # at the same time, each of which may hold a body of the largest size

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",  # unless a route has its own
}
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]{1,5})?")

logger = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """Why a request is not served."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


_CLOSE = ((b"connection", b"close"),)
UNKNOWN_HOST = Refusal(421, "This server does not answer to that name. Use the address that it printed.")
OTHER_PAGE = Refusal(403, "Requests from other pages are not answered.")
TOO_SLOW = Refusal(408, "The request took too long to arrive.", _CLOSE)
TOO_MANY = Refusal(503, "Too many requests at the same time. Try again in a moment.", ((b"retry-after", b"1"),))
STOPPING = Refusal(503, "The server is stopping.", _CLOSE)
BROKEN = Refusal(500, "The server failed. What went wrong is in the terminal where it runs.")


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Return the names by which the server may be called; None for any address, of a server for everyone.

    A page elsewhere whose name suddenly points to this machine (DNS rebinding) comes with its own name, not ours.
    """
    address = _address(host)
    return None if address is not None and address.is_unspecified else LOCAL | {_canonical(host.lower())}


class Guard:
    """Checks Host and Origin, reads the body up to a limit and in good time, and adds the headers of safety.

    An error in a route becomes a plain answer, and the work for a client who left is given up.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        max_bytes: int,
        body_seconds: float = BODY_SECONDS,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.app, self.hosts, self.max_bytes = app, hosts, max_bytes
        self.body_seconds, self.most_requests = body_seconds, most_requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":  # there are no websockets
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        refusal = self._refuse(scope["headers"])
        if refusal is not None:
            await answer.refuse(refusal)
            return
        self._running += 1
        try:
            body = await self._read(receive)
            if isinstance(body, Refusal):
                await answer.refuse(body)
            elif body is not None:
                await self._work(scope, body, receive, answer)
        except asyncio.CancelledError:  # by the server, which waits no longer
            if not answer.begun:
                await answer.refuse(STOPPING)
        finally:
            self._running -= 1

    def _refuse(self, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
        hosts, origins = (
            [value.decode("latin-1").lower() for name, value in headers if name.lower() == wanted]
            for wanted in (b"host", b"origin")
        )
        if len(hosts) != 1 or not self._known(hosts[0]):
            return UNKNOWN_HOST
        if not set(origins) <= {f"http://{hosts[0]}", f"https://{hosts[0]}"}:
            return OTHER_PAGE
        return TOO_MANY if self._running >= self.most_requests else None

    def _known(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = _canonical(parts[1] or parts[2])
        return name in (LOCAL if self.hosts is None else self.hosts) or (self.hosts is None and bool(_address(name)))

    async def _read(self, receive: Receive) -> bytes | Refusal | None:
        """Return the body; None if the client left.

        One that is too long is read to its end, and dropped: a browser that is still sending sees no answer.
        """
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.max_bytes:
                        chunks.clear()
                    more = message.get("more_body", False)
        except TimeoutError:
            if size <= self.max_bytes:
                return TOO_SLOW
        if size > self.max_bytes:
            return Refusal(413, f"More than {self.max_bytes / 2**20:g} MB. Send a smaller file.", _CLOSE)
        return b"".join(chunks)

    async def _work(self, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, as long as there is somebody to hear it."""
        leaving = asyncio.ensure_future(receive())  # after the body nothing else comes
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await asyncio.shield(leaving)
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def serve() -> None:
            try:
                await self.app(scope, replay, answer.send)
            except Exception:
                logger.exception("A request failed: %s %s", scope["method"], ascii(scope["path"]))
                if not answer.begun:
                    await answer.refuse(BROKEN)

        work = asyncio.ensure_future(serve())
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answer.ended:
                await work
        finally:
            work.cancel()
            leaving.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)


class _Answer:
    """What is sent to the client: always with the headers of safety."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            wanted = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": headers + [pair for pair in wanted if pair[0] not in present]}
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        content = json.dumps({"detail": refusal.detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await self.send(
            {"type": "http.response.start", "status": refusal.status, "headers": [*headers, *refusal.headers]}
        )
        await self.send({"type": "http.response.body", "body": content})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _canonical(host: str) -> str:
    """Write an address as browsers do."""
    address = _address(host)
    return host if address is None else str(address)

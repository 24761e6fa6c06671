"""The server: a socket, uvicorn around the application, and limits on those who connect and say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from liesparse._checks import reject

MOST_CONNECTIONS = 200
HEAD_SECONDS = 15.0
LAST_SECONDS = 2  # for requests under way after Ctrl-C


def open_socket(host: str, port: int) -> socket.socket:
    """Take the port, 0 for any free one; who connects before the server is ready waits."""
    if not host:
        reject("--host", "an address", "none", "Pass 127.0.0.1 for this machine alone.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere it would let others take the port as well
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen()
    except (OSError, UnicodeError) as error:
        taken.close()
        fix = "Pass an address of this machine as --host, and another --port or none for a free one."
        reason = error.strerror if isinstance(error, OSError) else "not a name"
        raise ValueError(f"Cannot listen on {host}, port {port}: {reason}. {fix}") from None
    return taken


def address_of(listening: socket.socket, host: str) -> str:
    """Return the address for a browser on this machine, also of a server that listens everywhere."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/"


def serve(app: ASGIApp, listening: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C; ``ready`` is called once the page can be opened."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="critical",  # the guard tells of errors in routes, and nonsense from others is no news
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, ready).run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


class Connection(H11Protocol):
    """A connection that is closed if there are too many, or if no request comes, or only slowly."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch a new client."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
        self._watch()

    def _watch(self) -> None:
        self._watching = self.loop.call_later(HEAD_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connection if it has had its time and the head of a request is not complete."""
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.IDLE and begun:
            self.transport.close()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._watching.cancel()
        super().connection_lost(exc)

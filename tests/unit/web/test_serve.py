"""The socket and its connections: those who connect and say nothing do not stay."""

import asyncio
import socket
import time

import pytest
import uvicorn
from uvicorn.server import ServerState

from liesparse.web import serve
from liesparse.web.serve import Connection, address_of, open_socket

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def hello(scope, receive, send):  # noqa: ARG001
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def with_server(story):
    """Run a story with a function that connects to a small server."""

    async def run():
        config = uvicorn.Config(hello, log_level="critical")
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        writers = []

        async def connect():
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writers.append(writer)
            return reader, writer

        try:
            await asyncio.wait_for(story(connect), 10)
        finally:
            for writer in writers:
                writer.close()
            server.close()
            await asyncio.sleep(0.02)

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET / HT"])
def test_who_says_nothing_is_let_go(monkeypatch, said):
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.1)

    async def story(connect):
        reader, writer = await connect()
        writer.write(said)
        assert await reader.read() == b""

    with_server(story)


@pytest.mark.parametrize("n_before", [0, 1])
def test_who_dribbles_is_let_go(monkeypatch, n_before):
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.1)

    async def story(connect):
        reader, writer = await connect()
        for _ in range(n_before):
            writer.write(REQUEST)
            await reader.readuntil(b"hello")
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        end = asyncio.create_task(reader.read())
        while not end.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert isinstance(end.exception(), ConnectionError) or end.result() == b""

    with_server(story)


def test_who_asks_now_and_then_stays(monkeypatch):
    monkeypatch.setattr(serve, "HEAD_SECONDS", 0.1)

    async def story(connect):
        reader, writer = await connect()
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            writer.write(REQUEST)
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.06)

    with_server(story)


def test_too_many_connections_are_let_go_and_the_others_stay(monkeypatch):
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 3)

    async def story(connect):
        connections = [await connect() for _ in range(3)]
        late, _ = await connect()
        assert await late.read() == b""
        for reader, writer in connections:
            writer.write(REQUEST)
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")

    with_server(story)


def test_a_socket_is_taken_at_once():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            open_socket("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):  # waits until the server is ready
            pass
    open_socket("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no.such.name.invalid", "192.0.2.1", "x" * 300, "999.1.1.1", "::zz"])
def test_an_address_that_is_not_ours_is_one_line(host):
    with pytest.raises(ValueError, match=r"^Cannot listen on .*, port 0: .*Pass an address of this machine as --host"):
        open_socket(host, 0)


def test_no_address_is_not_all_addresses():
    with pytest.raises(ValueError, match="--host: expected an address, got none"):
        open_socket("", 0)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "[::1]"),
        ("::", "[::1]"),
    ],
)
def test_the_address_is_one_that_a_browser_opens(host, shown):
    with open_socket("127.0.0.1", 0) as taken:
        assert address_of(taken, host) == f"http://{shown}:{taken.getsockname()[1]}/"

"""Which requests are served, how large their bodies may be, and the headers of every response."""

import asyncio
import json

import pytest

from liesparse.web.server import HEADERS, SafetyMiddleware

LIMIT = 1000


async def echo(scope, receive, send):
    """Answer with the length of the body; some paths misbehave."""
    body = (await receive())["body"]
    if scope["path"] == "/broken":
        raise RuntimeError("a secret of the server")
    if scope["path"] == "/half":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("too late for another answer")
    headers = [(b"content-security-policy", b"mine")] if scope["path"] == "/own" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def request(*headers, body=(b"",), path="/", host="127.0.0.1", app=echo, stays=True, **settings):
    """Send one request through the middleware; a body that ends in None never ends."""
    sent = []
    pending = list(body)

    async def receive():
        if pending:
            part = pending.pop(0)
            if part is None:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": part, "more_body": bool(pending)}
        if stays:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        middleware = SafetyMiddleware(app, host=host, max_bytes=LIMIT, **settings)
        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
        await asyncio.wait_for(middleware(scope, receive, send), 10)

    asyncio.run(run())
    if not sent:
        return None
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message["body"] for message in sent[1:])


def called(name, *others):
    return (b"host", name.encode("latin-1")), *others


def from_page(origin, host="127.0.0.1:80"):
    return called(host, (b"origin", origin.encode()))


def check_safe(headers):
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value


def check_refused(answer, status):
    assert answer is not None
    assert answer[0] == status
    check_safe(answer[1])
    assert answer[1]["content-type"] == "application/json"
    detail = json.loads(answer[2])["detail"]
    assert isinstance(detail, str)
    return detail


@pytest.mark.parametrize("name", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::"])
def test_its_own_hosts_are_served(name, host):
    status, headers, body = request(*called(name), host=host)
    assert (status, body) == (200, b"0")
    check_safe(headers)


WRONG_HOSTS = [
    "",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example#localhost",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost/evil.example",
    "localhost:port",
    "localhost:123456",
    "localhost:",
    "[::1",
    "[evil]",
    "::1",
    " localhost",
    "localhost\n",
    "²",
    "127.0.0.1, evil.example",
]


@pytest.mark.parametrize("name", WRONG_HOSTS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_other_hosts_are_refused(name, host):
    check_refused(request(*called(name), host=host), 421)


def test_no_host_and_two_hosts_are_refused():
    check_refused(request(), 421)
    check_refused(request(*called("localhost"), *called("localhost")), 421)
    check_refused(request(*called("localhost"), *called("evil.example")), 421)


def test_on_all_interfaces_any_address_is_a_host_but_no_name():
    for name in ("192.168.1.5:8000", "[fe80::1]:8000", "127.0.0.1"):
        assert request(*called(name), host="0.0.0.0")[0] == 200
        assert request(*called(name), host="::")[0] == 200
    check_refused(request(*called("192.168.1.5"), host="192.168.1.6"), 421)
    assert request(*called("192.168.1.6:80"), host="192.168.1.6")[0] == 200
    assert request(*called("[fd00::5]:80"), host="fd00:0::0005")[0] == 200  # as a browser writes it
    assert request(*called("box.example:80"), host="Box.Example")[0] == 200


@pytest.mark.parametrize("origin", ["http://127.0.0.1:80", "https://127.0.0.1:80", "HTTP://127.0.0.1:80"])
def test_requests_from_its_own_page_are_served(origin):
    assert request(*from_page(origin))[0] == 200


OTHER_ORIGINS = [
    "null",
    "",
    "[",
    "//127.0.0.1:80",
    "http://evil.example",
    "http://localhost:80",
    "http://127.0.0.1",
    "http://127.0.0.1:81",
    "http://127.0.0.1:80/",
    "http://127.0.0.1:80.evil.example",
    "http://x@127.0.0.1:80",
    "ftp://127.0.0.1:80",
]


@pytest.mark.parametrize("origin", OTHER_ORIGINS)
def test_requests_from_other_pages_are_refused(origin):
    assert "other pages" in check_refused(request(*from_page(origin)), 403)


def test_two_origins_must_both_be_its_own():
    own, other = (b"origin", b"http://127.0.0.1"), (b"origin", b"null")
    assert request(*called("127.0.0.1", own, own))[0] == 200
    check_refused(request(*called("127.0.0.1", own, other)), 403)
    check_refused(request(*called("127.0.0.1", other, own)), 403)


@pytest.mark.parametrize("parts", [(b"x" * LIMIT,), (b"x" * 600, b"x" * 400), (b"x",) * LIMIT])
def test_a_body_up_to_the_limit_arrives_whole(parts):
    assert request(*called("localhost"), body=parts)[2] == str(LIMIT).encode()


@pytest.mark.parametrize("length", [(), ((b"content-length", b"1001"),), ((b"content-length", "²".encode("latin-1")),)])
@pytest.mark.parametrize("parts", [(b"x" * (LIMIT + 1),), (b"x" * 600, b"x" * 401), (b"x" * 600,) * 50])
def test_a_longer_body_is_refused(length, parts):
    answer = request(*called("localhost", *length), body=parts)
    assert "Send a smaller file" in check_refused(answer, 413)
    assert answer[1]["connection"] == "close"


def test_a_long_body_is_read_to_its_end_so_that_a_browser_reads_the_response():
    parts = [b"x" * 600] * 20
    left = len(parts)

    async def receive():
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": parts[left], "more_body": left > 0}

    sent = []

    async def send(message):
        sent.append((left, message))

    middleware = SafetyMiddleware(echo, host="127.0.0.1", max_bytes=LIMIT)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [*called("localhost")]}
    asyncio.run(middleware(scope, receive, send))
    assert sent[0][0] == 0
    assert sent[0][1]["status"] == 413


def test_a_slow_body_is_refused():
    answer = request(*called("localhost"), body=(b"x", None), body_seconds=0.05)
    assert "too long to arrive" in check_refused(answer, 408)
    assert answer[1]["connection"] == "close"
    check_refused(request(*called("localhost"), body=(b"x" * 2000, None), body_seconds=0.05), 413)


def test_a_client_that_disconnects_during_the_body_is_not_served():
    done = []

    async def app(scope, receive, send):  # noqa: ARG001
        done.append(1)

    parts = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive():
        return next(parts)

    async def send(message):
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [*called("localhost")]}
    asyncio.run(SafetyMiddleware(app, host="127.0.0.1", max_bytes=LIMIT)(scope, receive, send))
    assert done == []


def test_a_request_is_cancelled_when_its_client_disconnects():
    seen = []

    async def app(scope, receive, send):  # noqa: ARG001
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    assert request(*called("localhost"), app=app, stays=False) is None
    assert seen == ["cancelled"]


def test_an_application_may_itself_receive_the_disconnect():
    seen = []

    async def app(scope, receive, send):  # noqa: ARG001
        await receive()
        seen.append((await receive())["type"])

    request(*called("localhost"), app=app, stays=False)
    assert seen in ([], ["http.disconnect"])  # unless it was cancelled before


def test_an_error_is_logged_and_its_text_is_not_sent(caplog):
    detail = check_refused(request(*called("localhost"), path="/broken"), 500)
    assert "secret" not in detail
    assert "a secret of the server" in caplog.text  # which the terminal shows


def test_an_error_in_the_middle_of_an_answer_adds_no_second_one(caplog):
    status, headers, body = request(*called("localhost"), path="/half")
    assert (status, body) == (200, b"")
    check_safe(headers)
    assert "too late" in caplog.text


def test_a_route_may_have_a_policy_of_its_own():
    _, headers, _ = request(*called("localhost"), path="/own")
    assert headers["content-security-policy"] == "mine"

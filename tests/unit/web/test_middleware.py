"""Who may ask and how much they may send, and the headers of every answer."""

import asyncio
import json

import pytest

from liesparse.web.middleware import HEADERS, LOCAL, Guard, allowed_hosts

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
    """Send one request to a guard; a body that ends in None never ends."""
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
        guard = Guard(app, hosts=allowed_hosts(host), max_bytes=LIMIT, **settings)
        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
        await asyncio.wait_for(guard(scope, receive, send), 10)

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
def test_its_own_names_are_answered(name, host):
    status, headers, body = request(*called(name), host=host)
    assert (status, body) == (200, b"0")
    check_safe(headers)


WRONG_NAMES = [
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


@pytest.mark.parametrize("name", WRONG_NAMES)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_other_names_are_refused(name, host):
    check_refused(request(*called(name), host=host), 421)


def test_no_name_and_two_names_are_refused():
    check_refused(request(), 421)
    check_refused(request(*called("localhost"), *called("localhost")), 421)
    check_refused(request(*called("localhost"), *called("evil.example")), 421)


def test_a_server_for_everyone_answers_to_any_address_but_no_name():
    for name in ("192.168.1.5:8000", "[fe80::1]:8000", "127.0.0.1"):
        assert request(*called(name), host="0.0.0.0")[0] == 200
        assert request(*called(name), host="::")[0] == 200
    check_refused(request(*called("192.168.1.5"), host="192.168.1.6"), 421)
    assert request(*called("192.168.1.6:80"), host="192.168.1.6")[0] == 200
    assert request(*called("[fd00::5]:80"), host="fd00:0::0005")[0] == 200  # as a browser writes it
    assert allowed_hosts("Box.Example") == LOCAL | {"box.example"}


@pytest.mark.parametrize("origin", ["http://127.0.0.1:80", "https://127.0.0.1:80", "HTTP://127.0.0.1:80"])
def test_its_own_page_may_ask(origin):
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
def test_other_pages_may_not_ask(origin):
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


def test_a_long_body_is_read_to_its_end_so_that_a_browser_hears_the_answer():
    parts = [b"x" * 600] * 20
    left = len(parts)

    async def receive():
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": parts[left], "more_body": left > 0}

    sent = []

    async def send(message):
        sent.append((left, message))

    guard = Guard(echo, hosts=LOCAL, max_bytes=LIMIT)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [*called("localhost")]}
    asyncio.run(guard(scope, receive, send))
    assert sent[0][0] == 0
    assert sent[0][1]["status"] == 413


def test_a_slow_body_is_given_up():
    answer = request(*called("localhost"), body=(b"x", None), body_seconds=0.05)
    assert "too long to arrive" in check_refused(answer, 408)
    assert answer[1]["connection"] == "close"
    check_refused(request(*called("localhost"), body=(b"x" * 2000, None), body_seconds=0.05), 413)


def test_a_client_that_leaves_in_the_middle_gets_nothing_done():
    done = []

    async def app(scope, receive, send):  # noqa: ARG001
        done.append(1)

    parts = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive():
        return next(parts)

    async def send(message):
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [*called("localhost")]}
    asyncio.run(Guard(app, hosts=LOCAL, max_bytes=LIMIT)(scope, receive, send))
    assert done == []


def test_work_for_a_client_that_left_is_given_up():
    heard = []

    async def app(scope, receive, send):  # noqa: ARG001
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("given up")
            raise

    assert request(*called("localhost"), app=app, stays=False) is None
    assert heard == ["given up"]


def test_an_application_may_itself_hear_that_the_client_left():
    heard = []

    async def app(scope, receive, send):  # noqa: ARG001
        await receive()
        heard.append((await receive())["type"])

    request(*called("localhost"), app=app, stays=False)
    assert heard in ([], ["http.disconnect"])  # unless it was given up before


def test_an_error_is_answered_without_telling_secrets(caplog):
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


def test_too_many_requests_at_once_are_refused():
    async def run():
        release, statuses = asyncio.Event(), []

        async def app(scope, receive, send):
            await release.wait()
            await echo(scope, receive, send)

        guard = Guard(app, hosts=LOCAL, max_bytes=LIMIT, most_requests=3)
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [*called("localhost")]}

        def client():
            messages = [{"type": "http.request", "body": b"", "more_body": False}]

            async def receive():
                if not messages:
                    await asyncio.Event().wait()
                return messages.pop()

            async def send(message):
                if "status" in message:
                    statuses.append(message["status"])

            return asyncio.create_task(guard(scope, receive, send))

        first = [client() for _ in range(3)]
        await asyncio.sleep(0.01)
        await asyncio.gather(client(), client())
        assert statuses == [503, 503]
        release.set()
        await asyncio.gather(*first, return_exceptions=False)
        await client()
        return statuses

    assert asyncio.run(run()) == [503, 503, 200, 200, 200, 200]

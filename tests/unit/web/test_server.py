"""The routes: results, or JSON that says what was wrong; the socket; uvicorn and its limits."""

import contextlib
import http.client
import io
import json
import socket
import threading
import time

import pytest
import schemathesis
import torch
from hypothesis import given, settings
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from liesparse.web import server
from liesparse.web.server import HEADERS, MAX_BYTES, address_of, make_app, make_server, open_socket
from liesparse.web.session import View, infer, normalized


@pytest.fixture(scope="module")
def session(tiny):
    return tiny((4, 4))


@pytest.fixture(scope="module")
def client(session, make_client):
    with make_client(session) as client:
        yield client


def draw(client, pixels=None, **options):
    return client.post("/api/drawing", json={"pixels": pixels if pixels is not None else [*range(16)]}, **options)


def check_problem(answer, status, *words):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["detail"]
    assert isinstance(answer.json()["detail"], str)
    for name in HEADERS:
        assert name in answer.headers
    for word in words:
        assert word in answer.json()["detail"]


def test_the_page_comes_with_its_policy(client):
    answer = client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith("frame-ancestors 'none'")
    for name in HEADERS:
        assert name in answer.headers
    assert "tiny · liesparse" in answer.text


def test_a_drawing_gives_what_the_model_infers(client, session):
    answer = draw(client)
    (expected,) = infer(session, normalized(torch.arange(16.0))[None])
    assert answer.status_code == 200
    assert View(**answer.json()) == expected
    assert draw(client, [1e-3 * pixel for pixel in range(16)]).json()["codes"] == pytest.approx(
        expected.codes, abs=1e-5
    )


def test_a_picture_is_answered_with_a_note(client):
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((64, 64)).save(buffer, "PNG")
    answer = client.post("/api/picture", content=buffer.getvalue())
    assert answer.status_code == 200
    assert answer.json()["note"] == "64 × 64 pixels brought to 4 × 4"
    assert len(answer.json()["pixels"]) == 16


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 422, "required"),
        (b"{}", 422, "pixels: Field required"),
        (b"[]", 422, "dictionary"),
        (b"null", 422, "dictionary"),
        (b'{"pixels": 1}', 422, "pixels: Input should be a valid list"),
        (b'{"pixels": [1, 2]}', 422, "at least 16 items"),
        (json.dumps({"pixels": [1] * 17}).encode(), 422, "at most 16 items"),
        (json.dumps({"pixels": [1] * 1_000_000}).encode(), 422, "at most 16 items"),
        (json.dumps({"pixels": [0] * 16}).encode(), 422, "a blank one"),
        (json.dumps({"pixels": ["1"] * 16}).encode(), 422, "pixels.0"),
        (json.dumps({"pixels": [True] * 16}).encode(), 422, "pixels.0"),
        (json.dumps({"pixels": [1] * 15 + [None]}).encode(), 422, "pixels.15"),
        (json.dumps({"pixels": [1] * 15 + [float("nan")]}).encode(), 422, "pixels.15: Input should be a finite number"),
        (json.dumps({"pixels": [1] * 15 + [float("-inf")]}).encode(), 422, "finite"),
        (json.dumps({"pixels": [1] * 15 + [1e7]}).encode(), 422, "less than or equal to 1000000"),
        (json.dumps({"pixels": [1] * 15 + [10**400]}).encode(), 422, "pixels.15"),
        (b'{"pixels": [' + b"9" * 10_000 + b"]}", 400, "parsing"),
        (b'{"pixels": [1e999, ' + b"1, " * 14 + b"1]}", 422, "finite"),
        (b"[" * 200_000, 400, "parsing"),
        (b'{"a":' * 100_000, 400, "parsing"),
        (b"{'pixels'", 422, "JSON"),
        (b"\xff\xfe\x00", 400, "parsing"),
        (b"\xff" * 30, 400, "parsing"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_a_wrong_drawing_is_explained(client, body, status, word):
    check_problem(client.post("/api/drawing", content=body, headers={"Content-Type": "application/json"}), status, word)


def test_a_drawing_of_another_type_is_refused(client):
    body = json.dumps({"pixels": [1] * 16})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"):
        check_problem(client.post("/api/drawing", content=body, headers={"Content-Type": kind}), 422)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40, b"../../etc/passwd"])
def test_a_wrong_picture_is_explained(client, content):
    check_problem(client.post("/api/picture", content=content), 422, "expected a picture")


@pytest.mark.parametrize("path", ["/api/picture", "/api/drawing", "/", "/nothing"])
def test_too_much_is_refused_on_every_route(client, path):
    check_problem(client.post(path, content=b"x" * (MAX_BYTES + 1)), 413, "More than 4 MB")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/static/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/api", "/app.js"],
)
def test_no_other_path_leads_anywhere(client, path):
    check_problem(client.get(path), 404, "Not Found")


def test_a_long_or_odd_address_is_just_not_found(client):
    check_problem(client.get("/" + "x" * 5000), 404)
    check_problem(client.get("/%00%ff%0d%0a"), 404)
    assert client.get("/?file=/etc/passwd").status_code == 200  # the query is ignored


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/drawing"), ("PUT", "/api/picture"), ("POST", "/")])
def test_other_methods_are_refused(client, method, path):
    answer = client.request(method, path)
    check_problem(answer, 405, "Method Not Allowed")
    assert answer.headers["allow"]


def test_other_hosts_and_pages_are_refused(client):
    check_problem(draw(client, headers={"Host": "evil.example"}), 421)
    check_problem(draw(client, headers={"Origin": "http://evil.example"}), 403)
    check_problem(draw(client, headers={"Origin": "null"}), 403)
    assert draw(client, headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


def test_an_error_of_the_server_is_told_plainly(session, make_client, caplog):
    """A missing engine takes the place of a bug."""
    with make_client(session._replace(engine=None, examples=session.examples[:0])) as client:
        check_problem(draw(client), 500, "in the terminal")
        check_problem(client.post("/api/picture", content=b""), 422)  # and the queue still works
    assert "A request failed: POST '/api/drawing'\nTraceback" in caplog.text


def test_a_full_queue_says_so_and_others_are_served(session, make_client, monkeypatch):
    monkeypatch.setattr(server, "QUEUE_SIZE", 2)
    with make_client(session) as client:
        options = {"json": {"pixels": [*range(16)]}}
        answers = client.all(*[("POST", "/api/drawing", options)] * 12)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < len(answers)
    for answer in refused:
        check_problem(answer, 503, "2 images wait already")
        assert answer.headers["retry-after"] == "1"


def test_the_page_about_the_api_needs_no_script(client):
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    assert "<script" not in answer.text
    assert "POST /api/drawing" in answer.text
    assert "POST /api/picture" in answer.text


def test_the_api_names_every_answer(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert sorted(paths) == ["/api/drawing", "/api/picture"]
    for path in paths.values():
        assert sorted(path["post"]["responses"]) == ["200", "400", "403", "408", "413", "421", "422", "500", "503"]


def test_other_pages_can_read_neither_the_page_nor_the_api(client):
    for path in ("/", "/docs", "/openapi.json"):
        answer = client.get(path)
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "mode", "n_examples"),
    [
        ("/api/drawing", GenerationMode.POSITIVE, 10),
        ("/api/drawing", GenerationMode.NEGATIVE, 80),
        ("/api/picture", GenerationMode.POSITIVE, 80),  # any bytes are good by the schema
    ],
)
def test_the_api_does_what_its_schema_says(client, path, mode, n_examples):
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    seen = set()

    @settings(max_examples=n_examples)
    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    def check(case):
        request = case.as_transport_kwargs(base_url="http://127.0.0.1:8000")
        cookies, content = request.pop("cookies"), request.pop("data", None)
        assert not cookies
        answer = client.request(request.pop("method"), request.pop("url"), content=content, **request)
        seen.add(answer.status_code)
        # A schema cannot say that an image must not be blank, or that bytes must be a picture.
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])

    check()
    assert seen <= ({200, 422} if mode is GenerationMode.POSITIVE else {400, 422})


@contextlib.contextmanager
def running(app):
    """Run a server in a thread, and yield a function that opens connections to it."""
    listening = open_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    uvicorn_server = make_server(app)
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listening]})
    thread.start()
    with contextlib.ExitStack() as stack:
        stack.callback(thread.join, 20)
        stack.callback(setattr, uvicorn_server, "should_exit", True)

        def connect():
            return stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)))

        yield connect
    assert not thread.is_alive()


def status_of(connection, *arguments, **options):
    connection.request(*arguments, **options)
    response = connection.getresponse()
    response.read()
    return response.status


def test_it_is_ready_when_it_says_so_and_sends_no_server_header(session):
    started = threading.Event()
    with running(make_app(session, on_start=started.set)) as connect:
        assert started.wait(10)
        connection = connect()
        connection.request("GET", "/")
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["server"] is None
        assert b"tiny" in response.read()


def test_too_many_connections_get_503_until_some_close(session, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with running(make_app(session)) as connect:
        first, second, third = connect(), connect(), connect()
        assert status_of(first, "GET", "/") == status_of(second, "GET", "/") == 200
        assert status_of(third, "GET", "/") == 503  # and closes its connection
        assert status_of(first, "GET", "/") == 200


def test_idle_connections_are_closed(session, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 1)
    with running(make_app(session)) as connect:
        connection = connect()
        assert status_of(connection, "GET", "/docs") == 200
        connection.sock.settimeout(10)
        assert connection.sock.recv(1) == b""


def test_a_large_head_is_refused(session):
    with running(make_app(session)) as connect:
        connection = connect()
        connection.connect()
        connection.sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * server.MAX_HEAD_BYTES)
        assert connection.sock.recv(12) == b"HTTP/1.1 400"
        assert status_of(connect(), "GET", "/docs") == 200


def test_a_slow_body_does_not_delay_others_or_the_end(session, monkeypatch):
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 1)
    began = time.perf_counter()
    with running(make_app(session)) as connect:
        slow = connect()
        slow.putrequest("POST", "/api/picture")
        slow.putheader("Content-Length", "9")
        slow.endheaders(b"half")
        assert status_of(connect(), "GET", "/docs") == 200
    assert time.perf_counter() - began < server.SHUTDOWN_SECONDS + 8


def test_a_socket_is_taken_at_once():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=rf"Cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            open_socket("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):  # waits until the server runs
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

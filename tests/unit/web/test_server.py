"""The routes: good answers, and for everything else JSON that says what was wrong."""

import io
import json

import pytest
import schemathesis
import torch
from hypothesis import given, settings
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from liesparse.web.middleware import HEADERS
from liesparse.web.session import View, infer, normalized
from liesparse.web.uploads import MAX_BYTES


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


def test_a_drawing_is_answered_as_the_model_thinks(client, session):
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
    assert client.get("/?file=/etc/passwd").status_code == 200  # which nobody reads


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/drawing"), ("PUT", "/api/picture"), ("POST", "/")])
def test_other_methods_are_refused(client, method, path):
    answer = client.request(method, path)
    check_problem(answer, 405, "Method Not Allowed")
    assert answer.headers["allow"]


def test_other_names_and_pages_are_refused(client):
    check_problem(draw(client, headers={"Host": "evil.example"}), 421)
    check_problem(draw(client, headers={"Origin": "http://evil.example"}), 403)
    check_problem(draw(client, headers={"Origin": "null"}), 403)
    assert draw(client, headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


def test_an_error_of_the_server_is_told_plainly(session, make_client, caplog):
    """An engine that is missing stands in for a bug."""
    with make_client(session._replace(engine=None, examples=session.examples[:0])) as client:
        check_problem(draw(client), 500, "in the terminal")
        check_problem(client.post("/api/picture", content=b""), 422)  # and the queue still works
    assert "A request failed: POST '/api/drawing'\nTraceback" in caplog.text


def test_a_full_desk_says_so_and_others_are_answered(session, make_client):
    with make_client(session, most_waiting=2) as client:
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

"""`liesparse explore` as a process: start, stop, wrong use, and many clients."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest

import processes
import shell


def run(*arguments, **options):
    return shell.run("explore", *arguments, **options)


@contextmanager
def serving(*arguments):
    """Start a server and yield what it printed up to its address; it is always stopped."""
    with shell.Forked(shell.call_main, "explore", *arguments) as process:
        output = ""
        while "http://" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        try:
            yield process, urlsplit(re.search(r"http://\S+", output).group()), output
        finally:
            if process.poll() is None:
                process.kill()


def stop(process):
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(20) == 0, rest
    assert "Traceback" not in rest
    return rest


def ask(address, method="GET", path="/", body=None, headers=None):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


PIXELS = json.dumps({"pixels": [0.0] * 300 + [1.0] * 50 + [0.0] * 434})


def test_it_starts_serves_and_stops():
    with serving("--no-open") as (process, address, output):
        assert re.fullmatch(r"The explorer is at http://127\.0\.0\.1:\d+/ Stop it with Ctrl-C\.\n", output)
        status, page = ask(address)
        assert status == 200
        assert b"Ten digits that move" in page
        status, view = ask(address, "POST", "/api/drawing", PIXELS, {"Content-Type": "application/json"})
        assert status == 200
        assert len(json.loads(view)["codes"]) == 10
        # A browser that sends far too much is told why.
        status, problem = ask(address, "POST", "/api/picture", bytes(30_000_000))
        assert status == 413
        assert "smaller file" in json.loads(problem)["detail"]
        # The port is taken: one clear line.
        second = run("--no-open", "--port", str(address.port))
        assert second.returncode == 1
        assert f"Cannot listen on 127.0.0.1, port {address.port}: Address already in use." in second.stdout
        assert len(second.stdout.splitlines()) == 1
        assert second.stderr == ""
        _check_bad_clients(process, address)
        assert stop(process) == "Stopped.\n"
        assert is_free(address.port)


def _check_bad_clients(process, address):
    """Clients that disconnect early or send malformed requests disturb no other."""
    for nonsense in (b"", b"\x00\xff" * 50, b"GET / HTTP/1.1\r\nHost", b"POST /api/picture HTTP/1.1\r\n"):
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(nonsense)
    for _ in range(20):
        with socket.create_connection((address.hostname, address.port)) as client:
            head = f"POST /api/drawing HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(PIXELS)}\r\n\r\n{PIXELS}".encode())
    assert ask(address, "GET", "/docs")[0] == 200
    assert process.poll() is None


def test_it_stops_with_requests_under_way_and_warns_on_all_interfaces():
    with serving("--no-open", "--host", "0.0.0.0") as (process, address, output):
        warning, announcement = output.splitlines()
        assert warning == "Warning: everyone who can reach 0.0.0.0 can use this server. There is no password."
        assert announcement.startswith("The explorer is at http://127.0.0.1:")
        assert ask(address)[0] == 200
        assert ask(address, headers={"Host": "evil.example"})[0] == 421
        silent = socket.create_connection((address.hostname, address.port))  # never sends anything
        half = socket.create_connection((address.hostname, address.port))
        half.sendall(f"POST /api/picture HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 9\r\n\r\n".encode())
        ended = threading.Event()

        def send_requests():
            while not ended.is_set():
                try:
                    ask(address, "POST", "/api/drawing", PIXELS, {"Content-Type": "application/json"})
                except (OSError, http.client.HTTPException):
                    return

        threads = [threading.Thread(target=send_requests) for _ in range(5)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        rest = stop(process)
        ended.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert rest.endswith("Stopped.\n")
        assert is_free(address.port)
        silent.close()
        half.close()


def test_the_page_can_be_exported(tmp_path):
    path = tmp_path / "page.html"
    done = run("--export", str(path))
    assert done.returncode == 0, done.stderr
    assert f"{path}: {path.stat().st_size / 1000:,.0f} KB." in done.stdout
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "RUN: expected the folder of a run, got nowhere, which is no folder."),
        (["--export", "page.txt"], 2, "the name must end in .html"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, arguments, code, message):
    done = run(*arguments, "--no-open", cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stdout
    assert len((done.stdout + done.stderr).splitlines()) <= 2
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_it_says_how_to_install_it(missing):
    done = shell.Forked(partial(shell.call_main, missing=missing), "explore", "--no-open", apart=True).complete()
    assert done.returncode == 1
    assert done.stdout == (
        f"No module named '{missing}'. The explorer needs FastAPI and uvicorn. "
        "Install them: pip install 'liesparse[web]'\n"
    )
    assert done.stderr == ""


def test_help_needs_neither_torch_nor_fastapi():
    code = (
        "import sys\n"
        "sys.argv = ['liesparse', 'explore', '--help']\n"
        "from liesparse.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'fastapi', 'uvicorn', 'numpy', 'PIL'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--export" in done.stdout


def test_fifty_clients_at_once_all_get_answers():
    found = processes.measure_server(lambda _: None, seconds=3, clients=50)
    assert found["errors"] == 0, found
    assert found["requests"] > 50
    assert found["exit_code"] == 0

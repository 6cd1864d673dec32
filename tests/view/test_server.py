"""The server: what it answers, to whom, and how it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import pytest

from descend.errors import ConfigurationError
from descend.view.server import ViewServer
from descend.view.subjects import Subject, subjects


def make_run(folder):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"end": {"exit_code": 0}}))
    row = {"mode": "train", "epoch": 1, "step": 3, "objective": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Two runs, whose pages are counted and not drawn."""
    made = []
    monkeypatch.setattr(Subject, "page", lambda self, live: made.append(self.name) or f"page {self.name} {live.stamp}")
    monkeypatch.setattr("descend.view.server.home_page", lambda shown, live: f"home {live.stamp}")
    for name in ("a", "b"):
        make_run(tmp_path / name)
    with ViewServer(subjects([tmp_path])) as server:
        server.made, server.folder = made, tmp_path
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_pages_and_stamps_stand_behind_the_token(server):
    base = f"/{server.token}"
    status, text, headers = ask(server, f"{base}/")
    assert (status, text.partition(" ")[0]) == (200, "home")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ask(server, f"{base}/item/1/")[1].startswith("page b ")
    assert ask(server, f"{base}/item/1/stamp")[1] in ask(server, f"{base}/stamp")[1]
    assert ask(server, f"{base}/", "HEAD")[:2] == (200, "")
    status, _, headers = ask(server, f"/?token={server.token}")
    assert (status, headers["Location"]) == (303, f"{base}/")


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=x", "/x/", "//", "/TOKEN", "/é/", "/%00/"])
def test_without_the_token_nothing_is_served(server, path):
    path = path.replace("TOKEN", server.token[:-1])
    assert ask(server, urllib.parse.quote(path, safe="/?=%"))[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "0.0.0.0:PORT", ""])
def test_a_page_of_another_name_that_points_here_is_refused(server, host):
    host = host.replace("PORT", str(server.server_port))
    status, text, _ = ask(server, f"/{server.token}/", Host=host)
    assert status == 403
    assert "page" not in text


@pytest.mark.parametrize(
    "path",
    ["../", "item/2/", "item/-1/", "item/1", "item/00000000000001/", "item//", "item/1/x", "etc/passwd", "item/²/"],
)
def test_other_paths_are_not_found(server, path):
    assert ask(server, f"/{server.token}/{urllib.parse.quote(path)}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server, method):
    assert ask(server, f"/{server.token}/", method)[0] == 501


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_is_made_once_until_something_is_written(server):
    path = f"/{server.token}/item/0/"
    first = ask(server, path)[1]
    assert ask(server, path)[1] == first
    assert server.made == ["a"]
    with (server.folder / "a" / "metrics.jsonl").open("a") as file:
        file.write("{}\n")
    assert ask(server, path)[1] != first
    assert server.made == ["a", "a"]


def test_tokens_differ_and_a_port_that_is_taken_is_an_error(server, tmp_path):
    with pytest.raises(ConfigurationError, match="name another with --port"):
        ViewServer([], server.server_port)
    with ViewServer([]) as other:
        assert other.token != server.token
        assert len(other.token) >= 32


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_the_command_ends_with_ctrl_c_and_says_nothing_more(tmp_path, number):
    make_run(tmp_path / "run")
    command = [sys.executable, "-m", "descend", "view", str(tmp_path / "run")]
    pipe = subprocess.PIPE
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a shell's background jobs
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    line = process.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]+/", line)
    assert url, line
    connection = http.client.HTTPConnection("127.0.0.1", int(url.group(1)), timeout=60)
    connection.request("GET", urllib.parse.urlsplit(url.group()).path + "stamp")
    assert connection.getresponse().status == 200
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_folder_without_runs_is_exit_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "descend", "view", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no run and no study is in it" in done.stderr
    assert "Traceback" not in done.stderr


def raw(server, request):
    """The status line that answers some bytes; "" for none."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(request.replace(b"PORT", str(server.server_port).encode()))
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer.partition(b"\r\n")[0].decode("latin-1")


HOST = b"Host: 127.0.0.1:PORT\r\n\r\n"


@pytest.mark.parametrize("head", [b"", HOST])
@pytest.mark.parametrize(
    "line",
    [
        b"GET http://[ HTTP/1.1",
        b"GET http://]/ HTTP/1.1",
        b"GET http://[::1 HTTP/1.1",
        b"GET //[ HTTP/1.1",
        b"GET /[ HTTP/1.1",
        b"GET http://127.0.0.1:99999/ HTTP/1.1",
        b"GET http://a\xff/ HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET ? HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET \x00 HTTP/1.1",
        b"GET /\x00\x1b HTTP/1.1",
        b"GET /%zz%/ HTTP/1.1",
        b"GET / HTTP/9.9",
        b"GET / HTTP/x",
        b"GET / HTTP/\xb2.1",
        b"GET / / HTTP/1.1",
        b"GET",
        b"\xff\xfe",
        b"GET / HTTP/1.1\r\nHost",
        b"GET /?token=%5B%ff&token HTTP/1.1",
    ],
)
def test_a_malformed_request_is_refused_without_a_traceback(server, capfd, line, head):
    status = raw(server, line + b"\r\n" + (head or b"\r\n"))
    assert re.search(r"\b(400|403|505)\b", status) or status == "", status
    if b"http://" in line:
        assert " 400 " in status
    assert ask(server, f"/{server.token}/")[0] == 200  # it serves on
    assert capfd.readouterr() == ("", "")


def test_behind_the_token_a_malformed_path_is_not_found(server):
    for rest in (
        "[",
        "http://[",
        "item/[/",
        "figure/[/1",
        "figure/a/b",
        "figure/",
        "item/0/figure/x/1",
        "figure/x/1/2",
    ):
        assert ask(server, f"/{server.token}/{rest}")[0] == 404, rest


def test_an_absolute_address_of_this_server_is_served(server):
    url = f"http://127.0.0.1:{server.server_port}/{server.token}/stamp"
    assert raw(server, f"GET {url} HTTP/1.1\r\n".encode() + HOST).endswith("200 OK")


def test_a_page_that_fails_is_an_answer_and_no_traceback(server, monkeypatch, capfd):
    def broken(self, live):
        raise RuntimeError("a fault\x1b of ours")

    monkeypatch.setattr(Subject, "page", broken)
    status, text, _ = ask(server, f"/{server.token}/item/1/")
    assert status == 500
    assert "RuntimeError: a fault\\x1b of ours" in text
    assert ask(server, f"/{server.token}/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_the_server_and_what_it_reads_need_no_torch(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"mode": "train", "epoch": 1, "step": 4, "objective": 1.0}\n')
    code = (
        "import pathlib, sys, descend.view.server\n"
        "from descend.pages.html import Live\n"
        "from descend.view.subjects import home_page, subjects\n"
        "home_page(subjects([pathlib.Path(sys.argv[1])]), Live('s', 'stamp', ''))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

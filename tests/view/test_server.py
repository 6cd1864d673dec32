"""The server: what it answers, to whom, and how it ends."""

import http.client
import json
import re
import signal
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

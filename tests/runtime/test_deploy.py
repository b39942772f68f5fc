"""The snippets of docs/deploy.md, as they stand there, serving a real bundle."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
ROWS = [[0.0] * 4, [1.0] * 4]
ANSWER = [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
TOO_MANY = [[0.0] * 4] * 65


@pytest.fixture
def folder(tmp_path: Path, added: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the snippets and their model.tcpkg are; the current folder."""
    (tmp_path / "model.tcpkg").symlink_to(added)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (tmp_path / named[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_lines_load_and_warm_up(folder: Path) -> None:
    first = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert first is not None
    names: dict[str, Any] = {}
    exec("import tcexport\n" + first[1], names)
    assert names["model"].metrics.calls == 2


def test_the_fastapi_service_answers_and_refuses(folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "service"}
    exec((folder / "service.py").read_text(), names)
    app = names["app"]

    async def post(rows: object) -> tuple[int, Any]:
        """One request by the ASGI protocol."""
        body, sent = json.dumps(rows).encode(), []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "", "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def serve() -> None:
        async with names["lifespan"](app):
            assert await post(ROWS) == (200, ANSWER)
            assert await post(TOO_MANY) == (
                422, {"detail": {"code": "TC301", "needs": "n <= 64"}},
            )  # fmt: skip

    asyncio.run(serve())


@pytest.mark.parametrize("threads", ["1", "4"])
def test_gunicorn_with_preload_serves_and_stops(folder: Path, threads: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers",
        "2",
        "--threads",
        threads,
    ]
    server = subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}", "wsgi:app"],
        stderr=subprocess.PIPE,
        env={**os.environ, "TCEXPORT_NUM_THREADS": "2"},
        text=True,
    )

    def post(rows: object) -> tuple[int, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}", json.dumps(rows).encode())
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert post(ROWS) == (200, ANSWER)
                break
            except urllib.error.URLError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.1)
        for _ in range(6):
            assert post(ROWS) == (200, ANSWER)
        status, text = post(TOO_MANY)
        assert status == 422 and "n <= 64" in text
        server.terminate()
        assert server.wait(20) == 0
    finally:
        server.kill()
        assert server.stderr is not None
        told = server.stderr.read()
    assert "Exception" not in told and "Traceback" not in told, told

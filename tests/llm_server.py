"""A language model for tests: a local server that speaks both protocols, and says what it is told.

It sleeps never; an answer that does not come is waited for until the server is closed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("openai") is None:  # to import it takes as long as to collect all these tests
    pytest.skip("proposals of a language model need openai", allow_module_level=True)

Answer = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """A request that is being answered."""

    server: LlmServer
    handler: BaseHTTPRequestHandler
    path: str
    body: Any

    def send(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", "application/json")
        self.handler.send_header("Content-Length", str(len(body) if length is None else length))
        self.handler.send_header("Connection", "close")
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.wfile.write(body)
        self.handler.close_connection = True


def says(text: str, **usage: int) -> Answer:
    """Answers with a text, in the protocol of the request."""

    def answer(exchange: Exchange) -> None:
        exchange.send(200, json.dumps(_reply(exchange.path, text, usage)).encode())

    return answer


def answers(**fields: Any) -> Answer:
    """Answers with a proposal."""
    return says(json.dumps({"move": "change_block_sizes", "what": "test", "launch": None} | fields))


def fails(status: int, **error: str) -> Answer:
    """Fails, and has the library try again at once."""

    def answer(exchange: Exchange) -> None:
        body = json.dumps({"error": {"message": "no", **error}}).encode()
        exchange.send(status, body, retry_after_ms="1")

    return answer


def sends(body: bytes, **headers: Any) -> Answer:
    """Answers with any bytes."""
    return lambda exchange: exchange.send(200, body, **headers)


def redirects(url: str) -> Answer:
    """Asks to send the same request to another address."""
    return lambda exchange: exchange.send(307, b"", Location=url)


def drips(exchange: Exchange) -> None:
    """Sends a blank now and then, without an end."""
    exchange.send(200, b"", length=1 << 20)
    with suppress(OSError):
        while not exchange.server.closed.wait(0.01):
            exchange.handler.wfile.write(b" ")


def hangs(exchange: Exchange) -> None:
    """Does not answer."""
    exchange.server.closed.wait()


@dataclass
class LlmServer:
    """The server: ``script`` has the answers in order; the last one is given from then on."""

    url: str
    script: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, Any]] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


@contextmanager
def llm_server(*script: Answer) -> Iterator[LlmServer]:
    """A server as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.removeprefix("/v1")
            server.requests.append((path, body))
            exchange = Exchange(server, self, path, body)
            if path in server.missing:
                fails(404)(exchange)
                return
            answer = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            answer(exchange)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that gave up is no error."""

    with Server(("127.0.0.1", 0), Handler) as listener:
        server = LlmServer(f"http://127.0.0.1:{listener.server_port}/v1", list(script))
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.closed.set()
            listener.shutdown()
            thread.join()


def _reply(path: str, text: str, usage: dict[str, int]) -> dict[str, Any]:
    used = {"input": 100, "output": 10, **usage}
    if path == "/responses":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {
            "status": "completed",
            "output": [{"type": "reasoning"}, {"type": "message", "content": content}],
            "usage": {"input_tokens": used["input"], "output_tokens": used["output"]},
        }
    return {
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": used["input"], "completion_tokens": used["output"]},
    }

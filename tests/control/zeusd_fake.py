"""A zeusd on a Unix socket, as strict as the real one about what it is asked.

After https://ml.energy/zeus/zeusd/ and its source (routes/gpu.rs): unknown and missing query
parameters are bad requests, errors of a GPU come as ``{"errors": {"<id>": "..."}}``, and a group of
endpoints that is not enabled does not exist.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from power_cards import write

from pytest_gpuenergy.devices import NvmlGpu, printable_text

ROUTES = {
    "/gpu/set_power_limit": ("power_limit_mw",),
    "/gpu/set_gpu_locked_clocks": ("min_clock_mhz", "max_clock_mhz"),
    "/gpu/reset_gpu_locked_clocks": (),
}
"""The parameters of each route, besides the GPUs and whether to wait."""


class Zeusd:
    """The daemon, with these GPUs in its own order. A context manager.

    Attributes:
        discovery: changes to what ``/discover`` answers; a value of None removes a key.
        token: a bearer token that is asked for, and its scopes.
        failure: status and body of every answer to a write, instead of writing.
        requests: method and path of what it was asked to write.
        limits_mw: what it wrote.
    """

    def __init__(self, path: Path, gpus: Sequence[NvmlGpu]) -> None:
        self.path = path
        self.gpus = gpus
        self.discovery: dict[str, Any] = {}
        self.token: tuple[str, list[str]] | None = None
        self.failure: tuple[int, str] | None = None
        self.requests: list[str] = []
        self.limits_mw: list[int] = []
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "local"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(*daemon.read(self.path, self.headers.get("Authorization")))

            def do_POST(self) -> None:
                daemon.requests.append(f"POST {self.path}")
                self.answer(*daemon.write(self.path, self.headers.get("Authorization")))

            def answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # from who waits no longer
                    self.wfile.write(body.encode())

        self._server = ThreadingUnixStreamServer(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Zeusd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def read(self, path: str, authorization: str | None) -> tuple[int, str]:
        if path == "/auth/whoami":
            if self.token is None:
                return 404, ""
            if authorization != f"Bearer {self.token[0]}":
                return 401, "Invalid token"
            return 200, json.dumps({"sub": "ann", "scopes": self.token[1]})
        if path != "/discover":
            return 404, ""
        answer = {
            "gpus": [
                {"id": number, "name": gpu.name, "pci_address": _lspci(gpu)}
                for number, gpu in enumerate(self.gpus)
            ],
            "cpus": [],
            "enabled_api_groups": ["gpu-control", "gpu-read"],
            "auth_required": self.token is not None,
            **self.discovery,
        }
        return 200, json.dumps({key: value for key, value in answer.items() if value is not None})

    def write(self, target: str, authorization: str | None) -> tuple[int, str]:
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, strict_parsing=True))
        amounts = ROUTES.get(url.path)
        if amounts is None:
            return 404, ""
        if self.token is not None and authorization != f"Bearer {self.token[0]}":
            return 401, "Invalid token"
        if set(query) != {"gpu_ids", "block", *amounts} or query["block"] != "true":
            return 400, "Query deserialize error: unknown field"
        if self.failure is not None:
            return self.failure
        number = int(query["gpu_ids"])
        if number >= len(self.gpus):
            return 400, f"GPU index {number} does not exist."
        self.change(self.gpus[number], url.path, [int(query[name]) for name in amounts])
        return 200, ""

    def change(self, gpu: NvmlGpu, route: str, amounts: list[int]) -> None:
        nvml = gpu.nvml._module
        if route == "/gpu/set_power_limit":
            write(gpu, *amounts)
            self.limits_mw += amounts
        elif amounts:
            nvml.nvmlDeviceSetGpuLockedClocks(gpu.handle, *amounts)
        else:
            nvml.nvmlDeviceResetGpuLockedClocks(gpu.handle)


def _lspci(gpu: NvmlGpu) -> str:
    """Return the PCI address as ``lspci -D`` writes it."""
    return printable_text(gpu.nvml.nvmlDeviceGetPciInfo(gpu.handle).busId)[4:].lower()

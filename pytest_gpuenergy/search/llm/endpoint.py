"""Sends questions to an OpenAI-compatible endpoint, with the library ``openai``."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pytest_gpuenergy.search.llm.protocol import Protocol, Question, Reply, body_of, read_reply
from pytest_gpuenergy.search.llm.settings import LlmSettings
from pytest_gpuenergy.support import FormError, UnavailableError

_NO_SUCH_PROTOCOL = (400, 404, 405, 501)
"""What endpoints answer that do not know the Responses API."""
_LARGEST_BYTES = 16 << 20
"""Of an answer; what follows is not read."""


class AwayError(Exception):
    """An endpoint does not answer, or refuses to; the message is a clause without a period."""


@dataclass
class Endpoint:
    """Asks one model. After a failure, which the library has retried, it is not asked again.

    Attributes:
        settings: of the model.
        away: why it is not asked, or not any more; empty while it is.
        protocol: that the endpoint is known to speak; None before the first answer.
        enabled: whether it is asked at all.

    Raises:
        UnavailableError: it is to be asked, and the package ``openai`` is missing.
    """

    settings: LlmSettings
    away: str = ""
    protocol: Protocol | None = None
    enabled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.enabled = not self.away
        self._client: Any = _client(self.settings) if self.enabled else None

    def ask(self, question: Question, max_output_tokens: int) -> Reply:
        """Ask, by the Responses API or, where that does not exist, by chat completions.

        Raises:
            AwayError: there is no answer, now or since an earlier question.
            FormError: what came back is not of the protocol.
        """
        if self.away:
            raise AwayError(self.away)
        try:
            content, protocol = self._content(question, max_output_tokens)
        except (_openai().OpenAIError, TimeoutError) as error:  # some versions wrap the latter
            self.away = _reason(error)
            raise AwayError(self.away) from None
        if len(content) > _LARGEST_BYTES:
            raise FormError(f"the response is larger than {_LARGEST_BYTES >> 20} MiB")
        reply = read_reply(content, protocol)
        self.protocol = protocol
        return reply

    def close(self) -> None:
        """Close its connections."""
        if self.enabled:
            self._client.close()

    def _content(self, question: Question, most: int) -> tuple[bytes, Protocol]:
        if self.protocol == "chat":
            return self._post(question, "chat", most), "chat"
        try:
            return self._post(question, "responses", most), "responses"
        except _openai().APIStatusError as error:
            if self.protocol is not None or error.status_code not in _NO_SUCH_PROTOCOL:
                raise
        return self._post(question, "chat", most), "chat"

    def _post(self, question: Question, protocol: Protocol, most: int) -> bytes:
        body = body_of(question, protocol, self.settings.model, most)
        resource = self._client.chat.completions if protocol == "chat" else self._client.responses
        # Undecoded, because the library accepts any object in place of the one it expects.
        content: bytes = resource.with_raw_response.create(**body).http_response.content
        return content


def _client(settings: LlmSettings) -> Any:
    return _openai().OpenAI(
        api_key=settings.key,
        base_url=settings.url or None,
        timeout=settings.timeout_s,
        max_retries=settings.retries,
        http_client=_http_client(settings.timeout_s),
    )


def _http_client(timeout_s: float) -> Any:
    """The library's client, with limits that it does not have.

    It does not follow redirects, because what is sent is meant for the endpoint alone; and it gives
    up an answer that is longer than can be, or that comes a few bytes at a time and never ends.
    """

    class Client(_openai().DefaultHttpxClient):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            end_s = monotonic() + timeout_s
            options |= {"stream": True, "follow_redirects": False}
            response = super().send(request, **options)
            content = bytearray()
            try:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _LARGEST_BYTES:
                        break
                    if monotonic() > end_s:
                        raise TimeoutError
            finally:
                response.close()
            plain = {
                name: value
                for name, value in response.headers.items()
                if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
            }
            return type(response)(
                response.status_code, headers=plain, content=bytes(content), request=request
            )

    return Client(timeout=timeout_s)


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise UnavailableError(
            f"Proposals of a language model need the package openai ({error}): install "
            "pytest-gpuenergy[search], or search with --no-llm."
        ) from None
    return openai


def _reason(error: Any) -> str:
    """Why a request failed, without what the endpoint says, which may quote the key."""
    openai = _openai()
    late = (openai.APITimeoutError, TimeoutError)
    if isinstance(error, late) or isinstance(error.__cause__, late):
        return "it did not answer in time"
    if isinstance(error, openai.APIStatusError):
        known = {
            401: "it does not accept the key",
            403: "it does not permit the request",
            404: "it knows neither the model nor the protocol",
            429: "its rate limit or quota is exhausted",
        }
        status = error.status_code
        others = "it failed" if status >= 500 else "it refused the request"
        what = known.get(status, "it redirects to another address" if status < 400 else others)
        return f"{what} (HTTP status {status})"
    if isinstance(error, openai.APIConnectionError):
        return "it cannot be reached, or broke off"
    return f"the request could not be made ({type(error).__name__})"

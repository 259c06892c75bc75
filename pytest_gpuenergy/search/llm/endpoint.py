"""The OpenAI-compatible endpoint: its settings, its requests, and its two protocols."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from pytest_gpuenergy.support import FormError, InputError, UnavailableError, decode

KEY_VARIABLE, URL_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_DEFAULT_URL = "https://api.openai.com/v1"
_UNUSED_KEY = "none"
"""Key for local endpoints, which need none although the client library does."""

_NO_SUCH_PROTOCOL = (400, 404, 405, 501)
"""HTTP statuses of endpoints that do not support the Responses API."""
_MAX_BYTES = 16 << 20
"""Size of an answer; the rest of a longer one is not read."""
Protocol = Literal["responses", "chat"]


@dataclass(frozen=True)
class Prices:
    """The provider's prices of a million tokens, in US dollars.

    Attributes:
        input_usd: the price of a million tokens of requests.
        output_usd: the price of a million tokens of answers.
    """

    input_usd: float
    output_usd: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price of so many tokens in US dollars."""
        return (input_tokens * self.input_usd + output_tokens * self.output_usd) / 1e6


@dataclass(frozen=True)
class LlmSettings:
    """A model, its endpoint, and the limits of its use.

    Attributes:
        model: the name of the model at the endpoint.
        url: the base URL of the endpoint; empty for the library's default.
        max_tokens: the most tokens of all requests and answers for one kernel; None for no limit.
        max_usd: the most US dollars for one kernel, which needs ``prices``; None for no limit.
        prices: the prices of tokens; None if money is not counted.
        timeout_s: the time for a complete answer, after which a request is repeated or given up.
        retries: the number of times that the library repeats a request, after growing delays.
        prior: the gain to expect of a proposal, as the natural logarithm of a speedup.

    Raises:
        InputError: ``max_usd`` is given without ``prices``.
    """

    model: str = "gpt-5-mini"
    url: str = ""
    max_tokens: int | None = None
    max_usd: float | None = None
    prices: Prices | None = None
    timeout_s: float = 300.0
    retries: int = 2
    prior: float = 0.5

    def __post_init__(self) -> None:
        if self.max_usd is not None and self.prices is None:
            raise InputError(
                "--llm-max-usd needs the prices of the model, because no list of prices is built "
                "in: give --llm-usd-per-mtok INPUT,OUTPUT as your provider states them."
            )


class AwayError(Exception):
    """The endpoint does not answer, or refuses to; the message is a clause without a period."""


@dataclass
class Endpoint:
    """A client of one model. It asks no more once the library's retries have failed.

    Attributes:
        settings: the model and its limits.
        away: the reason why the model is not asked; empty while it is.
        protocol: the protocol that the endpoint speaks; None before the first answer.
        enabled: whether the model is asked at all.

    Raises:
        UnavailableError: the model should be asked, but the package ``openai`` is missing.
    """

    settings: LlmSettings
    away: str = ""
    protocol: Protocol | None = None
    enabled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.enabled = not self.away
        self._client: Any = _client(self.settings) if self.enabled else None

    def ask(self, question: Question, max_output_tokens: int) -> Reply:
        """Ask by the Responses API or, if the endpoint lacks it, by chat completions.

        Raises:
            AwayError: the endpoint does not answer, now or since an earlier question.
            FormError: the response does not follow the protocol.
        """
        if self.away:
            raise AwayError(self.away)
        protocol = self.protocol or "responses"
        try:
            try:
                content = self._post(question, protocol, max_output_tokens)
            except _openai().APIStatusError as error:
                if self.protocol is not None or error.status_code not in _NO_SUCH_PROTOCOL:
                    raise
                protocol = "chat"
                content = self._post(question, protocol, max_output_tokens)
        except (_openai().OpenAIError, TimeoutError) as error:  # some versions wrap the latter
            self.away = _reason(error)
            raise AwayError(self.away) from None
        if len(content) > _MAX_BYTES:
            raise FormError(f"the response is larger than {_MAX_BYTES >> 20} MiB")
        reply = read_reply(content, protocol)
        self.protocol = protocol
        return reply

    def close(self) -> None:
        """Close the client's connections."""
        if self.enabled:
            self._client.close()

    def _post(self, question: Question, protocol: Protocol, max_tokens: int) -> bytes:
        body = request_body(question, protocol, self.settings.model, max_tokens)
        resource = self._client.chat.completions if protocol == "chat" else self._client.responses
        # The raw content, because the library accepts any JSON in place of what it expects.
        content: bytes = resource.with_raw_response.create(**body).http_response.content
        return content


def connect(settings: LlmSettings, *, refused: bool, tell: Callable[[str], None]) -> Endpoint:
    """Return the endpoint, disabled if no model is to be asked; tell which model is asked where.

    Args:
        settings: the settings; an empty URL is taken from the environment.
        refused: whether the user wants no model to be asked.
        tell: called with a sentence.
    """
    if refused:
        return Endpoint(settings, "it is not to be asked (--no-llm)")
    url = os.environ.get(URL_VARIABLE, "")
    if not url and not os.environ.get(KEY_VARIABLE):
        away = f"neither {KEY_VARIABLE} nor {URL_VARIABLE} is set"
        tell(f"{settings.model} is not asked for moves, because {away}: rules only.")
        return Endpoint(settings, away)
    url = url or _DEFAULT_URL
    try:
        endpoint = Endpoint(replace(settings, url=url))
    except UnavailableError as error:
        tell(str(error))
        return Endpoint(settings, "the package openai is missing")
    tell(
        f"{settings.model} at {urlsplit(url).hostname or url} is asked for moves, and gets the "
        "kernels' sources; --no-llm searches without."
    )
    return endpoint


def _client(settings: LlmSettings) -> Any:
    """Return the library's client, with further limits on its HTTP client.

    It does not follow redirects, because requests are meant for the endpoint alone. It gives up an
    answer that is too long, or that arrives a few bytes at a time and never ends.
    """

    class Client(_openai().DefaultHttpxClient):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            end_s = monotonic() + settings.timeout_s
            options |= {"stream": True, "follow_redirects": False}
            response = super().send(request, **options)
            content = bytearray()
            try:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > _MAX_BYTES:
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

    return _openai().OpenAI(
        api_key=os.environ.get(KEY_VARIABLE) or _UNUSED_KEY,
        base_url=settings.url or None,
        timeout=settings.timeout_s,
        max_retries=settings.retries,
        http_client=Client(timeout=settings.timeout_s),
    )


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise UnavailableError(
            f"Proposals of a language model need the package openai ({error}): install "
            "pytest-gpuenergy[llm], or search with --no-llm."
        ) from None
    return openai


def _reason(error: Any) -> str:
    """Return why a request failed, without the endpoint's words, which may quote the key."""
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


class Message(Struct, frozen=True):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Question(Struct, frozen=True):
    """A question, independent of the protocol.

    Attributes:
        messages: the conversation so far.
        schema: the JSON Schema of the answer.
    """

    messages: tuple[Message, ...]
    schema: dict[str, Any]


class Reply(Struct, frozen=True):
    """The answer to a question, independent of the protocol.

    Attributes:
        text: the text of the model; empty if it declined or was cut off.
        stopped: why there is no complete text: ``cut_off`` or ``declined``; empty if there is one.
        input_tokens, output_tokens: the tokens that the endpoint has counted; None if it does not.
    """

    text: str = ""
    stopped: Literal["", "cut_off", "declined"] = ""
    input_tokens: int | None = None
    output_tokens: int | None = None


def request_body(
    question: Question, protocol: Protocol, model: str, max_output_tokens: int
) -> dict[str, Any]:
    """Return the body of a request."""
    messages = [{"role": message.role, "content": message.content} for message in question.messages]
    form = {"name": "move", "schema": question.schema, "strict": True}
    if protocol == "chat":
        return {
            "model": model,
            "messages": messages,
            "max_completion_tokens": max_output_tokens,
            "response_format": {"type": "json_schema", "json_schema": form},
        }
    return {
        "model": model,
        "input": messages,
        "max_output_tokens": max_output_tokens,
        "store": False,
        "text": {"format": {"type": "json_schema", **form}},
    }


class _Part(Struct, frozen=True):
    type: str = ""
    text: str = ""


class _Item(Struct, frozen=True):
    type: str = ""
    content: tuple[_Part, ...] | None = None


class _ChatMessage(Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None


class _ChatChoice(Struct, frozen=True):
    message: _ChatMessage
    finish_reason: str | None = None


class _Usage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class _ChatUsage(
    Struct,
    frozen=True,
    rename={"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"},
):
    input_tokens: int
    output_tokens: int


class _Responses(Struct, frozen=True):
    output: tuple[_Item, ...]
    status: str = "completed"
    usage: _Usage | None = None


class _Chat(Struct, frozen=True):
    choices: tuple[_ChatChoice, ...]
    usage: _ChatUsage | None = None


def read_reply(content: bytes, protocol: Protocol) -> Reply:
    """Read the body of a response.

    Raises:
        FormError: the response does not follow this protocol; the message is a clause.
    """
    usage: _Usage | _ChatUsage | None
    if protocol == "chat":
        chat = decode(content, _Chat, "the response")
        if not chat.choices:
            raise FormError("the response has no choices")
        message, finish, usage = chat.choices[0].message, chat.choices[0].finish_reason, chat.usage
        text, is_cut_off = message.content or "", finish == "length"
        declined = bool(message.refusal) or finish == "content_filter"
    else:
        response = decode(content, _Responses, "the response")
        messages = [item for item in response.output if item.type == "message"]
        parts = [part for item in messages for part in item.content or ()]
        text = "".join(part.text for part in parts if part.type == "output_text")
        is_cut_off, usage = response.status == "incomplete", response.usage
        declined = any(part.type == "refusal" for part in parts)
    stopped: Literal["", "cut_off", "declined"] = "cut_off" if is_cut_off else ""
    if declined:
        stopped = "declined"
    if usage is None:
        return Reply("" if stopped else text, stopped)
    tokens = max(0, usage.input_tokens), max(0, usage.output_tokens)
    return Reply("" if stopped else text, stopped, *tokens)

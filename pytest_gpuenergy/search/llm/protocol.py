"""The two protocols of OpenAI-compatible endpoints, as data: requests and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from pytest_gpuenergy.support import FormError, decode

Protocol = Literal["responses", "chat"]


class Message(Struct, frozen=True):
    """A part of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Question(Struct, frozen=True):
    """What is asked, in no particular protocol.

    Attributes:
        messages: so far.
        schema: JSON Schema of the answer.
    """

    messages: tuple[Message, ...]
    schema: dict[str, Any]


class Reply(Struct, frozen=True):
    """What came back.

    Attributes:
        text: of the model; empty if it was refused or cut off.
        stopped: why there is no complete text: ``cut_off`` or ``declined``; empty if there is.
        input_tokens, output_tokens: as the endpoint counts them; None if it does not.
    """

    text: str = ""
    stopped: Literal["", "cut_off", "declined"] = ""
    input_tokens: int | None = None
    output_tokens: int | None = None


def body_of(
    question: Question, protocol: Protocol, model: str, max_output_tokens: int
) -> dict[str, Any]:
    """The body of a request."""
    messages = [{"role": one.role, "content": one.content} for one in question.messages]
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


class _ResponsesUsage(Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class _Responses(Struct, frozen=True):
    output: tuple[_Item, ...]
    status: str = "completed"
    usage: _ResponsesUsage | None = None


class _ChatMessage(Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None


class _Choice(Struct, frozen=True):
    message: _ChatMessage
    finish_reason: str | None = None


class _ChatUsage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class _Chat(Struct, frozen=True):
    choices: tuple[_Choice, ...]
    usage: _ChatUsage | None = None


def read_reply(content: bytes, protocol: Protocol) -> Reply:
    """Read the body of a response.

    Raises:
        FormError: it is not of this protocol; the message is a clause.
    """
    return _read_chat(content) if protocol == "chat" else _read_responses(content)


def _read_responses(content: bytes) -> Reply:
    found = decode(content, _Responses, "the response")
    usage = found.usage
    parts = [part for item in found.output if item.type == "message" for part in item.content or ()]
    return _reply(
        "".join(part.text for part in parts if part.type == "output_text"),
        cut_off=found.status == "incomplete",
        declined=any(part.type == "refusal" for part in parts),
        used=None if usage is None else (usage.input_tokens, usage.output_tokens),
    )


def _read_chat(content: bytes) -> Reply:
    found = decode(content, _Chat, "the response")
    usage = found.usage
    if not found.choices:
        raise FormError("the response has no choices")
    choice = found.choices[0]
    return _reply(
        choice.message.content or "",
        cut_off=choice.finish_reason == "length",
        declined=bool(choice.message.refusal) or choice.finish_reason == "content_filter",
        used=None if usage is None else (usage.prompt_tokens, usage.completion_tokens),
    )


def _reply(text: str, *, cut_off: bool, declined: bool, used: Sequence[int] | None) -> Reply:
    tokens = (None, None) if used is None else (max(0, used[0]), max(0, used[1]))
    if declined:
        return Reply("", "declined", *tokens)
    return Reply("" if cut_off else text, "cut_off" if cut_off else "", *tokens)

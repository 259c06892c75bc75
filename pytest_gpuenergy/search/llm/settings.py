"""What a language model is asked with, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_gpuenergy.support import InputError

MODEL = "gpt-5-mini"
TIMEOUT_S = 300.0
PRIOR = 0.5
KEY_VARIABLE, URL_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"
DEFAULT_URL = "https://api.openai.com/v1"
_UNUSED_KEY = "none"
"""Local endpoints need no key, but the client library does."""


@dataclass(frozen=True)
class Prices:
    """US dollars for a million tokens, as the provider states them."""

    input_usd: float
    output_usd: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """The price of so many tokens in US dollars."""
        return (input_tokens * self.input_usd + output_tokens * self.output_usd) / 1e6


@dataclass(frozen=True)
class LlmSettings:
    """A model, its endpoint, and the limits of what is asked.

    Attributes:
        model: its name at the endpoint.
        url: base of the endpoint; empty for the library's default.
        max_tokens: of all requests and answers for one kernel; None without a limit.
        max_usd: likewise in US dollars; needs ``prices``.
        prices: None if money is not counted.
        timeout_s: until an answer is complete, after which a request is repeated or given up.
        retries: of a request, by the library, which waits for longer each time.
        prior: the gain expected of a proposal, as the natural logarithm of a speedup.

    Raises:
        InputError: money is limited without prices.
    """

    model: str = MODEL
    url: str = ""
    max_tokens: int | None = None
    max_usd: float | None = None
    prices: Prices | None = None
    timeout_s: float = TIMEOUT_S
    retries: int = 2
    prior: float = PRIOR

    def __post_init__(self) -> None:
        if self.max_usd is not None and self.prices is None:
            raise InputError(
                "--llm-max-usd needs the prices of the model, because no list of prices is built "
                "in: give --llm-usd-per-mtok INPUT,OUTPUT as your provider states them."
            )

    @property
    def key(self) -> str:
        """The key of the endpoint, from the environment; never stored."""
        return os.environ.get(KEY_VARIABLE) or _UNUSED_KEY


def url_in_environment() -> str | None:
    """The endpoint that the environment names; None if it names neither one nor a key."""
    url = os.environ.get(URL_VARIABLE, "")
    if not url and not os.environ.get(KEY_VARIABLE):
        return None
    return url or DEFAULT_URL

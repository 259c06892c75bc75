"""The words of the options that name setpoints."""

from __future__ import annotations

import re

from pytest_gpuenergy.support import InputError


def listed_words(
    text: str, option: str, noun: str, examples: str, *, known: re.Pattern[str], forms: str
) -> list[str]:
    """The words of an option's list; blanks around the commas are allowed.

    Args:
        text: the option's value.
        option: its name.
        noun: what a word stands for.
        examples: of words.
        known: what matches a word that may name something on some card.
        forms: what such words look like.

    Raises:
        InputError: there are none, or one is not understood.
    """
    words = [word.strip() for word in text.split(",")]
    if not any(words):  # such as an unset variable of a CI job
        raise InputError(
            f"{option} {text!r} names no {noun}: give a list such as {examples}, or leave it out."
        )
    for word in words:
        if known.fullmatch(word) is None:
            raise InputError(
                f"{option} {word!r} is not understood: give a list of {forms}, all, or current."
            )
    return words

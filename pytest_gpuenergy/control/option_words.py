"""Splits the comma-separated list of ``--powercap`` or ``--smclock`` into words."""

from __future__ import annotations

import re

from pytest_gpuenergy.support import InputError


def option_words(
    text: str, option: str, *, noun: str, examples: str, pattern: re.Pattern[str], forms: str
) -> list[str]:
    """Return the words of an option's comma-separated list; blanks around commas are allowed.

    Args:
        text: the value of the option.
        option: the name of the option.
        noun: the thing that a word stands for.
        examples: examples of words, for the message.
        pattern: the pattern that a word matches if it is valid for some card.
        forms: the forms that a word may have, for the message.

    Raises:
        InputError: there is no word, or a word does not match.
    """
    words = [word.strip() for word in text.split(",")]
    if not any(words):  # such as an unset variable of a CI job
        raise InputError(
            f"{option} {text!r} names no {noun}: give a list such as {examples}, or leave it out."
        )
    for word in words:
        if pattern.fullmatch(word) is None:
            raise InputError(
                f"{option} {word!r} is not understood: give a list of {forms}, all, or current."
            )
    return words

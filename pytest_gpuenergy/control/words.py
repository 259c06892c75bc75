"""The words of the options that name setpoints."""

from __future__ import annotations

from pytest_gpuenergy.support.errors import InputError


def listed_words(text: str, option: str, noun: str, examples: str) -> list[str]:
    """The words of an option's list; blanks around the commas are allowed.

    Args:
        text: the option's value.
        option: its name.
        noun: what a word stands for.
        examples: of words.

    Raises:
        InputError: there are none.
    """
    words = [word.strip() for word in text.split(",")]
    if not any(words):  # such as an unset variable of a CI job
        raise InputError(
            f"{option} {text!r} names no {noun}: give a list such as {examples}, or leave it out."
        )
    return words

"""Names and figures as people read them, whatever is in a name."""

from __future__ import annotations

from html import escape

_MARKUP = str.maketrans({c: f"&#{ord(c)};" for c in "|`*[]\\"})


def printable(line: str) -> str:
    """``line`` without what could end it, move the cursor, or command GitHub's runner.

    The runner obeys lines of a step's output that begin with ``::``, blanks left aside.
    """
    plain = _without_controls(line)
    start = len(plain) - len(plain.lstrip())
    return f"{plain[:start]}: :{plain[start + 2 :]}" if plain[start:].startswith("::") else plain


def markdown_text(words: str) -> str:
    """``words`` as text of one Markdown line or table cell."""
    return escape(_without_controls(words), quote=False).translate(_MARKUP)


def figures(value: float) -> str:
    """With three significant digits, those that are zero too: ``15.0``, ``0.600``, ``118``."""
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def _without_controls(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)

"""Elements of a page. Whatever text and attributes they are given, it stays text."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

Content = Element | str


def element(tag: str, *content: Content, **attributes: str | float) -> Element:
    """An element; an underscore in the name of an attribute stands for a hyphen.

    ``class_`` is the attribute of that name. Empty attributes are left out.
    """
    named = {name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()}
    found = Element(tag, {name: value for name, value in named.items() if value})
    last: Element | None = None
    for one in content:
        if not isinstance(one, str):
            found.append(one)
            last = one
        elif last is None:
            found.text = (found.text or "") + one
        else:
            last.tail = (last.tail or "") + one
    return found


def table(words: Iterable[str], rows: Iterable[Element], numbers: Iterable[str] = ()) -> Element:
    """A table in a frame that can be scrolled with the keyboard.

    Args:
        words: heads of the first columns.
        rows: below the heads.
        numbers: heads of the last columns.
    """
    cells = [element("th", name, scope="col") for name in words]
    cells += [element("th", name, scope="col", class_="number") for name in numbers]
    body = element("table", element("thead", element("tr", *cells)), element("tbody", *rows))
    return element("div", body, class_="scroll", tabindex="0")


def html(elements: Iterable[Element]) -> str:
    """The elements as ASCII."""
    return "\n".join(tostring(one, "us-ascii", method="html").decode() for one in elements)


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"

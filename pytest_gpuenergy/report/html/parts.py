"""What self-contained HTML pages consist of: policy, data, and the plotting library of some."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from pytest_gpuenergy.support import InputError, UnavailableError, cache_dir, keep_for_later, needs

VEGA_LITE = "6.4"
_BUNDLE = "1"
"""Version of the form in which the library is cached."""


def check_html() -> None:
    """Check that charts can be drawn with the plotting library.

    Raises:
        UnavailableError: the plotting library is not installed.
    """
    try:
        import vl_convert  # noqa: F401
    except ImportError as error:
        advice = "pip install 'pytest-gpuenergy[html]'"
        raise UnavailableError(needs("The page's chart", "vl_convert", advice, error)) from None


def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, cached because bundling takes a second."""
    content = f"{_BUNDLE} {VEGA_LITE} {metadata.version('vl-convert-python')}"
    try:
        path = cache_dir("charts") / f"{hashlib.sha256(content.encode()).hexdigest()}.js"
    except InputError:
        return _bundled()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest, _, known = path.read_bytes().decode(errors="replace").partition("\n")
        if digest == _digest(known):
            return known
    bundle = _bundled()
    keep_for_later(path, f"{_digest(bundle)}\n{bundle}")
    return bundle


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bundled() -> str:
    import vl_convert

    library: Any = vl_convert  # its stubs require the optional argument snippet
    bundle: str = library.javascript_bundle(vl_version=VEGA_LITE)
    return bundle.replace("</script", "<\\/script").replace("\r\n", "\n")


def script_hash(script: str) -> str:
    """As a content security policy names it."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _without_separators(value: Any) -> Any:
    """``value`` with U+2028 and U+2029 spelled out: Vega reads them as ends of lines in strings."""
    if isinstance(value, str):
        return value.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if isinstance(value, Mapping):
        return {_without_separators(key): _without_separators(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_without_separators, value))
    return value


def embedded_json(data: Mapping[str, Any]) -> str:
    """ASCII JSON in which no HTML parser can find a tag, a comment or an entity."""
    text = json.dumps(_without_separators(data), allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text

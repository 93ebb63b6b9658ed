"""Formats nbdist's messages, in which code is between backticks, as plain text or HTML."""

from __future__ import annotations

import html
import re

QUOTED = re.compile(r"`([^`\n]+)`")


def plain(text: str) -> str:
    """Return the text without backticks, for a place that shows plain text."""
    return QUOTED.sub(r"\1", text)


def as_html(text: str) -> str:
    """Return the text as HTML, with code in ``<code>``."""
    return QUOTED.sub(r"<code>\1</code>", html.escape(text))

"""A number as a badge: a small SVG picture for a page."""

from __future__ import annotations

from html import escape

MEDIA_TYPE = "image/svg+xml"
EXAMPLE = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
_HEIGHT = 20
_MARGIN = 6
# Widths of characters in px, in Verdana at 11 px. `textLength` makes the text fit in other fonts.
_WIDTHS = {"i": 3.0, "l": 3.0, "j": 3.8, ".": 4.0, "t": 4.4, "r": 4.8, "s": 5.8, "M": 9.3}
_WIDTH_USUAL = 6.9
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


def abbreviate(number: int) -> str:
    """Returns a short form: 999, 1k, 1.2k, 34k, 5.6M. Digits are cut off, so it never shows more than was counted."""
    for unit, letter in _UNITS:
        if number >= unit:
            whole, tenth = divmod(number * 10 // unit, 10)
            return f"{whole}.{tenth}{letter}" if whole < 10 and tenth else f"{whole}{letter}"
    return str(number)


def svg(label: str, number: int) -> str:
    """Returns the picture, label on the left, number on the right. Screen readers read the whole number."""
    label_width, number_width = _width(label), _width(abbreviate(number))
    width, title = label_width + number_width, escape(f"{label}: {number:,}")
    left_half = f"M3 0H{label_width}V{_HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z"  # its left corners are round
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
        f'<rect width="{width}" height="{_HEIGHT}" rx="3" fill="#07609c"/><path d="{left_half}" fill="#555"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f"{_text(label, start=0)}{_text(abbreviate(number), label_width)}</g></svg>\n"
    )


def _text(text: str, start: int) -> str:
    return f'<text x="{start + _MARGIN}" y="14" textLength="{_width(text) - 2 * _MARGIN}">{escape(text)}</text>'


def _width(text: str) -> int:
    """Returns the width of one half in pixels: an estimate for the text, and margins."""
    return round(sum(_WIDTHS.get(character, _WIDTH_USUAL) for character in text)) + 2 * _MARGIN

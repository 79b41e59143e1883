"""What a notebook shows of a value: a small card that any theme can be read in, whatever stands in it."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal, Protocol, TypeAlias

from attrs import AttrsInstance, fields

Tone: TypeAlias = Literal["good", "bad", "doubt", "plain"]
Pair: TypeAlias = tuple[str, str]


class Shown(Protocol):
    """What notebooks show in its own way."""

    def _repr_html_(self) -> str: ...


# Text and ground are the notebook's own, light or dark. These stand beside the text, tell nothing that it
# does not, and are seen on white as well as on black.
_COLOURS: dict[Tone, str] = {"good": "#1f9254", "bad": "#d64545", "doubt": "#b07d12", "plain": "#808080"}
_CARD = "border-left:4px solid {};padding:.2em .8em;margin:.3em 0"
_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
# Formulas are not to be made of dollar signs: a notebook leaves alone what is of these classes.
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"
_MASKED = "***"


def card(
    title: str,
    tone: Tone,
    *,
    said: str = "",
    pairs: Iterable[Pair] = (),
    head: Sequence[str] = (),
    table: Iterable[Sequence[object]] = (),
    notes: Iterable[str] = (),
    inside: Iterable[Shown] = (),
) -> str:
    """Lay a value out; all of it is text, and none of it is taken for HTML.

    Args:
        title: What it is.
        tone: How that is to be taken.
        said: A sentence.
        pairs: Names and values; masked values are named together, below.
        head: Names of the columns of a table.
        table: Its rows.
        notes: What else there is to say, smaller.
        inside: Other values that belong to it.

    Example:
        >>> card("Refused", "bad", said="a < b")
        '<div ...><strong>Refused</strong><div>a &lt; b</div></div>'
    """
    pairs = list(pairs)
    shown = [(name, value) for name, value in pairs if value != _MASKED]
    masked = [name for name, value in pairs if value == _MASKED]
    notes = [
        *notes,
        *([f"masked, and there to be read as attributes: {', '.join(masked)}"] if masked else ()),
    ]
    table = list(table)
    parts = [
        f"<strong>{_text(title)}</strong>",
        *([f"<div>{_text(said)}</div>"] if said else ()),
        *([_table((), shown)] if shown else ()),
        *([_table(head, table)] if table else ()),
        *(each._repr_html_() for each in inside),
        *(f'<div style="opacity:.75;font-size:90%">{_text(note)}</div>' for note in notes),
    ]
    return f'<div class="{_NO_FORMULAS}" style="{_CARD.format(_COLOURS[tone])}">{"".join(parts)}</div>'


def rows(value: AttrsInstance, **written: Callable[[Any], str]) -> list[Pair]:
    """Names and values of an object's fields, as masked as in its ``repr``; empty ones are left out.

    Args:
        value: Of a class of attrs.
        written: How plain fields are written that are no mere texts, such as sums.
    """
    found = []
    for field in fields(type(value)):
        there = getattr(value, field.name)
        if there in (None, ()):
            continue
        write = field.repr if callable(field.repr) else written.get(field.name, _plain)
        found.append((field.name, write(there)))
    return found


def line(value: AttrsInstance) -> str:
    """The same in one line."""
    return ", ".join(f"{name}: {text}" for name, text in rows(value) if text != "False")


def euro(cents: object) -> str:
    """A sum for people; what is no number of cents stays what it is.

    Example:
        >>> euro(123_450)
        '1,234.50 euro'
    """
    return f"{cents / 100:,.2f} euro" if isinstance(cents, int) else _plain(cents)


def instant(seconds: float) -> str:
    """A time that is counted from 1970.

    Example:
        >>> instant(0.0)
        '1970-01-01 00:00:00 UTC'
    """
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, TypeError, ValueError, OSError):
        return _plain(seconds)


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    top = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in head)
    lines = [f"<thead><tr>{top}</tr></thead>"] if head else []
    for cells in body:
        line = "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in cells)
        lines.append(f"<tr>{line}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _text(value: object) -> str:
    """Escaped; and without characters that would turn the line around, or ring a bell."""
    return escape("".join(each if each.isprintable() else " " for each in str(value)))

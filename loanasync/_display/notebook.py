"""HTML tables for notebooks; every text in them is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
# Notebooks turn text between dollar signs into formulas, except in elements of these classes.
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"


def table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()
) -> str:
    """Return a table under a title, in the colours of the notebook.

    Args:
        title: A text above the table.
        head: Names of the columns.
        rows: The cells of each row.
        notes: Texts below the table.

    Example:
        >>> table("Totals", ["status"], [["a < b"]])
        '<div class=...><strong>Totals</strong><table>...<td ...>a &lt; b</td></tr></table></div>'
    """
    cells = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    below = "".join(f"<div>{_text(note)}</div>" for note in notes)
    return (
        f'<div class="{_NO_FORMULAS}"><strong>{_text(title)}</strong>'
        f"<table><thead><tr>{_cells('th', head)}</tr></thead>{cells}</table>{below}</div>"
    )


def euro(cents: object) -> str:
    """Return an amount of euro cents in euro, an empty text for None, and any other value as text.

    Example:
        >>> euro(123_450)
        '1,234.50 euro'
    """
    if cents is None:
        return ""
    return f"{cents / 100:,.2f} euro" if isinstance(cents, int) else str(cents)


def _cells(element: str, values: Sequence[object]) -> str:
    return "".join(f'<{element} style="{_CELL}">{_text(value)}</{element}>' for value in values)


def _text(value: object) -> str:
    # A character that is not printable could reverse the direction of the line.
    return escape("".join(each if each.isprintable() else " " for each in str(value)))

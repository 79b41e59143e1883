"""HTML tables for notebooks, with all texts escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
# Notebooks render text between dollar signs as formulas, except in elements with these classes.
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"


def table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()
) -> str:
    """Return an HTML table with a title and notes.

    Args:
        title: Text above the table.
        head: Column names.
        rows: Cells of each row.
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
    """Format euro cents as euro. Return an empty string for None, and other values as `str`.

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
    # Non-printable characters, such as direction marks, could disguise the text.
    return escape("".join(each if each.isprintable() else " " for each in str(value)))

"""Notebooks, terminals and JSON logs show no content of a decision, and tables in the theme's own colours."""

import json
import pprint
from collections.abc import Callable

import pytest
import rich.pretty
from IPython.lib.pretty import pretty

from loanasync import Approved, Meta
from loanasync._models import notebook
from loanasync._models.masking import Body

BODY = Body({"approved": True, "lastname": "Prova", "later": [{"a": "Prova"}]})
DECISION = Approved(last_name="Prova", raw=BODY, meta=Meta(status=201, attempts=1, elapsed=0.2))
PRINTERS = {
    "print": str,
    "format": "{}".format,
    "pprint": pprint.pformat,
    "IPython": pretty,
    "rich": rich.pretty.pretty_repr,
    "json log": lambda value: json.dumps(value, default=repr),
}


@pytest.mark.parametrize("show", PRINTERS.values(), ids=PRINTERS)
def test_printer_shows_no_content_of_a_decision(show: Callable[[object], str]) -> None:
    for value in (BODY, [BODY], {"raw": BODY}):
        assert "<Body of 3 members>" in show(value)
        assert "Prova" not in show(value)
    assert "Approved(" in show(DECISION)
    assert "Prova" not in show(DECISION)


def test_table_has_the_colours_of_light_and_dark_notebooks() -> None:
    table = notebook.table("Title", ("a", "b"), [("1", "2")], notes=["n"])
    assert [word for word in ("color", "background", "border") if word in table] == []

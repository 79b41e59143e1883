"""The privacy page lists the planted fields and the searched kinds of output."""

import re

from privacy_page import PAGE, TABLES, with_tables


def test_privacy_tables_are_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "python docs/_generate/privacy_page.py --write"
    for name in TABLES:
        assert len(re.findall(f"<!-- {name} (begin|end) -->", page)) == 2


def test_privacy_page_names_existing_tests() -> None:
    named = re.findall(r"`(tests/[a-z_/]+(?:\.py)?)`", PAGE.read_text(encoding="utf-8"))
    assert named
    assert all((PAGE.parent.parent.parent / name).exists() for name in named)

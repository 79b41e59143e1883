"""Texts of problems and errors for shoppers, in English and Italian, which `texts.json` contains."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

Advice: TypeAlias = Literal[
    "correct_form",
    "wait",
    "ask_service",
    "try_later",
    "already_decided",
    "other_data",
    "other_order",
    "fix_setup",
]
Param: TypeAlias = int | str | tuple[str, ...] | None

LANGUAGES = ("en", "it")
# Rules that a form seldom breaks. Their text is that of ``not_accepted``.
RARE_RULES = {
    *("control_characters", "dialect", "digits", "encoding", "format"),
    *("json", "keys", "known", "object", "unknown_field"),
}
# By kind, name and language. ``rules`` are the texts of problems, by code, such as ``amount.range``, or by
# rule, such as ``range``; amounts are in euros. ``pages`` are those of errors, by advice; ``data_pages``
# those that differ for calls that decide nothing. The file is read now, because later an event loop may run.
TEXTS: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(
    Path(__file__).with_name("texts.json").read_bytes()
)


def text_of(code: str, params: Mapping[str, Param], message: str, language: str) -> str:
    """Return the text of a problem, or its message if it has no text.

    Raises:
        ValueError: There are no texts in this language.
    """
    name, rules = _known(language), TEXTS["rules"]
    field, _, rule = code.rpartition(".")
    if rule == "type" and "least" in params:
        rule = "range"
    texts = rules.get(f"{field}.{rule}") or rules.get("not_accepted" if rule in RARE_RULES else rule)
    if field == "amount":
        params = {key: _euros(value, name) for key, value in params.items() if isinstance(value, int)}
    try:
        return message if texts is None else texts[name].format_map(params)
    except KeyError:  # messages of the service do not have all params
        return message


def advice_text(advice: Advice, operation: str | None, language: str) -> str:
    """Return the text of an error with this advice.

    Raises:
        ValueError: There are no texts in this language.
    """
    name, pages = _known(language), TEXTS["pages"]
    if operation in ("upload_documents", "complete") or (
        operation == "create_request" and advice == "ask_service"  # no decision is missing
    ):
        pages = {**pages, **TEXTS["data_pages"]}
    return pages[advice][name]


def _known(language: str) -> str:
    # Browsers send language tags with a region, such as it-IT.
    name = _REGION.sub("", language).lower() if isinstance(language, str) else ""
    if name not in LANGUAGES:
        raise ValueError(
            "there are no texts in this language: pass 'en' or 'it', or write your own texts for problem.code"
        )
    return name


def _euros(cents: int, language: str) -> str:
    text = f"{cents // 100:,}.{cents % 100:02}"  # a float would overflow or be rounded
    return text.translate(_COMMA) if language == "it" else text


_COMMA = str.maketrans(",.", ".,")
_REGION = re.compile("[-_][A-Za-z]{2}$")

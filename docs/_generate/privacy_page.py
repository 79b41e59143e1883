"""Generates the tables of docs/explanation/privacy.md and docs/contributing/privacy.md.

They come from the models, the errors, and the planted values and the scanner of the tests.

The table of monitoring agents shows docs/figures/agents.json, which `nox -s agents` compares with the agents.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from loanasync import errors
from support.privacy.plants import FORMS, MODELS, NOT_PERSONAL
from support.privacy.scanner import OUTPUT_KINDS

AGENTS = Path(__file__).parents[1] / "figures" / "agents.json"


def table(*heads: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])


def fields() -> str:
    rows = []
    for model in MODELS:
        names = [each.name for each in attrs.fields(model)]
        personal = ", ".join(f"`{name}`" for name in names if name not in NOT_PERSONAL)
        plain = ", ".join(f"`{name}`" for name in names if name in NOT_PERSONAL)
        rows.append((f"`{model.__name__}`", personal, plain or "none"))
    return table("model", "personal: masked", "not personal: shown", rows=rows)


PERSONAL_TYPES = ("Approved", "RawResponse", "Problem")  # of the attributes of errors


def attributes() -> str:
    owners: dict[str, list[str]] = {}
    for name in errors.__all__:
        kind: Any = getattr(errors, name)
        # The problems of this error are those of the SDK, which contain no values.
        if kind is errors.InvalidRequestError or "__attrs_attrs__" not in vars(kind):
            continue
        for each in attrs.fields(kind):
            if not each.inherited and any(map(str(each.type).count, PERSONAL_TYPES)):
                owners.setdefault(each.name, []).append(f"`{name}`")
    return table(
        "attribute", "of", rows=((f"`{name}`", ", ".join(names)) for name, names in sorted(owners.items()))
    )


def reasons() -> str:
    return table("not personal", "describes", rows=((f"`{name}`", why) for name, why in NOT_PERSONAL.items()))


def outputs() -> str:
    rows = ((kind.name, kind.instead) for kind in OUTPUT_KINDS)
    return table("output", "shown instead of personal values", rows=rows)


def forms() -> str:
    return "\n".join(f"- {form}" for form in FORMS)


def agents() -> str:
    record = json.loads(AGENTS.read_text(encoding="utf-8"))
    sessions = list(next(iter(record["sentry"]["results"].values())))
    rows = []
    for agent in record.values():
        name = ", ".join(f"{package} {version}" for package, version in agent["versions"].items())
        for setting, results in agent["results"].items():
            cells = ("**personal data**" if each["personal"] else "nothing" for each in results.values())
            rows.append((name, setting, *cells))
    return table("agent", "settings of the agent", *(f"session: {each}" for each in sessions), rows=rows)


USERS_TABLES = {"fields": fields, "attributes": attributes}
CONTRIBUTORS_TABLES = {"reasons": reasons, "outputs": outputs, "forms": forms, "agents": agents}

"""`to_dict` and `from_dict` of decisions: JSON round trips, other versions, and wrong data."""

import json
import traceback
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Approved, Citizenship, Decision, Meta, Refused
from loanasync._models.masking import Body, Items
from support.builders import BY_TYPE, TEXTS

NAN = float("nan")
META = Meta(
    status=201, attempts=2, elapsed=0.25, trace_id="0" * 32, unread=("netAmount",), request_id="r", date="d",
    retry_after="3", entry="c0ffee", after_unknown=True,
)  # fmt: skip
BODY = Body({"approved": True, "lastname": "Prova", "later": [{"a": None}, 1.5], "netAmount": "x"})
WHOLE = Approved(
    **{each.name: "Prova" for each in attrs.fields(Approved) if each.type == str | None},
    citizenship=Citizenship.ITALIAN, amount=45_000, net_amount=43_650, instalments=12,
    zero_interest_rate=False, payment_day_of_month=5, raw=BODY, meta=META,
)  # fmt: skip

STORED_META = WHOLE.to_dict()["meta"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
VALUES = {
    **BY_TYPE,
    int | None: st.none() | st.integers(),
    Citizenship | str | None: st.none() | st.sampled_from(Citizenship) | TEXTS,
}
METAS = st.builds(
    Meta, st.integers(100, 599), st.integers(0, 9), st.floats(0, 1e6), st.none() | TEXTS,
    st.lists(TEXTS, max_size=3).map(tuple), st.none() | TEXTS, entry=st.none() | TEXTS,
    after_unknown=st.booleans(),
)  # fmt: skip


def decisions(kind: type[Approved] | type[Refused]) -> st.SearchStrategy[Decision]:
    named = {each.name: VALUES[each.type] for each in attrs.fields(kind) if each.type in VALUES}
    bodies = st.dictionaries(TEXTS, JSON_VALUES, max_size=4).map(Body)
    return st.builds(kind, meta=METAS, raw=bodies, **named)


@given(decisions(Approved) | decisions(Refused))
def test_stored_decision_is_restored_equal(decision: Decision) -> None:
    stored = decision.to_dict()
    kind = Approved if stored["approved"] else Refused
    assert kind.from_dict(stored) == decision
    restored = kind.from_dict(json.loads(json.dumps(stored)))
    assert restored == decision
    assert repr(restored) == repr(decision)


def test_stored_decision_has_every_attribute_as_plain_json() -> None:
    stored = WHOLE.to_dict()
    assert stored.keys() == attrs.fields_dict(Approved).keys()
    assert stored["meta"].keys() == attrs.fields_dict(Meta).keys()
    assert None not in stored.values()
    assert json.loads(json.dumps(stored)) == stored
    assert orjson.loads(orjson.dumps(stored)) == stored
    assert (type(stored["citizenship"]), stored["raw"]) == (str, dict(BODY))
    assert type(Approved.from_dict(stored).citizenship) is Citizenship


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels // 2):
        value = {"a": [value]}
    return value


def test_stored_body_has_at_most_a_hundred_levels() -> None:
    decision = Approved(meta=META, redirect_url="https://shop.example", raw=Body({"a": [nested(98), 1]}))
    assert decision.to_dict()["raw"] == decision.raw
    deep = attrs.evolve(decision, raw=Body({"a": [nested(100), 1], "b": nested(100_000)}))
    stored = json.loads(json.dumps(deep.to_dict()))
    assert Approved.from_dict(stored).redirect_url == "https://shop.example"
    cut: Any = None
    for _ in range(49):
        cut = {"a": [cut]}
    assert stored["raw"]["a"] == [cut, 1]


def test_missing_and_unknown_members_are_accepted() -> None:
    """An older version did not write a member, or a newer one wrote another."""
    stored = WHOLE.to_dict() | {"added_later": {"a": 1}}
    stored["meta"] |= {"added_later": "x"}
    assert Approved.from_dict(stored) == WHOLE
    always = {"approved", "raw", "meta", "redirect_url", "added_later"}
    for name in stored.keys() - always:
        less = {member: value for member, value in stored.items() if member != name}
        change: dict[str, Any] = {name: None}
        assert Approved.from_dict(less) == attrs.evolve(WHOLE, **change)
    stored["meta"] = {"status": 201, "attempts": 2, "elapsed": 0.25}
    assert Approved.from_dict(stored).meta == Meta(status=201, attempts=2, elapsed=0.25)


@pytest.mark.parametrize("decision", [WHOLE, Refused(raw=Body({"approved": False}), meta=META)])
def test_part_of_a_stored_decision_is_refused(decision: Decision) -> None:
    """Otherwise the redirect of an approved loan would be None without notice."""
    stored = decision.to_dict()
    meta = stored["meta"]
    parts = {name: {**stored, "meta": without(meta, name)} for name in ("status", "attempts", "elapsed")}
    parts |= {name: without(stored, name) for name in ("raw", "meta", "redirect_url") if name in stored}
    assert ("redirect_url" in parts) == decision.approved
    for name, part in (*parts.items(), ("raw", dict(decision.raw))):
        with pytest.raises(ValueError, match=rf"the member {name} is missing: pass the whole dict of to_di"):
            type(decision).from_dict(part)
    other = Refused if decision.approved else Approved
    with pytest.raises(ValueError, match=rf"approved is {decision.approved}: use {type(decision).__name__}"):
        other.from_dict(stored)


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {member: value for member, value in data.items() if member != name}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (Refused(meta=META).to_dict(), "approved is False: use Refused.from_dict"),
        ({"email": "Prova"}, "is missing: pass the whole dict"),
        (without(WHOLE.to_dict(), "approved"), "the member approved is missing"),
        ('{"email": "Prova"}', "must be the dict that to_dict() returned, not str; read a JSON text with"),
        (None, "must be the dict that to_dict() returned, not NoneType"),
        *(
            ({**WHOLE.to_dict(), **members}, sentence)
            for members, sentence in (
                ({"approved": 1}, "the member approved has the wrong type int"),
                ({"amount": "Prova"}, "amount has the wrong type str"),
                ({"amount": True}, "amount has the wrong type bool"),
                ({"raw": ["Prova"]}, "raw has the wrong type list"),
                ({"meta": "Prova"}, "meta has the wrong type str"),
                ({"meta": {**STORED_META, "status": "Prova"}}, "status has the wrong type"),
                ({"redirect_url": " "}, "redirect_url has a value"),
                ({"meta": {**STORED_META, "unread": ["a", 5]}}, "unread has a value"),
                ({"meta": {**STORED_META, "elapsed": NAN}}, "elapsed has a value"),
                ({"raw": {"a": [{"b": NAN}]}}, "raw has a value"),
            )
        ),
    ],
)
def test_wrong_data_is_refused_without_personal_data(data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match="from_dict: ") as caught:
        Approved.from_dict(data)
    assert sentence in str(caught.value)
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    own = [frame for frame in frames.stack if frame.filename.endswith("_models/decisions.py")]
    assert own
    assert "Prova" not in str([frame.locals for frame in own]) + str(caught.value)


@pytest.mark.parametrize(
    ("value", "call"), [(BODY, "dict(...)"), (Items(["Prova"]), "list(...)")], ids=["object", "array"]
)
@pytest.mark.parametrize("encode", [json.dumps, orjson.dumps])
def test_json_of_a_masked_value_names_the_call(
    encode: Callable[[object], object], value: object, call: str
) -> None:
    with pytest.raises(TypeError, match="not JSON serializable") as caught:
        encode({"raw": value})
    assert call in str(caught.value)
    assert "Prova" not in str(caught.value)

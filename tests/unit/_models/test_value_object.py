"""The shared methods of values do the same as those that attrs generates."""

from typing import Any

from attrs import field, make_class

from loanasync import Request, Response
from loanasync._models.masking import ValueObject, mask


def fields() -> dict[str, Any]:
    return {
        "number": field(),
        "name": field(repr=mask),
        "items": field(hash=False, repr=False, factory=list),
        "note": field(eq=False, default=""),
    }


Generated: Any = make_class("Example", fields(), frozen=True)
Shared: Any = make_class("Example", fields(), (ValueObject,), frozen=True, eq=False, repr=False)
Other: Any = make_class("Other", {}, (Shared,), frozen=True, eq=False, repr=False)


def test_shared_methods_equal_those_of_attrs() -> None:
    rows = [(1, "a"), (1.0, "a"), (2, "a"), (1, "b"), (1, None), (1, "a", [1]), (1, "a", [1], "note")]
    for row in rows:
        assert repr(Shared(*row)) == repr(Generated(*row))
        for other in rows:
            is_equal = Generated(*row) == Generated(*other)
            assert (Shared(*row) == Shared(*other)) is is_equal
            has_equal_hash = hash(Generated(*row)) == hash(Generated(*other))
            assert (hash(Shared(*row)) == hash(Shared(*other))) is has_equal_hash


def test_value_of_a_subclass_is_not_equal() -> None:
    assert Shared(1, "a") != Other(1, "a")
    assert Shared(1, "a") != (1, "a", [], "")


def test_value_that_can_be_set_is_not_hashable() -> None:
    assert Request.__hash__ is Response.__hash__ is None

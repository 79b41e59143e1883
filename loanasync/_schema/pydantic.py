"""Validation of the request models by pydantic and FastAPI, without a dependency on them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from itertools import islice
from typing import Any, NoReturn, TypeAlias, get_args

import attrs
from attrs import frozen

from loanasync._config import require
from loanasync._models.dialect import Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest, PydanticType, UserData
from loanasync._results import Problem
from loanasync._schema.json_schema import schema
from loanasync._settings import Limits
from loanasync._validation.rules import check_additional, check_approval, check_user_data

# The problem at each place in the JSON body.
Found: TypeAlias = dict[tuple[str, ...], Problem]


@frozen(kw_only=True)
class RequestRules:
    """Settings of the validation of a request model by pydantic and FastAPI, as an annotation.

    `ApprovalRequest`, `AdditionalData` and `UserData` can be types of pydantic fields and of FastAPI bodies
    (``order: Annotated[ApprovalRequest, Body()]``; FastAPI treats the bare type as a query parameter).
    They are checked with the default settings of `LoanClient`. If the client has other settings, annotate the
    type with the same settings. The error lists all missing, unknown and invalid fields at once, and contains
    no value. Its types are the codes of `Problem`, such as ``amount.range``.

    Args:
        dialect: Dialect of the client.
        limits: Limits of the client.
        additional_data_needed: Require the additional data (spec §2.1).

    Raises:
        ConfigurationError: `dialect` or `limits` has another type.

    Example:
        >>> from typing import Annotated
        >>> from pydantic import TypeAdapter
        >>> from loanasync import Limits, RequestRules
        >>> SmallOrder = Annotated[ApprovalRequest, RequestRules(limits=Limits(amount_max=200_000))]
        >>> TypeAdapter(SmallOrder).json_schema()["properties"]["amount"]["maximum"]
        200000
    """

    dialect: Dialect = Dialect.street_number()
    """Dialect of the client (spec §2.1)."""
    limits: Limits = Limits()
    """Limits of the client (spec §8)."""
    additional_data_needed: bool = False
    """Require the additional data (spec §2.1)."""

    def __attrs_post_init__(self) -> None:
        require(Dialect, "dialect", self.dialect)
        require(Limits, "limits", self.limits)

    def __get_pydantic_core_schema__(self, model: type[Any], _: object) -> object:
        from pydantic_core import core_schema  # noqa: PLC0415  (not a dependency; pydantic calls this method)

        def validate(value: object) -> object:
            return self._validate(model, value)

        return core_schema.no_info_plain_validator_function(
            validate,
            metadata={"model": model},
            serialization=core_schema.plain_serializer_function_ser_schema(_refuse, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, core_schema: Mapping[str, Any], _: object) -> object:
        members = schema(
            core_schema["metadata"]["model"],
            dialect=self.dialect,
            limits=self.limits,
            additional_data_needed=self.additional_data_needed,
        )
        return {name: value for name, value in members.items() if name != "$schema"}

    def _validate(self, model: type[Any], value: object) -> object:
        """Return an instance of the model, or raise pydantic's error with all problems."""
        instance, found = _read(model, value)
        if instance is not None:
            for problem in self._check(instance):
                found.setdefault(_location(model, problem.field), problem)
        if not found:
            return instance
        from pydantic_core import PydanticCustomError, ValidationError  # noqa: PLC0415  (see above)

        # `input` replaces the value, which is personal.
        raise ValidationError.from_exception_data(
            model.__name__,
            [
                {
                    "type": PydanticCustomError(each.code, each.message, {**each.params}),
                    "loc": place,
                    "input": "***",
                }
                for place, each in found.items()
            ],
        )

    def _check(self, instance: object) -> Iterator[Problem]:
        if isinstance(instance, UserData):
            return check_user_data(instance, self.limits)
        if isinstance(instance, AdditionalData):
            return check_additional(instance, self.limits, needed=self.additional_data_needed)
        return check_approval(
            instance,
            additional_data_needed=self.additional_data_needed,
            dialect=self.dialect,
            limits=self.limits,
        )


def _read(model: type[Any], value: object) -> tuple[object, Found]:
    """Return an instance with the members of a JSON object, None in place of missing and unreadable ones.

    The instance is None if the value is not an object.
    """
    if isinstance(value, model):
        return value, {}
    if not isinstance(value, Mapping):
        return None, {(): _not_an_object(model)}
    found: Found = {}
    fields = {each.name: each for each in attrs.fields(model) if each.name not in ("extra", "unread")}
    members: dict[str, Any] = {}
    for name, each in fields.items():
        if name in value:
            members[name], problems = _read_member(name, each.type, value[name])
            found |= {(name, *place): problem for place, problem in problems.items()}
        elif each.default is attrs.NOTHING:
            members[name] = None
            found[name,] = Problem(name, name, "is required", f"{name}.required")
    unknown = (name for name in map(str, value) if name not in fields)
    for name in islice(unknown, _MOST_UNKNOWN):
        message = f"is not a field of {model.__name__}{_suggestion(name, fields)}"
        found[name,] = Problem(name, name, message, "unknown_field")
    return model(**members), found


def _read_member(name: str, kind: object, value: object) -> tuple[object, Found]:
    kinds = get_args(kind)  # of a union, such as `date | None`
    if AdditionalData in kinds and isinstance(value, Mapping):
        return _read(AdditionalData, value)
    if AdditionalData in kinds and not isinstance(value, AdditionalData | None):
        return value, {(): _not_an_object(AdditionalData, name)}
    if not isinstance(value, str):
        return value, {}
    if date in kinds:
        day = _day(value)
        return day, {} if day else {(): Problem(name, name, "must be a date as YYYY-MM-DD", f"{name}.date")}
    options = {option.value: option for each in kinds if issubclass(each, StrEnum) for option in each}
    return options.get(value, value), {}


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return a question that names the most similar field, empty if no field is similar."""
    import difflib  # noqa: PLC0415  (for errors only)

    similar = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _not_an_object(model: type, name: str = "") -> Problem:
    message = f"must be an object with the fields of {model.__name__}"
    return Problem(name, name, message, f"{name}.object".lstrip("."))


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None


def _location(model: type, field: str) -> tuple[str, ...]:
    is_nested = model is ApprovalRequest and field in _ADDITIONAL
    return ("additional", field) if is_nested else (field,)


def _refuse(value: object) -> NoReturn:
    name = type(value).__name__
    raise TypeError(
        f"{name} contains personal data, so it is not written as JSON; use a model of your own for responses"
    )


_MOST_UNKNOWN = 20  # unknown members that are reported: a hostile body may have thousands
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ADDITIONAL = frozenset(attrs.fields_dict(AdditionalData))


PydanticType.rules = RequestRules()

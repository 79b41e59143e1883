"""JSON Schema of the request models, and their validation by pydantic and FastAPI."""

import inspect
import re
from collections.abc import Iterable, Mapping
from datetime import date
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeAlias, get_args

import attrs
from attrs import frozen

from loanasync._models import values
from loanasync._models.decisions import Problem
from loanasync._models.masking import ValueObject
from loanasync._models.requests import (
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    PydanticType,
    UserData,
)
from loanasync._protocol import rules
from loanasync._settings import Dialect, Limits, require
from loanasync.errors import ConfigurationError

RequestModel: TypeAlias = type[ApprovalRequest] | type[AdditionalData] | type[UserData]
Schema: TypeAlias = dict[str, Any]


def schema(
    model: RequestModel,
    *,
    dialect: Dialect = Dialect.street_number(),
    limits: Limits = Limits(),
    additional_data_needed: bool = False,
    wire_names: bool = False,
) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a request model, for the JSON interface of a shop.

    It is made from the rules of `LoanClient.check` and accepts the same values, with these exceptions: 12.0
    is an integer in JSON Schema, a text may have an unpaired surrogate, some rare spaces are spaces in
    JavaScript only, and characters that a person does not see are not ignored. Regular expressions of
    `limits` are copied unchanged, so use syntax that JavaScript has, too. ``extra`` is not part of the
    schema.

    Args:
        model: `ApprovalRequest`, `AdditionalData` or `UserData`.
        dialect: Dialect of the client. It decides which fields are required or not sent, and the wire names.
        limits: Limits of the client.
        additional_data_needed: Require the additional data.
        wire_names: Return the schema of the body that the service receives instead, with its names, such as
            ``postalCode``. Members that the schema does not name are allowed there.

    Returns:
        A new dict. The names are those of the model's fields unless `wire_names` is True.

    Raises:
        ConfigurationError: `model`, `dialect` or `limits` has another type.

    Example:
        >>> from loanasync import Limits, schema
        >>> order = schema(ApprovalRequest, limits=Limits(amount_max=200_000))
        >>> order["properties"]["amount"]["maximum"], "postal_code" in order["required"]
        (200000, True)
        >>> schema(ApprovalRequest, wire_names=True)["properties"]["postalCode"]["pattern"]
        '^[0-9]{5}$'
    """
    if model not in (ApprovalRequest, AdditionalData, UserData):
        raise ConfigurationError("model", "must be ApprovalRequest, AdditionalData or UserData")
    settings = RequestRules(dialect=dialect, limits=limits, additional_data_needed=additional_data_needed)
    make = _wire_object if wire_names else _object
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": model.__name__,
        **make(model, settings),
    }


def _object(model: RequestModel, settings: "RequestRules") -> Schema:
    """Return the schema of a JSON object with the fields of a model."""
    by_field = _rules(model, settings)
    required = [name for name, rule in by_field.items() if not isinstance(rule, values.Optional)]
    properties = {name: _of_rule(rule) for name, rule in by_field.items()}
    properties |= {name: {"type": "null"} for name in _not_sent(model, settings.dialect)}
    if model is ApprovalRequest:
        additional, needed = _object(AdditionalData, settings), settings.additional_data_needed
        properties["additional"] = additional if needed else _or_null(additional)
        required += ["additional"] if needed else []
    for each in attrs.fields(model):
        if isinstance(each.default, str):  # it is sent
            properties[each.name]["default"] = each.default
            required.remove(each.name)
    _describe(properties, model, {name: name for name in properties})
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _wire_object(model: RequestModel, settings: "RequestRules") -> Schema:
    """Return the schema of the body that is sent for a model. None is not sent, so null is not accepted."""
    dialect = settings.dialect
    names = USER_DATA_NAMES if model is UserData else dialect.approval_names
    by_field = _rules(model, settings)
    required = [names[name] for name, rule in by_field.items() if not isinstance(rule, values.Optional)]
    properties = {names[name]: _of_wire_rule(name, rule, model, dialect) for name, rule in by_field.items()}
    properties |= {names[name]: {"not": {}} for name in _not_sent(model, dialect)}
    _describe(properties, model, {name: names[name] for name in by_field})
    if model is ApprovalRequest:
        additional = _wire_object(AdditionalData, settings)
        properties |= additional["properties"]
        required += additional["required"]
    return {"type": "object", "properties": properties, "required": required}


def _rules(model: RequestModel, settings: "RequestRules") -> Mapping[str, values.Rule]:
    """Return the rules of a model. A field whose rule is not `Optional` is required."""
    limits = settings.limits
    if model is UserData:
        return rules.user_data_rules()
    if model is AdditionalData:
        by_field = rules.additional_rules()
        is_needed = settings.additional_data_needed
        return {name: _required(rule) for name, rule in by_field.items()} if is_needed else by_field
    if not settings.dialect.order_token_required:
        return rules.approval_rules(limits)
    return {**rules.approval_rules(limits), "order_token": values.Text()}


def _not_sent(model: RequestModel, dialect: Dialect) -> list[str]:
    """Return the fields that a dialect does not have."""
    options = {"iban": dialect.sends_iban, "payment_day_of_month": dialect.sends_payment_day_of_month}
    return [name for name, is_sent in options.items() if model is ApprovalRequest and not is_sent]


def _required(rule: values.Rule) -> values.Rule:
    return rule.rule if isinstance(rule, values.Optional) else rule


def _of_rule(rule: values.Rule) -> Schema:
    match rule:
        case values.Optional():
            made = _or_null(_of_rule(rule.rule))
        case values.Text():
            made = _of_text(rule)
        case values.Choice():
            made = {"type": "string", "enum": list(rule.options)}
        case values.Number():
            made = {"type": "integer", "minimum": rule.least, "maximum": rule.most}
        case values.Integer():
            made = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
        case values.Boolean():
            made = {"type": "boolean"}
        case values.Day():
            made = {"type": "string", "format": "date"}
    return made


def _of_wire_rule(name: str, rule: values.Rule, model: RequestModel, dialect: Dialect) -> Schema:
    """Return the schema of the value that the codec writes."""
    required = _required(rule)
    if name == "citizenship":
        return {"type": "string", "enum": [dialect.italian, "eu", "outside_eu"]}
    if name == "residence_start_date":
        return {"type": "string", "pattern": "^(0[1-9]|1[0-2])/[0-9]{4}$"}
    if isinstance(required, values.Number) and name == "payment_day_of_month" and model is ApprovalRequest:
        return {"type": "string", "enum": [str(day) for day in range(required.least, required.most + 1)]}
    return _of_rule(required)


def _of_text(rule: values.Text) -> Schema:
    made: Schema = {"type": "string"}
    if rule.pattern is not None:
        pattern = rule.pattern.pattern
        made["pattern"] = f"^(?:{pattern})$" if "|" in pattern else f"^{pattern}$"
        if not rule.may_be_blank and _accepts_spaces(pattern):
            made["allOf"] = [{"pattern": _NOT_BLANK}]
    elif not rule.may_be_blank:
        made["pattern"] = _NOT_BLANK
    excluded = [rule.excluded.pattern] if rule.excluded else []
    made["not"] = {"pattern": "|".join([*excluded, values.NUL])}
    return made


def _accepts_spaces(pattern: str) -> bool:
    return any(re.fullmatch(pattern, " " * length) for length in range(100))


def _or_null(inner: Schema) -> Schema:
    return {"anyOf": [inner, {"type": "null"}]}


def _describe(properties: dict[str, Schema], model: RequestModel, names: Mapping[str, str]) -> None:
    """Add the descriptions of the fields, from the docstring of the model, without the default limits."""
    text = _DEFAULT_LIMITS.sub("", inspect.cleandoc(model.__doc__ or ""))  # python -OO removes it
    for name, description in _FIELD_IN_DOCSTRING.findall(text):
        if name in names:
            properties[names[name]]["description"] = " ".join(description.replace("`", "").split())


_FIELD_IN_DOCSTRING = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DEFAULT_LIMITS = re.compile(", by default [0-9]+ to [0-9]+")
_NOT_BLANK = r"\S"


# The problem at each place in the JSON body.
Found: TypeAlias = dict[tuple[str, ...], Problem]


@frozen(kw_only=True, eq=False, repr=False)
class RequestRules(ValueObject):
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

        return core_schema.no_info_plain_validator_function(
            partial(self._validate, model),
            metadata={"model": model},
            serialization=core_schema.plain_serializer_function_ser_schema(_refuse, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, core_schema: Mapping[str, Any], _: object) -> object:
        model = core_schema["metadata"]["model"]
        return {"title": model.__name__, **_object(model, self)}

    def _validate(self, model: type[Any], value: object) -> object:
        """Return an instance of the model, or raise pydantic's error with all problems."""
        instance, found = read_model(model, value)
        if instance is not None:
            for problem in self._check(instance):
                is_nested = model is ApprovalRequest and problem.field in _ADDITIONAL
                place = ("additional", problem.field) if is_nested else (problem.field,)
                found.setdefault(place, problem)
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

    def _check(self, instance: object) -> list[Problem]:
        if isinstance(instance, UserData):
            return rules.check_user_data(instance)
        if isinstance(instance, AdditionalData):
            return rules.check_additional(instance, needed=self.additional_data_needed)
        return rules.check_approval(
            instance,
            additional_data_needed=self.additional_data_needed,
            dialect=self.dialect,
            limits=self.limits,
        )


def read_model(model: type[Any], value: object) -> tuple[Any, Found]:
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
        return read_model(AdditionalData, value)
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


def _refuse(value: object) -> NoReturn:
    name = type(value).__name__
    raise TypeError(
        f"{name} contains personal data, so it is not written as JSON; use a model of your own for responses"
    )


_MOST_UNKNOWN = 20  # unknown members that are reported: a hostile body may have thousands
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ADDITIONAL = frozenset(attrs.fields_dict(AdditionalData))


PydanticType.rules = RequestRules()

"""JSON Schema of the request models, made from the rules that `LoanClient.check` applies."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from loanasync._config import require
from loanasync._models.dialect import USER_DATA_NAMES, Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._settings import Limits
from loanasync._validation.rules import additional_rules, approval_rules, user_data_rules
from loanasync._validation.validators import (
    CONTROL,
    Boolean,
    Choice,
    Day,
    Integer,
    Number,
    Optional,
    Rule,
    Text,
)
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
    is an integer in JSON Schema, a text may have an unpaired surrogate, and some rare spaces are spaces in
    JavaScript only. Regular expressions of `limits` are copied unchanged, so use syntax that JavaScript has,
    too. ``extra`` is not part of the schema.

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
    require(Dialect, "dialect", dialect)
    require(Limits, "limits", limits)
    make = _wire_object if wire_names else _object
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": model.__name__,
        **make(model, dialect, limits, needed=additional_data_needed),
    }


def _object(model: RequestModel, dialect: Dialect, limits: Limits, *, needed: bool) -> Schema:
    """Return the schema of a JSON object with the fields of a model."""
    rules = _rules(model, dialect, limits, needed=needed)
    required = [name for name, rule in rules.items() if not isinstance(rule, Optional)]
    properties = {name: _of_rule(rule) for name, rule in rules.items()}
    properties |= {name: {"type": "null"} for name in _not_sent(model, dialect)}
    if model is ApprovalRequest:
        additional = _object(AdditionalData, dialect, limits, needed=needed)
        properties["additional"] = additional if needed else _or_null(additional)
        required += ["additional"] if needed else []
    for name, default in _defaults(model):
        properties[name]["default"] = default
        required.remove(name)
    _describe(properties, model, {name: name for name in properties})
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _wire_object(model: RequestModel, dialect: Dialect, limits: Limits, *, needed: bool) -> Schema:
    """Return the schema of the body that is sent for a model. None is not sent, so null is not accepted."""
    names = USER_DATA_NAMES if model is UserData else dialect.approval_names
    rules = _rules(model, dialect, limits, needed=needed)
    required = [names[name] for name, rule in rules.items() if not isinstance(rule, Optional)]
    properties = {names[name]: _of_wire_rule(name, rule, model, dialect) for name, rule in rules.items()}
    properties |= {names[name]: {"not": {}} for name in _not_sent(model, dialect)}
    _describe(properties, model, {name: names[name] for name in rules})
    if model is ApprovalRequest:
        additional = _wire_object(AdditionalData, dialect, limits, needed=needed)
        properties |= additional["properties"]
        required += additional["required"]
    return {"type": "object", "properties": properties, "required": required}


def _rules(model: RequestModel, dialect: Dialect, limits: Limits, *, needed: bool) -> Mapping[str, Rule]:
    """Return the rules of a model. A field whose rule is not `Optional` is required."""
    if model is UserData:
        return user_data_rules(limits)
    if model is AdditionalData:
        rules = additional_rules(limits)
        return {name: _required(rule) for name, rule in rules.items()} if needed else rules
    if not dialect.order_token_required:
        return approval_rules(limits)
    return {**approval_rules(limits), "order_token": Text(single_line=limits.single_line)}


def _not_sent(model: RequestModel, dialect: Dialect) -> list[str]:
    """Return the fields that a dialect does not have."""
    options = {"iban": dialect.sends_iban, "payment_day_of_month": dialect.sends_payment_day_of_month}
    return [name for name, is_sent in options.items() if model is ApprovalRequest and not is_sent]


def _required(rule: Rule) -> Rule:
    return rule.rule if isinstance(rule, Optional) else rule


def _defaults(model: RequestModel) -> Iterator[tuple[str, str]]:
    """Yield the fields whose default is sent."""
    for each in attrs.fields(model):
        if isinstance(each.default, str):
            yield each.name, each.default


def _of_rule(rule: Rule) -> Schema:
    match rule:
        case Optional():
            made = _or_null(_of_rule(rule.rule))
        case Text():
            made = _of_text(rule)
        case Choice():
            made = {"type": "string", "enum": list(rule.options)}
        case Number():
            made = {"type": "integer", "minimum": rule.least, "maximum": rule.most}
        case Integer():
            made = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
        case Boolean():
            made = {"type": "boolean"}
        case Day():
            made = {"type": "string", "format": "date"}
    return made


def _of_wire_rule(name: str, rule: Rule, model: RequestModel, dialect: Dialect) -> Schema:
    """Return the schema of the value that the codec writes."""
    required = _required(rule)
    if name == "citizenship":
        return {"type": "string", "enum": [dialect.italian, "eu", "outside_eu"]}
    if name == "residence_start_date":
        return {"type": "string", "pattern": "^(0[1-9]|1[0-2])/[0-9]{4}$"}
    if isinstance(required, Number) and name == "payment_day_of_month" and model is ApprovalRequest:
        return {"type": "string", "enum": [str(day) for day in range(required.least, required.most + 1)]}
    return _of_rule(required)


def _of_text(rule: Text) -> Schema:
    made: Schema = {"type": "string"}
    if rule.pattern is not None:
        made["pattern"] = f"^(?:{rule.pattern})$" if "|" in rule.pattern else f"^{rule.pattern}$"
        if not rule.may_be_blank and _accepts_spaces(rule.pattern):
            made["allOf"] = [{"pattern": _NOT_BLANK}]
    elif not rule.may_be_blank:
        made["pattern"] = _NOT_BLANK
    excluded = [*([rule.excluded] if rule.excluded else []), *([CONTROL] if rule.single_line else [])]
    if excluded:
        made["not"] = {"pattern": "|".join(excluded)}
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

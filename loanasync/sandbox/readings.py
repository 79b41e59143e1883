"""`Readings`: a switch for each point that the specification leaves open."""

from collections.abc import Iterable
from typing import Any, Literal, Self, get_args, get_type_hints

from attrs import fields, frozen

READINGS_TYPE_ERROR = "readings must be a loanasync.sandbox.Readings, such as Readings(refusal='201')"


@frozen(kw_only=True)
class Readings:
    """Choices for the points that the specification leaves open; the defaults are what the SDK assumes.

    Args:
        refusal: Status of a refusal; the body has ``approved: false`` with either (spec §3, §4.1).
        validation: Status of validation errors (spec §7).
        conflict: Whether a 409 is sent ``before`` or ``after`` the evaluation (spec §7).
        evaluates: Whether each ``customer`` or each ``order`` token is evaluated once (spec §3).
        fiscal_code: Form of the echoed fiscal code (spec §2.1). ``omocodia`` replaces the last digit by its
            letter.
        domain: Whether domain messages have the text of spec §7, another wording or another language.
        dates: Whether dates of a completion are returned as days or with a time (spec §2.2).
        creation: Shape of the response to a creation (spec §4.3).
        documents: Shape of the response to an upload of documents (spec §4.3).
        completion: Fields of the response to a completion (spec §4.2); ``partial`` is the first half.
        redirect_url: Whether an approval has a ``redirectUrl`` (spec §1.3, §2.1).
        already_evaluated: Status of "User already evaluated for approval" (spec §3, §7).

    Raises:
        ValueError: A switch has an invalid value; the message lists the valid ones.

    Example:
        >>> from loanasync.sandbox import Readings
        >>> Readings(refusal="201").refusal
        '201'
    """

    refusal: Literal["422", "201"] = "422"
    validation: Literal["400", "422"] = "400"
    conflict: Literal["before", "after"] = "before"
    evaluates: Literal["customer", "order"] = "customer"
    fiscal_code: Literal["exact", "masked", "omocodia", "missing"] = "exact"
    domain: Literal["verbatim", "reworded", "localized"] = "verbatim"
    dates: Literal["day", "time"] = "day"
    creation: Literal["object", "array", "empty"] = "object"
    documents: Literal["object", "array", "empty"] = "object"
    completion: Literal["complete", "partial", "empty"] = "complete"
    redirect_url: Literal["present", "missing", "empty"] = "present"
    already_evaluated: Literal["400", "409"] = "400"

    def __attrs_post_init__(self) -> None:
        for name, values in self.choices().items():
            if getattr(self, name) not in values:
                wanted = ", ".join(map(repr, values))
                raise ValueError(f"reading {name}={getattr(self, name)!r} must be one of {wanted}")

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """Return the valid values of each switch, the default first.

        Example:
            >>> from loanasync.sandbox import Readings
            >>> Readings.choices()["refusal"]
            ('422', '201')
        """
        hints = get_type_hints(cls)
        return {each.name: get_args(hints[each.name]) for each in fields(cls)}

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Return the readings for texts such as ``refusal=201``; other switches have their defaults.

        Args:
            texts: Strings of the form ``switch=value``, as on the command line.

        Raises:
            ValueError: A switch or value is unknown; the message names it.

        Example:
            >>> from loanasync.sandbox import Readings
            >>> Readings.parse(["refusal=201", "dates=time"]).dates
            'time'
        """
        choices, found = cls.choices(), dict[str, Any]()
        for text in texts:
            name, equals, value = text.partition("=")
            if name not in choices:
                raise ValueError(f"unknown reading {name!r}: choose one of {', '.join(choices)}")
            if not equals:
                raise ValueError(f"reading {name} needs a value, for example {name}={choices[name][0]}")
            found[name] = value
        return cls(**found)

    def texts(self) -> list[str]:
        """Return the switches with a value other than the default, in the form that `parse` takes.

        Example:
            >>> from loanasync.sandbox import Readings
            >>> Readings(refusal="201").texts()
            ['refusal=201']
        """
        values = {name: getattr(self, name) for name in self.choices()}
        return [f"{name}={value}" for name, value in values.items() if value != self.choices()[name][0]]

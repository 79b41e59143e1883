"""How personal values are shown: not at all. Reading an attribute is plain, printing its object is not."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

__all__ = ["JSON", "NO_MEMBERS", "Body", "mask", "masked_unless", "read_only"]

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


def mask(value: object) -> str:
    """Stand in for a personal value in a ``repr``; None is no secret.

    Example:
        >>> mask("anna@example.com"), mask(None)
        ('***', 'None')
    """
    return "None" if value is None else "***"


def masked_unless(kind: type) -> Callable[[object], str]:
    """Stand in for whatever is not of a kind that masks itself."""
    return lambda value: repr(value) if isinstance(value, kind) else mask(value)


class Body(Mapping[str, JSON]):
    """A JSON object as it came or as it is to be sent: read-only, comparable, picklable, masked.

    Example:
        >>> body = Body({"email": "anna@example.com"})
        >>> body["email"], body
        ('anna@example.com', <Body of 1 member>)
    """

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, JSON] | None = None) -> None:
        self._members = dict(members or {})

    def __getitem__(self, name: str) -> JSON:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"<Body of {len(self)} member{'' if len(self) == 1 else 's'}>"


def read_only(value: object) -> object:
    """Copy a mapping into a `Body`; anything else stays as it is, for the rules to name."""
    if isinstance(value, Body):
        return value
    return Body(value) if isinstance(value, Mapping) else value


NO_MEMBERS = Body()

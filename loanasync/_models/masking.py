"""Masking of personal data in `repr()` and logs. Attributes return the real value."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar, overload

import attrs

Value = TypeVar("Value")
JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


def mask(value: object) -> str:
    """Return ``***`` for a personal value, and ``None`` for None. Used as the ``repr`` of attrs fields.

    Example:
        >>> mask("anna@example.com"), mask(None)
        ('***', 'None')
    """
    return "None" if value is None else "***"


def masked_unless(kind: type) -> Callable[[object], str]:
    """Return a ``repr`` for attrs fields that masks all values except those of a type that masks itself."""
    return lambda value: repr(value) if isinstance(value, kind) else mask(value)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("read-only; change a copy")


class ReadOnlyDict(dict[str, Value]):
    """A dict that cannot be changed, and that JSON encoders accept.

    Example:
        >>> ReadOnlyDict(least=3)["least"]
        3
    """

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type["ReadOnlyDict[Value]"], tuple[dict[str, Value]]]:
        return ReadOnlyDict, (dict(self),)


class ReadOnlyList(list[Value]):
    """A list that cannot be changed, and that JSON encoders accept."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[type["ReadOnlyList[Value]"], tuple[list[Value]]]:
        return ReadOnlyList, (list(self),)


def _copied(value: JSON, levels: int) -> JSON:
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {name: _copied(each, levels - 1) for name, each in value.items()}
    return [_copied(each, levels - 1) for each in value]


def frozen_json(value: JSON) -> JSON:
    """Return a JSON value whose objects and arrays are read-only copies."""
    if isinstance(value, dict):
        return ReadOnlyDict({name: frozen_json(each) for name, each in value.items()})
    return ReadOnlyList(map(frozen_json, value)) if isinstance(value, list) else value


class ValueObject:
    """Base class of attrs classes that share these methods, as attrs defines them.

    attrs compiles its methods for each class. These three took an eighth of the time to load the package.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [
            f"{each.name}={(each.repr if callable(each.repr) else repr)(getattr(self, each.name))}"
            for each in _fields_of(self)
            if each.repr
        ]
        return f"{type(self).__qualname__.rpartition('>.')[2]}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in _fields_of(self) if each.eq]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        hashed = [each.name for each in _fields_of(self) if (each.eq if each.hash is None else each.hash)]
        return hash((type(self), *(getattr(self, name) for name in hashed)))


def _fields_of(value: ValueObject) -> "tuple[attrs.Attribute[Any], ...]":
    fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(type(value))  # type: ignore[arg-type]  # of attrs
    return fields


class MaskedPairs(ValueObject):
    """Base class of attrs classes whose personal data a web framework must not send by accident.

    ``dict(value)`` returns the names and values of the fields, masked as in `repr()`. FastAPI's encoder calls
    ``dict`` for unknown types. If that fails, it calls `vars`, which is not masked. pydantic raises TypeError
    if such a class is the type of a response or a field.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[str, object]]:
        for each in _fields_of(self):
            value = getattr(self, each.name)
            yield each.name, each.repr(value) if callable(each.repr) and value is not None else value

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> NoReturn:
        raise TypeError(
            f"{cls.__name__} contains personal data, so it cannot be a response type or the type of a "
            "pydantic field; use a model of your own with the fields of the page, such as redirect_url"
        )


class Body(Mapping[str, JSON]):
    """A JSON object, read-only at every depth, whose `repr` shows no content. It can be compared and pickled.

    It is not a dict, because programs that log JSON would write its content: ``dict(body)`` returns that.

    Example:
        >>> body = Body({"email": "anna@example.com"})
        >>> body["email"], body
        ('anna@example.com', <Body of 1 member>)
        >>> dict(body)
        {'email': 'anna@example.com'}
    """

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[str, JSON] | None = None) -> None:
        self._members = dict(members or {})

    def __getitem__(self, name: str) -> JSON:
        return frozen_json(self._members[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        return self._members == (other._members if isinstance(other, Body) else other)

    __hash__ = None  # type: ignore[assignment]  # its values may be lists

    def plain(self, levels: int) -> dict[str, JSON]:
        """Return a copy that can be changed, with None in place of objects and arrays below these levels."""
        return {name: _copied(value, levels - 1) for name, value in self._members.items()}

    def __reduce__(self) -> tuple[Callable[[object], object], tuple[object]]:
        return read_only, (self._members,)

    def __repr__(self) -> str:
        return f"<Body of {len(self)} member{'' if len(self) == 1 else 's'}>"


# JSON encoders name the class of a value that they refuse, so this message says what to call instead.
Body.__name__ = "Body (masked; dict(...) returns its content)"


class Items(Sequence[JSON]):
    """A JSON array, read-only at every depth, whose `repr` shows no content. It can be compared and pickled.

    Example:
        >>> items = Items(["anna@example.com", 5])
        >>> items[0], items == ["anna@example.com", 5], items
        ('anna@example.com', True, <Items of 2 values>)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[JSON] = ()) -> None:
        self._values = list(values)

    @overload
    def __getitem__(self, index: int) -> JSON: ...

    @overload
    def __getitem__(self, index: slice) -> "Items": ...

    def __getitem__(self, index: int | slice) -> "JSON | Items":
        return Items(self._values[index]) if isinstance(index, slice) else frozen_json(self._values[index])

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Items):
            return self._values == other._values
        return self._values == list(other) if isinstance(other, list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # its values may be lists

    def __repr__(self) -> str:
        return f"<Items of {len(self)} value{'' if len(self) == 1 else 's'}>"


Items.__name__ = "Items (masked; list(...) returns its content)"


AnyJSON: TypeAlias = Mapping[str, JSON] | Sequence[JSON] | bool | int | float | str | None


def masked(value: JSON) -> AnyJSON:
    """Return a JSON object as a `Body` and an array as `Items`, whose `repr` shows no content."""
    if isinstance(value, dict):
        return Body(value)
    return Items(value) if isinstance(value, list) else value


def read_only(value: object) -> object:
    """Copy a mapping into a `Body`. Return other values unchanged; the validation rules report them."""
    if isinstance(value, Body):
        return value
    if isinstance(value, Mapping):
        return Body(value) if value else EMPTY_BODY
    return value


EMPTY_BODY = Body()
"""The empty `Body` of all models, unpickled ones too: ``is EMPTY_BODY`` means that it has no members."""

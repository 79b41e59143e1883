"""Construction of `Readings` from arguments and from texts."""

import pytest

from loanasync.sandbox import Readings


@pytest.mark.parametrize("name", Readings.choices())
def test_readings_name_the_valid_values_of_a_switch(name: str) -> None:
    values = Readings.choices()[name]
    with pytest.raises(ValueError, match=f"reading {name}='other' must be one of '{values[0]}'"):
        Readings(**{name: "other"})  # type: ignore[arg-type]  # an invalid value on purpose


def test_readings_parse_reverses_texts() -> None:
    last = Readings(**{name: values[-1] for name, values in Readings.choices().items()})  # type: ignore[arg-type]  # values are strings
    assert len(last.texts()) == len(Readings.choices()) == 12
    assert Readings.parse(last.texts()) == last
    assert Readings().texts() == []

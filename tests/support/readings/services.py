"""The services to run: all combinations of two values of each switch, and all pairs of all values."""

from itertools import combinations, product
from typing import Any

from loanasync.sandbox import Readings

__all__ = ["exhaustive", "name_of", "pairwise"]

Pair = tuple[int, str, int, str]


def exhaustive() -> list[Readings]:
    """Return 4,096 services: each of the twelve switches at its default and at one other value."""
    choices = Readings.choices()
    values = product(*(each[:2] for each in choices.values()))
    return [_readings(choices, each) for each in values]


def pairwise() -> list[Readings]:
    """Return a few services that contain all pairs of values of any two switches."""
    choices = Readings.choices()
    values = list(choices.values())
    missing = {
        (first, one, second, other)
        for (first, ones), (second, others) in combinations(enumerate(values), 2)
        for one in ones
        for other in others
    }
    found = []
    while missing:
        row = _row(values, min(missing), missing)
        missing -= _pairs(row)
        found.append(_readings(choices, row))
    return found


def _row(values: list[tuple[str, ...]], seed: Pair, missing: set[Pair]) -> tuple[str, ...]:
    """Return a row with a missing pair and as many other missing pairs as possible."""
    chosen = {seed[0]: seed[1], seed[2]: seed[3]}
    for position, options in enumerate(values):
        if position not in chosen:
            chosen[position] = max(options, key=lambda each: _gain(chosen | {position: each}, missing))
    return tuple(chosen[position] for position in range(len(values)))


def _gain(chosen: dict[int, str], missing: set[Pair]) -> int:
    return sum(
        (first, chosen[first], second, chosen[second]) in missing
        for first, second in combinations(sorted(chosen), 2)
    )


def _pairs(row: tuple[str, ...]) -> set[Pair]:
    return {(first, one, second, other) for (first, one), (second, other) in combinations(enumerate(row), 2)}


def _readings(choices: dict[str, tuple[str, ...]], values: tuple[str, ...]) -> Readings:
    switches: dict[str, Any] = dict(zip(choices, values, strict=True))
    return Readings(**switches)


def name_of(readings: Readings) -> str:
    """Return the switches that are not at their default."""
    return " ".join(readings.texts()) or "defaults"

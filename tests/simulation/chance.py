"""Choices that depend only on a seed and on the name of the choice.

A choice does not depend on the choices made before it. So a shrunk schedule makes the same choices as the
whole one, and a new action changes no other.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """The choices of one seed."""

    def __init__(self, seed: int) -> None:
        self._hash = blake2b(str(seed).encode(), digest_size=8)

    def bits(self, *name: object) -> int:
        """Return a whole number below 2 ** 64."""
        digest = self._hash.copy()
        digest.update(" ".join(map(str, name)).encode())
        return int.from_bytes(digest.digest(), "big")

    def is_true(self, probability: float, *name: object) -> bool:
        """Return True with a probability."""
        return self.bits(*name) < probability * 2**64

    def pick(self, options: Sequence[T], *name: object) -> T:
        """Return one of the options, each with the same probability."""
        return options[self.bits(*name) % len(options)]

    def weighted(self, weights: Mapping[T, int], *name: object) -> T:
        """Return one of the keys; its value is its relative probability."""
        number = self.bits(*name) % sum(weights.values())
        for option, weight in weights.items():
            number -= weight
            if number < 0:
                return option
        raise AssertionError("weights must be positive")

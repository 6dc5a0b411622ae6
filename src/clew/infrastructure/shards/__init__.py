"""Shards: several PostgreSQL stores behind one directory, which records the shard of each tenant.

This package holds the values and the directory; `clew.service.shards` is what an operator uses. The rest of Clew knows
the URL scheme ``postgresql+shards`` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from clew.domain.errors import InvalidContentError, InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DIGITS = re.compile(r"[0-9]{1,19}")
_HIGHEST = 2**63 - 1


class Shard(NamedTuple):
    """A server of a directory: an ordinary store that holds some of the tenants.

    ``address`` is ``host:port/database``, or ``service=name``. ``takes`` says whether the shard gets new tenants, and
    ``tenants`` is the number of tenants that it has.
    """

    name: str
    address: str
    takes: bool
    tenants: int


def check_shard_name(name: str) -> None:
    """Raise InvalidNameError unless the name is 1 to 63 letters, digits, dots, dashes and underscores."""
    if not _NAME.fullmatch(name):
        message = (
            f"{name[:64]!r} is not a valid shard name. Use 1 to 63 of A-Z a-z 0-9 . _ - and start with a letter or a "
            "digit."
        )
        raise InvalidNameError(message)


class Positions(Mapping[str, int]):
    """A position in each shard, by the shard's name: how far a reader of all shards has read.

    A shard without an entry is at 0, before its first event. The text form is ``east=1048576,west=42``, sorted by name;
    ``parse`` reads it. ``a <= b`` means that ``a`` is not ahead of ``b`` in any shard; the order is partial. Raises
    InvalidNameError or InvalidContentError.
    """

    __slots__ = ("_by_name",)

    def __init__(self, by_name: Mapping[str, int] | None = None) -> None:
        positions = dict(sorted((by_name or {}).items()))
        for name, position in positions.items():
            check_shard_name(name)
            if type(position) is not int or not 0 <= position <= _HIGHEST:
                raise InvalidContentError(f"positions: the value of shard {name} is not a position. Use 0 or more.")
        self._by_name = {name: position for name, position in positions.items() if position}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form."""
        positions: dict[str, int] = {}
        for part in text.split(",") if text else ():
            name, equals, digits = part.partition("=")
            if not equals or not _DIGITS.fullmatch(digits) or name in positions:
                raise InvalidContentError("positions: the text is invalid. Write it like east=1048576,west=42.")
            positions[name] = int(digits)
        return cls(positions)

    def at(self, shard: str, position: int) -> Self:
        """A copy with another position in one shard."""
        return type(self)({**self._by_name, shard: position})

    def of(self, shard: str) -> int:
        """The position in a shard, 0 if it has no entry."""
        return self._by_name.get(shard, 0)

    def __le__(self, other: Positions) -> bool:
        return all(position <= other.of(name) for name, position in self._by_name.items())

    def __ge__(self, other: Positions) -> bool:
        return other <= self

    def __getitem__(self, shard: str) -> int:
        return self._by_name[shard]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __hash__(self) -> int:
        return hash(tuple(self._by_name.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}={position}" for name, position in self._by_name.items())

    def __repr__(self) -> str:
        return f"Positions.parse({str(self)!r})"

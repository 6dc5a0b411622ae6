"""Several stores that are one to the tenants in them: what a shard is, and where a reader of all of them is.

ClewError
└── StoreError
    └── ShardError  what was asked of the shards of a directory cannot be done
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from clew.domain.errors import InvalidContentError, InvalidNameError, StoreError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HIGHEST = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}")


class ShardError(StoreError):
    """A shard that is not there, is there already, or takes no tenants."""


class Shard(NamedTuple):
    """A server of a directory: an ordinary store in which some of the tenants are.

    ``address`` is ``host:port/database``, or ``service=name``; ``takes`` says whether it is given new tenants, and
    ``tenants`` how many it has.
    """

    name: str
    address: str
    takes: bool
    tenants: int


def check_shard_name(name: str) -> None:
    """Raise InvalidNameError unless the name is 1 to 63 letters, digits, dots, dashes and underscores."""
    if not _NAME.fullmatch(name):
        message = (
            f"{name[:64]!r} is no name of a shard. It has 1 to 63 of A-Z a-z 0-9 . _ - and begins with none of . _ -"
        )
        raise InvalidNameError(message)


class Positions(Mapping[str, int]):
    """A position in each shard, by the shard's name: how far a reader of all of them has come.

    A shard that is not named stands at 0, before its first event. As text it is ``east=1048576,west=42``, in the order
    of the names, and ``parse`` reads that. ``a <= b`` says that ``a`` is nowhere further than ``b``; of two positions
    neither may be. Raises InvalidNameError or InvalidContentError.
    """

    __slots__ = ("_by_name",)

    def __init__(self, by_name: Mapping[str, int] | None = None) -> None:
        found = dict(sorted((by_name or {}).items()))
        for name, position in found.items():
            check_shard_name(name)
            if type(position) is not int or not 0 <= position <= _HIGHEST:
                raise InvalidContentError(f"positions: what is given of shard {name} is no position. Give 0 or more.")
        self._by_name = {name: position for name, position in found.items() if position}

    @classmethod
    def parse(cls, text: str) -> Self:
        """The positions that a text says."""
        found: dict[str, int] = {}
        for part in text.split(",") if text else ():
            name, equals, digits = part.partition("=")
            if not equals or not _DIGITS.fullmatch(digits) or name in found:
                raise InvalidContentError("positions: that is no text of theirs. It is as in east=1048576,west=42.")
            found[name] = int(digits)
        return cls(found)

    def at(self, shard: str, position: int) -> Self:
        """The same with another position in one shard."""
        return type(self)({**self._by_name, shard: position})

    def of(self, shard: str) -> int:
        """The position in a shard, 0 in one that is not named."""
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

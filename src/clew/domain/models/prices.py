"""Prices of models: what the tokens of a call cost, in US dollars, or that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from operator import not_
from typing import Any, Protocol, TypeAlias

from pydantic import Field, ValidationError

from clew.domain.errors import InvalidContentError
from clew.domain.messages import Value, explain
from clew.domain.models.client import TokenUsage

TRILLION = 10**12

BROKEN_OFF = "ModelStreamError"
"""The error of a call whose answer broke off: the service may have counted it, so its cost is not known."""

_SMALLEST = Decimal(1).scaleb(-12)
"""Costs are rounded to this part of a dollar: so a list price with six digits after the point is exact."""

_LARGEST = Decimal(10**6)
"""No single call costs as much. So the sums of read models stay below 2**63 trillionths."""


class Cost(Value):
    """What model calls cost: an amount in US dollars as a decimal number, and the name of the price list.

    ``prices`` is empty for a sum.
    """

    usd: str = Field(pattern=r"^\d{1,6}(\.\d{1,12})?$")
    prices: str = Field(default="", exclude_if=not_)

    @property
    def amount(self) -> Decimal:
        """The amount in US dollars."""
        return Decimal(self.usd)


class Prices(Protocol):
    """A price list. ``name`` says which one it is, and of when: it is recorded with each cost."""

    @property
    def name(self) -> str:
        """The name and the version."""
        ...

    def cost(self, usage: TokenUsage, *, model: str, provider: str | None, at: datetime) -> Decimal | None:
        """What a call cost at a time, in US dollars; None if the list has no price for it. Pure."""
        ...


def cost_of(prices: Prices, usage: TokenUsage, *, model: str, provider: str | None, at: datetime) -> Cost | None:
    """The cost of a call by a price list, None if it has no price. Raises ValueError for an impossible amount."""
    amount = prices.cost(usage, model=model, provider=provider, at=at)
    if amount is None:
        return None
    if not isinstance(amount, Decimal) or not 0 <= amount < _LARGEST:
        raise ValueError(f"{prices.name}: {amount!r} is not a cost. Return a Decimal from 0 to {_LARGEST}, or None.")
    return recorded(amount, prices.name)


def recorded(amount: Decimal, prices: str = "") -> Cost | None:
    """An amount as events have it; None if it is too large."""
    if amount >= _LARGEST:
        return None
    digits = f"{amount.quantize(_SMALLEST, ROUND_HALF_EVEN):f}"
    return Cost(usd=digits.rstrip("0").rstrip("."), prices=prices)


def plus(total: Decimal | None, cost: Cost | None) -> Decimal | None:
    """A total and one more cost. What is not known of a part is not known of the whole."""
    return None if total is None or cost is None else total + cost.amount


def trillionths(cost: Any) -> int | None:
    """The amount of a recorded cost in trillionths of a dollar, from its JSON; None if it has none."""
    try:
        return int(Cost.model_validate(cost).amount * TRILLION)
    except ValueError:
        return None


Dollars: TypeAlias = Decimal | str | int
"""An amount of US dollars. A float is refused: it is not exact."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens, from the day ``since`` (UTC) on.

    ``cached`` is for input that was read from the service's cache, ``cache_write`` for what was written there. These
    and audio cost what other input or output costs if they have no price. ``web_searches`` is for a thousand searches;
    without it, a call with searches has no price. Raises InvalidContentError.
    """

    input: Dollars
    output: Dollars
    cached: Dollars | None = None
    cache_write: Dollars | None = None
    input_audio: Dollars | None = None
    output_audio: Dollars | None = None
    web_searches: Dollars | None = None
    since: date = date.min

    def __post_init__(self) -> None:
        for name in _AMOUNTS:
            amount = getattr(self, name)
            if amount is not None or name in {"input", "output"}:
                object.__setattr__(self, name, _decimal(amount, name))
        if not isinstance(self.since, date) or isinstance(self.since, datetime):
            raise InvalidContentError(f"Price: since={self.since!r} is not a day. Give a datetime.date.")

    def of(self, usage: TokenUsage) -> Decimal | None:
        """What the tokens cost; None if the parts are more than the whole, or a search has no price."""
        counts = {"cached": usage.cached_tokens, **{name: usage.parts.get(name, 0) for name in _PARTS}}
        priced = {name: count for name, count in counts.items() if getattr(self, name) is not None}
        plain_input = usage.input_tokens - sum(priced.get(name, 0) for name in ("cached", "cache_write", "input_audio"))
        plain_output = usage.output_tokens - priced.get("output_audio", 0)
        searches = usage.parts.get("web_searches", 0)
        if plain_input < 0 or plain_output < 0 or (searches and self.web_searches is None):
            return None
        amounts = [("input", plain_input), ("output", plain_output), *priced.items(), ("web_searches", 1000 * searches)]
        return sum((count * Decimal(getattr(self, name) or 0) for name, count in amounts), Decimal(0)) / 1_000_000


_PARTS = ("cache_write", "input_audio", "output_audio")
_AMOUNTS = ("input", "output", "cached", *_PARTS, "web_searches")


def _decimal(amount: object, name: str) -> Decimal:
    try:
        value = Decimal(amount) if isinstance(amount, Decimal | str | int) and amount is not True else None
    except InvalidOperation:
        value = None
    if value is None or not value.is_finite() or value < 0:
        raise InvalidContentError(
            f"Price: {name}={amount!r} is not an amount. Give a Decimal, an int or a text, 0 or more."
        )
    return value


class _PriceDocument(Value):
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None
    input_audio: Decimal | None = None
    output_audio: Decimal | None = None
    web_searches: Decimal | None = None
    since: date = date.min


class _Document(Value):
    prices: dict[str, _PriceDocument | tuple[_PriceDocument, ...]]
    name: str = "own prices"


class PriceTable:
    """A price list of one's own: a price for each model, or several that replace each other from a day on.

    A model is named as it answers or is asked for, alone or after its service and a slash: ``openai/gpt-5``. ``name``
    is recorded with each cost. A model that the table lacks has the price of ``otherwise``, if that is given. Raises
    InvalidContentError.
    """

    def __init__(
        self,
        prices: Mapping[str, Price | Sequence[Price]],
        *,
        name: str = "own prices",
        otherwise: Prices | None = None,
    ) -> None:
        self.name = name if otherwise is None else f"{name}, else {otherwise.name}"
        self._prices: dict[str, list[Price]] = {}
        self._otherwise = otherwise
        for model, given in prices.items():
            several = [given] if isinstance(given, Price) else list(given)
            if not several or not all(isinstance(each, Price) for each in several):
                raise InvalidContentError(f"PriceTable: the price of {model!r} is not a Price, nor a list of them.")
            self._prices[model] = sorted(several, key=lambda price: price.since)

    @classmethod
    def from_json(cls, document: object) -> PriceTable:
        """The table in a JSON document: ``{"name": …, "prices": {model: {"input": "1.25", "output": "10"}}}``.

        A model has one price or a list; ``since`` is a day, such as ``2026-01-31``. Raises InvalidContentError.
        """
        try:
            given = _Document.model_validate(document)
        except ValidationError as error:
            raise InvalidContentError(f"The prices are not a price table: {explain('PriceTable', error)}") from None
        prices = {
            model: [Price(**each.__dict__) for each in (several if isinstance(several, tuple) else (several,))]
            for model, several in given.prices.items()
        }
        return cls(prices, name=given.name)

    def cost(self, usage: TokenUsage, *, model: str, provider: str | None, at: datetime) -> Decimal | None:
        """What a call cost by the price of that day."""
        day = at.astimezone(UTC).date()
        known = self._prices.get(f"{provider}/{model}") or self._prices.get(model)
        if known is None:
            return (
                None if self._otherwise is None else self._otherwise.cost(usage, model=model, provider=provider, at=at)
            )
        price = next((each for each in reversed(known) if each.since <= day), None)
        return None if price is None else price.of(usage)

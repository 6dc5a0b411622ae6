"""Price lists: one's own, and the list prices of genai-prices, each at the time of the call."""

from __future__ import annotations

import socket
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import GenaiPrices, Price, PriceTable
from clew.domain.errors import InvalidContentError
from clew.domain.models.client import TokenUsage
from clew.domain.models.prices import Cost, cost_of, recorded, trillionths

NOW = datetime(2026, 11, 1, tzinfo=UTC)
MILLION = 1_000_000


def usage(read: int = 0, written: int = 0, cached: int = 0, tier: str | None = None, **parts: int) -> TokenUsage:
    return TokenUsage(input_tokens=read, output_tokens=written, cached_tokens=cached, parts=parts, tier=tier)


OWN = Price(
    input=2, output="8", cached="0.5", cache_write="2.5", input_audio=40, output_audio=80, web_searches=10
)  # fmt: skip


@pytest.mark.parametrize(
    ("used", "price", "dollars"),
    [
        (usage(MILLION, 0), OWN, "2"),
        (usage(0, MILLION), OWN, "8"),
        (usage(MILLION, 0, cached=MILLION), OWN, "0.5"),
        (usage(MILLION, 0, cache_write=MILLION), OWN, "2.5"),
        (usage(MILLION, MILLION, input_audio=MILLION, output_audio=MILLION), OWN, "120"),
        (usage(MILLION, MILLION, input_image=MILLION), OWN, "10"),
        (usage(0, 0, web_searches=1000), OWN, "10"),
        (usage(MILLION, MILLION, cached=MILLION, input_audio=9), Price(input=2, output=8), "10"),
        (usage(), OWN, "0"),
        (usage(1, 0, web_searches=1), Price(input=2, output=8), None),
        (usage(1, 0, cached=2), OWN, None),
        (usage(0, 1, output_audio=2), OWN, None),
    ],
)
def test_a_price_is_for_a_million_tokens_of_each_kind(used: TokenUsage, price: Price, dollars: str | None) -> None:
    assert price.of(used) == (None if dollars is None else Decimal(dollars))


def test_a_table_has_the_price_of_the_day_of_the_service_and_of_another_list() -> None:
    table = PriceTable(
        {
            "m": [Price(input=1, output=1), Price(input=9, output=9, since=date(2026, 6, 1))],
            "host/m": Price(input=5, output=5),
            "new": Price(input=1, output=1, since=date(2027, 1, 1)),
        },
        name="own",
        otherwise=PriceTable({"x": Price(input=7, output=7)}, name="other"),
    )
    used = usage(MILLION)

    def cost(model: str, provider: str | None = None, at: datetime = NOW) -> Decimal | None:
        return table.cost(used, model=model, provider=provider, at=at)

    assert cost("m") == 9
    assert cost("m", at=datetime(2026, 5, 31, 23, 59, tzinfo=UTC)) == 1
    assert cost("m", "host") == 5
    assert cost("new") is None
    assert cost("x") == 7
    assert cost("y") is None
    assert table.name == "own, else other"
    found = cost_of(table, used, model="m", provider=None, at=NOW)
    assert found == Cost(usd="9", prices="own, else other")


@pytest.mark.parametrize("amount", [1.5, True, None, "-1", "nan", "two"])
def test_refuses_an_amount_that_is_not_exact(amount: Any) -> None:
    with pytest.raises(InvalidContentError, match="input"):
        Price(input=amount, output=1)


@pytest.mark.parametrize(
    "document",
    [
        {"prices": {"m": {"input": 1}}},
        {"prices": {"m": {"input": "x", "output": 1}}},
        {"m": {}},
        [],
        {"prices": {"m": []}},
    ],
)
def test_refuses_a_document_that_is_not_a_table(document: Any) -> None:
    with pytest.raises(InvalidContentError):
        PriceTable.from_json(document)


def test_reads_a_table_from_json() -> None:
    document = {
        "name": "2026",
        "prices": {
            "m": [{"input": "1.5", "output": 2}, {"input": "3", "output": "4", "since": "2026-06-01"}],
            "n": {"input": "1", "output": "1"},
        },
    }
    table = PriceTable.from_json(document)
    assert (table.name, table.cost(usage(MILLION), model="m", provider=None, at=NOW)) == ("2026", Decimal(3))
    assert table.cost(usage(MILLION), model="n", provider=None, at=NOW) == 1


@given(st.decimals(min_value=0, max_value=999_999, places=12))
def test_an_amount_is_recorded_exactly(amount: Decimal) -> None:
    cost = recorded(amount, "list")
    assert cost is not None
    assert (cost.amount, trillionths(cost.model_dump())) == (amount, int(amount * 10**12))


@pytest.mark.parametrize("forged", [None, {}, {"usd": "1e3"}, {"usd": "-1"}, {"usd": "9999999"}, {"usd": 5}, "1", 7])
def test_a_forged_cost_is_no_cost(forged: Any) -> None:
    assert trillionths(forged) is None


@pytest.mark.parametrize(
    ("model", "provider", "at", "used", "dollars"),
    [
        ("o3", "api.openai.com", datetime(2025, 6, 1, tzinfo=UTC), usage(MILLION, MILLION), "50"),
        ("o3", "api.openai.com", datetime(2026, 1, 1, tzinfo=UTC), usage(MILLION, MILLION), "10"),
        ("o3", "api.openai.com", NOW, usage(MILLION, MILLION, tier="flex"), "5"),
        ("gpt-4o", "my.openai.azure.com", NOW, usage(MILLION), "2.5"),
        ("claude-sonnet-4-20250514", "anthropic", NOW, usage(100_000), "0.3"),
        ("claude-sonnet-4-20250514", "anthropic", NOW, usage(100_000, cached=100_000), "0.03"),
        ("claude-sonnet-4-20250514", "anthropic", NOW, usage(100_000, cache_write=100_000), "0.375"),
        (
            "claude-sonnet-4-20250514",
            "anthropic",
            NOW,
            usage(100_000, cache_write=100_000, cache_write_1h=100_000),
            "0.6",
        ),
        ("claude-sonnet-4-20250514", "anthropic", NOW, usage(0, web_searches=1000), "10"),
        ("anthropic.claude-sonnet-4-20250514-v1:0", "bedrock", NOW, usage(100_000), "0.3"),
        ("gemini-2.5-flash", "gemini", NOW, usage(MILLION), "0.3"),
        ("gemini-2.5-flash", "gemini", NOW, usage(MILLION, input_audio=MILLION), "1"),
        ("gpt-5", "127.0.0.1", NOW, usage(1), None),
        ("no-such-model", "api.openai.com", NOW, usage(1), None),
        ("gpt-5", None, NOW, usage(1), None),
        ("o3", "api.openai.com", NOW, usage(1, cached=2), None),
    ],
)
def test_list_prices_are_those_of_the_time_of_the_call(  # the arguments of a case
    model: str,
    provider: str | None,
    at: datetime,
    used: TokenUsage,
    dollars: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", None)  # no list is fetched
    prices = GenaiPrices(required=True)
    assert prices.name.startswith("genai-prices ")
    assert prices.cost(used, model=model, provider=provider, at=at) == (None if dollars is None else Decimal(dollars))


def test_a_sum_keeps_the_tier_of_its_calls() -> None:
    flex = usage(1, 2, tier="flex")
    assert (TokenUsage() + flex + flex).tier == "flex"
    assert (TokenUsage() + flex + usage(1, 2)).tier is None

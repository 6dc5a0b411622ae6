from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import jsons

from clew.domain.credential_detection import check_no_credentials
from clew.domain.errors import CredentialError, HistoryStoreSharedError
from clew.domain.json_values import Json

HIDDEN = "This-1s-a-secret-value-of-a-test"

KEYS = [
    "password",
    "PASSWORD",
    "redis_password",
    "dbPassword",
    "passwd",
    "secret",
    "client_secret",
    "clientSecret",
    "token",
    "access_token",
    "refreshToken",
    "api_key",
    "apiKey",
    "API_KEY",
    "apikey",
    "x-api-key",
    "AWS_SECRET_ACCESS_KEY",
    "private key",
    "password2",
    "API_KEY_2",
    "Authorization",
    "credentials",
]

LOOKS = [
    f"redis://:{HIDDEN}@cache.example:6379/0",
    f"postgresql://clew:{HIDDEN}@db.example/clew",
    f"see https://user:{HIDDEN}@example.org/path for more",
    f"unix:///run/redis.sock?db=0&password={HIDDEN}",
    f"https://example.org/?api_key={HIDDEN}",
    f"host=db.example password={HIDDEN} user=clew",
    f"Server=db;Password={HIDDEN};",
    f"Bearer {HIDDEN}",
    f"sk-{HIDDEN}",
    f"sk-proj-{HIDDEN}",
    "ghp_" + "a1" * 18,
    "AKIA" + "A1" * 8,
    "xoxb-1234567890-abc",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3In0.c2lnbmF0dXJl",
]

HARMLESS: list[Json] = [
    None,
    {"key": "clew:default:thread-1"},
    {"keys": ["a", "b"], "primary_key": "id", "monkey": "see"},
    {"tokens": 512, "max_tokens": 4096, "token": None, "password": "", "secret": False},
    {"secretary": "Alice", "tokenizer": "o200k", "passwordless": "yes", "author": "Bob", "api": "v2"},
    "redis://cache.example:6379/0",
    "https://example.org/a:b@c",
    "postgresql://clew@db.example/clew",
    "https://example.org/?page=2&sort=password",
    "Mail alice@example.org: at 10:30 @ home",
    "The password is what we talked about; the token, too.",
    "risk-assessment-of-the-whole-project, task-1234567890123456, sk-learn",
    "Basic requirements; Bearer certificates; basic functionality 12345",
]


@pytest.mark.parametrize("key", KEYS)
def test_refuses_text_under_a_key_that_names_a_credential(key: str) -> None:
    with pytest.raises(CredentialError) as refused:
        check_no_credentials({"a": [{"b": 1, key: HIDDEN}]}, "state")
    assert refused.value.place == f"state.a[0].{key}"
    assert key in str(refused.value)
    assert HIDDEN not in str(refused.value)
    with pytest.raises(CredentialError):
        check_no_credentials({key: {"of": [HIDDEN]}}, "state")


@pytest.mark.parametrize("text", LOOKS)
def test_refuses_text_that_looks_like_a_credential_anywhere(text: str) -> None:
    hidden: list[tuple[Json, str]] = [
        (text, "state"),
        ({"at": text}, "state.at"),
        ([[text]], "state[0][0]"),
        ({text: 1}, "a key in state"),
    ]
    for value, place in hidden:
        with pytest.raises(CredentialError) as refused:
            check_no_credentials(value, "state")
        assert refused.value.place == place
        assert str(refused.value).startswith(f"{place}: it looks like ")
        assert text not in str(refused.value)
        assert HIDDEN not in str(refused.value)


@pytest.mark.parametrize("value", HARMLESS)
def test_accepts_values_that_only_resemble_credentials(value: Json) -> None:
    check_no_credentials(value, "state")


@given(jsons, st.sampled_from(KEYS), st.sampled_from(LOOKS))
def test_finds_a_credential_next_to_any_other_values(value: Json, key: str, text: str) -> None:
    for hidden in ({"a": value, key: "x"}, [value, text]):
        with pytest.raises(CredentialError):
            check_no_credentials(hidden, "state")


@pytest.mark.parametrize(
    "piece", ["a", "a:", "://", "a://b:", "://?&", "eyJa", "Bearer ", "sk-a ", "password ", "-----BEGIN "]
)
def test_long_text_is_checked_in_linear_time(piece: str) -> None:
    check_no_credentials(piece * (200_000 // len(piece)), "state")  # quadratic time would take minutes


def test_a_place_is_one_short_line() -> None:
    with pytest.raises(CredentialError) as refused:
        check_no_credentials({"a\n" * 200: {"password": "x"}}, "state")
    assert "\n" not in refused.value.place
    assert len(refused.value.place) <= 120


def test_the_errors_survive_pickling() -> None:
    credential = pickle.loads(pickle.dumps(CredentialError("state.password", "a credential")))  # noqa: S301  # made here
    assert credential.place == "state.password"
    shared = pickle.loads(pickle.dumps(HistoryStoreSharedError("history-store", "a", "b")))  # noqa: S301  # made here
    assert (shared.thread_id, shared.other) == ("a", "b")

"""Detection of credentials: they are refused where a thread would store or show them."""

from __future__ import annotations

import re

from clew.domain.errors import CredentialError
from clew.domain.json_values import Json

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_NAMES = frozenset(
    {
        "authorization",
        "bearer",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "pwd",
        "secret",
        "secrets",
        "token",
        "tokens",
        "apikey",
    }
)
"""A key that ends with one of these words holds a credential."""

_KEYS = frozenset({"access", "account", "api", "auth", "encryption", "private", "secret", "signing"})
"""A key that ends with one of these words and ``key`` holds a credential."""

_RANDOM = r"(?=\S{0,60}(?:[0-9]|[a-z][A-Z]))"
"""The next characters are not a word."""

_NAMED = r"(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key|client[_-]?secret)"

_LOOKS = (
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/?#\s@]{0,200}:[^/?#\s@]{1,500}@"), "a URL with a password"),
    (re.compile(rf"[?&][\w.-]{{0,30}}{_NAMED}=[^&\s]", re.IGNORECASE), "a URL with a key"),
    (re.compile(rf"(?:^|[\s;,]){_NAMED}\s?=\s?[^\s;,]", re.IGNORECASE), "a setting with a password"),
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY"), "a private key"),
    (re.compile(rf"\b(?:Bearer|Basic)\s{_RANDOM}[A-Za-z0-9._~+/-]{{12}}"), "an authorization header"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}\.eyJ"), "a signed token"),
    (re.compile(r"\b[rs]k[-_][A-Za-z0-9_-]{16}"), "an API key"),
    (re.compile(r"\b(?:gh[opsur]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{16})"), "an access token"),
    (re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10}"), "an access token"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), "an access key"),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30}"), "an API key"),
)
"""Patterns of credentials. Every repetition is bounded, because a text may be written to slow the search down."""

_SHOWN = 120


def check_no_credentials(value: Json, where: str) -> None:
    """Raise CredentialError, which names the place and never the value, for anything that looks like a credential.

    It goes by the names of keys (``password``, ``apiKey``, ``access_token`` …) whose values are text, and by how text
    looks: a URL with a password, a private key, the keys of well-known services. ``value`` is plain JSON.
    """
    if isinstance(value, str):
        for pattern, found in _LOOKS:
            if pattern.search(value):
                raise CredentialError(_short(where), found)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            check_no_credentials(each, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            check_no_credentials(key, f"a key in {where}")
            if _names_one(key) and _says_something(each):
                raise CredentialError(_short(f"{where}.{key}"), "a credential, by its name")
            check_no_credentials(each, f"{where}.{key}")


def _names_one(key: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(key.rstrip("0123456789_- "))]  # password2 is a password
    if not words:
        return False
    opens = len(words) > 1 and words[-1] in {"key", "keys"} and words[-2] in _KEYS
    return words[-1] in _NAMES or opens


def _says_something(value: Json) -> bool:
    """Whether it contains text: a number under ``max_tokens`` is not a credential."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list | dict):
        return any(map(_says_something, value.values() if isinstance(value, dict) else value))
    return False


def _short(where: str) -> str:
    shown = where if len(where) <= _SHOWN else where[: _SHOWN - 1] + "…"
    return shown if shown.isprintable() else "".join(each if each.isprintable() else "?" for each in shown)

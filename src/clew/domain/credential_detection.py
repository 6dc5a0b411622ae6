"""Detection of credentials, which threads must neither store nor show."""

from __future__ import annotations

import re

from clew.domain.errors import CredentialError
from clew.domain.json_values import Json, one_line

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
"""Matches before characters that are not a word."""

_NAMED = r"(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key|client[_-]?secret)"

_PATTERNS = (
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
"""Patterns of credentials. Every repetition is bounded, because an attacker may send text that slows the search."""

_LONGEST_PLACE = 120


def check_no_credentials(value: Json, where: str) -> None:
    """Raise CredentialError, which names the place and never the value, for anything that looks like a credential.

    Two things count: the names of keys (``password``, ``apiKey``, ``access_token`` …) with text as their values, and
    the form of text, such as a URL with a password, a private key, or a key of a well-known service. ``value`` is
    plain JSON.
    """
    if isinstance(value, str):
        for pattern, kind in _PATTERNS:
            if pattern.search(value):
                raise CredentialError(one_line(where, _LONGEST_PLACE), kind)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            check_no_credentials(each, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            check_no_credentials(key, f"a key in {where}")
            if _names_credential(key) and _contains_text(each):
                raise CredentialError(one_line(f"{where}.{key}", _LONGEST_PLACE), "a credential, by its name")
            check_no_credentials(each, f"{where}.{key}")


def _names_credential(key: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(key.rstrip("0123456789_- "))]  # password2 is a password
    if not words:
        return False
    is_secret_key = len(words) > 1 and words[-1] in {"key", "keys"} and words[-2] in _KEYS
    return words[-1] in _NAMES or is_secret_key


def _contains_text(value: Json) -> bool:
    """Whether it contains text. A number is not a credential, for example under ``max_tokens``."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list | dict):
        return any(map(_contains_text, value.values() if isinstance(value, dict) else value))
    return False

"""Search of messages: the text that is indexed, search terms (words, "phrases", beginnings* and -exceptions), snippets.

Words are separated as by FTS5's tokenizer ``unicode61``: they consist of letters and digits. Case does not matter, nor
do accents on Latin letters. See https://sqlite.org/fts5.html, "Unicode61 Tokenizer".
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from clew.domain.errors import InvalidSearchError
from clew.domain.projection import Words

SNIPPET = 160
"""The most characters of a snippet, unless a phrase is longer."""

_BEFORE = 40
"""Characters before the first matching word."""

_ACCENTS = "\u0300-\u0304\u0306-\u030c\u030f\u0311\u031b\u0323-\u0328\u032d\u032e\u0330\u0331"
"""Combining characters that belong to the letter before them; all others separate words."""

_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_ACCENTS}])*")
_ASCII_WORDS = bytes(ord(chr(code).lower()) if chr(code).isalnum() else 32 for code in range(128)).ljust(256)
_on_one_line = partial(re.compile(r"\s+").sub, " ")
_NO_WORD = re.compile(rf"[^\w{_ACCENTS}]+")
_TERM = re.compile(r'(?P<without>-?)(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')

Snippet: TypeAlias = tuple["SnippetPart", ...]


class SnippetPart(NamedTuple):
    """A part of a snippet, and whether it matches the search."""

    text: str
    found: bool


def parse(text: str) -> Words:
    """The terms of a search. A text must have all words, "phrases" and beginnings*, and none of the -exceptions.

    Terms are only searched for, never executed. Raises InvalidSearchError if there are no terms, or only exceptions.
    """
    if not isinstance(text, str):
        raise InvalidSearchError(f"{type(text).__name__} is not a text. Give the words to search for.")
    phrases: list[str] = []
    beginnings: list[str] = []
    without: list[str] = []
    for term in _TERM.finditer(text):
        text_of_term = term["phrase"] if term["word"] is None else term["word"]
        # Only the words of the term count. The index ignores all other characters.
        words = " ".join(_WORD.findall(text_of_term))
        if not words:
            continue
        if term["without"]:
            without.append(words)
        elif term["word"] is not None and text_of_term.endswith("*"):
            beginnings.append(words)
        else:
            phrases.append(words)
    if not phrases and not beginnings:
        problem = "has only exceptions" if without else "has no word"
        raise InvalidSearchError(f'{text!r} {problem}. Give a word, a "phrase", or a beginning* of a word.')
    return Words(tuple(phrases), tuple(beginnings), tuple(without))


def compared(text: str) -> list[str]:
    """The words of a text, in order and in their form for comparison."""
    if text.isascii():  # bytes are translated faster
        return text.encode().translate(_ASCII_WORDS).decode().split()
    return list(map(folded, _WORD.findall(text)))


def folded(word: str) -> str:
    """A word in its form for comparison: without case, and without accents on Latin letters."""
    return word.lower() if word.isascii() else "".join(map(_plain, word))


def only_words(text: str) -> str:
    """The text with a space in place of all characters outside words.

    An index with an older Unicode treats a newer character as a letter, and "great\N{THINKING FACE}" as one word.
    """
    return text if text.isascii() else _NO_WORD.sub(" ", text)


def tenant_scope(tenant: str) -> str:
    """The scope of a tenant's messages."""
    return f"tenant {tenant}"


def thread_scope(tenant: str, thread_id: str) -> str:
    """The scope of the messages that are recorded in a thread."""
    return f"thread {tenant}/{thread_id}"


def searchable(message: Any) -> str:
    """The text that a message is found by, from its JSON."""
    texts: list[str] = []
    for content in message.get("contents", ()):
        match content.get("type"):
            case "text" | "reasoning":
                texts.append(content["text"])
            case "function-call":
                texts += (content["name"], _text_of(content.get("arguments")))
            case "function-result":
                if content.get("name"):
                    texts.append(content["name"])
                texts.append(_text_of(content.get("result")))
                if content.get("contents"):
                    texts.append(searchable(content))
            case "media":
                address = content.get("uri") or ""
                texts += ("" if address.startswith("data:") else address, content.get("media_type") or "")
                texts.append(content.get("name") or "")
            case _:
                texts.extend(_strings(content))
    return "\n".join(texts)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(_strings(value))


def _strings(value: Any) -> Iterator[str]:
    """The strings and numbers in JSON, and the names of its fields."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif value is not None:
        yield value if isinstance(value, str) else json.dumps(value)


def places(text: str, words: Words) -> Iterator[tuple[int, int]]:
    """The places of the search terms in a text: starts and ends, in order and without overlap."""
    terms = [(each, False) for each in map(compared, words.phrases) if each]
    if words.beginnings:
        terms += [(each, True) for each in map(compared, words.beginnings) if each]
    first_words = tuple([term[0] for term, _ in terms])
    text_words = compared(text)
    matches, after = _WORD.finditer(text), 0
    for number, word in enumerate(text_words):
        if number < after or not word.startswith(first_words):
            continue
        longest = 0
        for term, is_beginning in terms:
            if len(term) > longest and _matches(text_words[number : number + len(term)], term, beginning=is_beginning):
                longest = len(term)
        if longest:
            matching = list(islice(matches, number - after, number - after + longest))
            after = number + longest
            yield matching[0].start(), matching[-1].end()


def snippet(text: str, words: Words) -> Snippet:
    """The part of a text around the matches, on one line, with the matches marked."""
    matches = places(text, words)
    first = next(matches, None)
    begin, stop = first or (0, 0)
    start = _boundary(text, max(0, begin - _BEFORE), begin)
    end = max(stop, min(len(text), start + SNIPPET))
    if stop < end < len(text):
        end = max(stop, text.rfind(" ", stop, end))
    before = "…" if start else ""
    start = end - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    parts: list[SnippetPart] = []
    for begin, stop in chain((first,) if first else (), matches):
        if stop > end:
            break
        parts.append(SnippetPart(before + _on_one_line(text[start:begin]), found=False))
        parts.append(SnippetPart(_on_one_line(text[begin:stop]), found=True))
        before, start = "", stop
    after = "…" if end < len(text.rstrip()) else ""
    parts.append(SnippetPart(before + _on_one_line(text[start:end]) + after, found=False))
    return tuple([part for part in parts if part.text])


def _boundary(text: str, start: int, first: int) -> int:
    """The start of a word, at or after ``start``, but not after ``first``."""
    if start == 0:
        return 0
    space = re.compile(r"\s").search(text, start, first)
    return first if space is None else space.end()


def _matches(found: Sequence[str], term: Sequence[str], *, beginning: bool) -> bool:
    if found == term or not beginning or len(found) != len(term):
        return found == term
    return found[:-1] == term[:-1] and found[-1].startswith(term[-1])


@lru_cache(maxsize=4_096)
def _plain(character: str) -> str:
    """A character in its form for comparison: a Latin letter without its accent; empty for a separate accent."""
    if unicodedata.category(character) == "Mn":
        return ""
    parts = unicodedata.normalize("NFD", character)
    plain = parts[0] if len(parts[1:]) == 1 and parts[0].isascii() else character  # a letter and its accent
    lower = plain.casefold()
    if len(lower) > 1:  # "ss" for a sharp s
        lower = plain.lower()
    return lower if lower == character else _plain(lower)

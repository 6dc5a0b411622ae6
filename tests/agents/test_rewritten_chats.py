"""Chat documents that programs in other languages have read and written again restore the same chats."""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.agents.group_chats import agent_of
from tests.agents.test_chat_serializer import SCHEMA, written
from tests.domain.strategies import jsons
from tests.servers.installation import ajv, node

from clew import Agent, ChatSerializer, Engine, Image, Message
from clew.domain.chats.portable_json import canonical_form, original, portable
from clew.domain.formats.conversation_import import read_conversation
from clew.domain.json_values import canonical

PROGRAM = Path(__file__).with_name("rewriting.mjs")

AWKWARD = [2**53, 2**53 - 1, -(2**63), 10**30, 1.0, -0.0, 1e16, 1e21, 5e-324, 1e-7, 1.5e-5, 0.1, True, None]
"""Numbers that many languages change."""

METADATA: Any = {
    "numbers": AWKWARD,
    "10": "keys that JavaScript sorts",
    "9": {"$number": "1", "other": {"$number": "2"}, "$$number": 3},
    "__proto__": {"ChannelKey": "a name of the application's own"},
    "\U0001f9f6\uffff": "\u2028\x7f </script> \u00fc",
    "Text": {"Text": None, "type": "text"},
}

OPEN = {"metadata", "source", "result", "value", "data", "state", "selection", "termination", "patch"}
"""Fields whose values belong to applications and providers."""


def test_rewritten_by_a_javascript_program_they_restore_equal(corpus: list[Any], scale: float, tmp_path: Path) -> None:
    documents = asyncio.run(_documents(corpus, scale))
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.json").write_text(document, encoding="utf-8")
    subprocess.run([*node().node, str(PROGRAM), str(ajv()), str(SCHEMA), str(tmp_path)], check=True)
    rewritten = [(tmp_path / f"{number}.js.json").read_text(encoding="utf-8") for number in range(len(documents))]
    asyncio.run(_check_equal(documents, rewritten))


def test_rewritten_with_the_habits_of_dotnet_they_restore_equal(corpus: list[Any], scale: float) -> None:
    documents = asyncio.run(_documents(corpus, scale))
    rewritten = ["\ufeff" + json.dumps(_dotnet(json.loads(each))) for each in documents]
    asyncio.run(_check_equal(documents, rewritten))


async def _documents(corpus: list[Any], scale: float) -> list[str]:
    """Return the documents of chats that begin with the conversations of the corpus, or with every tenth of them."""
    documents = []
    async with Engine.open("memory:") as engine:
        for conversation in corpus[:: round(1 / scale)]:
            chat = await engine.start_chat(_agents(engine), max_turns=1)
            await chat.thread.append(list(read_conversation(conversation).messages))
            await chat.run(Message.user("Look:", Image(b"\x89PNG", media_type="image/png"), metadata=METADATA))
            documents.append(await written(chat))
    return documents


async def _check_equal(documents: list[str], rewritten: list[str]) -> None:
    async with Engine.open("memory:") as engine:
        for original_text, text in zip(documents, rewritten, strict=True):
            assert text != original_text
            assert await _restored(engine, text) == await _restored(engine, original_text)
        assert (await engine.verify()).first_bad is None


def _agents(engine: Engine) -> list[Agent]:
    return [agent_of(engine, name, lambda _: "I see.") for name in "CD"]


async def _restored(engine: Engine, text: str) -> Any:
    """Return the messages of a restored chat, and where its channels are."""
    document = await ChatSerializer.deserialize(io.StringIO(text))
    chat = await engine.start_chat(_agents(engine))
    await document.restore(chat)
    channels = (await chat.state()).channels.values()
    messages = [each.message.model_dump(mode="json") for each in await chat.history() if each.message is not None]
    assert canonical(messages[-2]["metadata"]) == canonical(METADATA)
    return canonical(messages), [(each.thread_id, each.version, each.synced) for each in channels if each.version]


def _dotnet(value: Any) -> Any:
    """Return a document as a typed program of .NET writes it.

    Names are in Pascal case, in another order, without those of nulls, and integers beyond 2^53 are strings.
    """
    if isinstance(value, list):
        return [_dotnet(each) for each in value]
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"(?:^|_)(.)", lambda found: found[1].upper(), name): each if name in OPEN else _dotnet(each)
        for name, each in reversed(value.items())
        if each is not None or name in OPEN
    }


@given(value=jsons | st.dictionaries(st.sampled_from(["$number", "$$number", "a"]), jsons | st.just("1"), max_size=2))
def test_portable_json_has_no_numbers_that_others_change(value: Any) -> None:
    made = portable(value)
    assert canonical(original(made)) == canonical(value)
    text = canonical_form(made)
    as_floats = json.loads(text, parse_int=lambda number: int(float(number)), parse_float=float)
    assert canonical_form(as_floats) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_ecmascript_writes_them(number: float) -> None:
    text = canonical_form(number)
    assert float(text) == number
    assert re.fullmatch(r"-?(0|[1-9]\d{0,20})(\.\d+)?|-?\d(\.\d+)?e[+-][1-9]\d*", text)

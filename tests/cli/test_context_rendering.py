"""Context providers, reducers and memory scopes in ``show``, ``log``, ``replay`` and ``audit``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from tests.domain.strategies import DATA, event
from tests.service.recorded_runs import JOKER, answered, called, record

from clew import Conversations, Message
from clew.cli.rendering.events import find_nothing, what_happened
from clew.domain.context.events import (
    ContextEvent,
    ContextFailed,
    ContextProvided,
    ContextStateRecorded,
    HistoryReduced,
)
from clew.domain.events import EVENT_TYPES, AnyEvent, StateClaimed, ThreadForked
from clew.domain.memory.events import (
    DocumentAdded,
    DocumentRemoved,
    FactReference,
    FactRemembered,
    FactRetracted,
    FactSuperseded,
    Provenance,
    ScopeOpened,
    ScopeRead,
    Statement,
)
from clew.domain.runs.events import Failure, RunCompleted

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"
FACT = FactReference(scope="user/42", fact="f1", version=2)
GIVEN = ContextProvided(
    provider="user-facts",
    instructions="The user's name\nis Caoimhe.",
    messages=(Message.user("Known: kilometres"),),
    tools=("ab" * 32, "cd" * 32),
    reads=(ScopeRead(scope="user/42", version=3), ScopeRead(scope="agent/a", version=0)),
    facts=(FACT,),
    citations=({"source_name": "Report"},),
)
TIMED_OUT = Failure(kind="TimeoutError", message="60 s")
STATEMENT = Statement(
    text="Prefers kilometres",
    key="units",
    kind="preference",
    valid_from=0,
    valid_to=1_000_000,
    learned=Provenance(thread="3f2a", version=4),
    promoted=FACT,
)
STATED = (
    "key units · preference · from 1970-01-01 00:00:00Z · until 1970-01-01 00:00:01Z · learned in 3f2a v4 · "
    "from f1 of user/42"
)


LEFT_OUT = "2 messages left out · 1 message trimmed · over budget · replaced by: They asked of cities."
BESIDE = "1 message · 2 tools · 1 fact · 1 citation · read user/42 v3, agent/a v0"


@pytest.fixture
def conversations(clew: Clew) -> Iterator[Conversations]:
    seconds = itertools.count(1_768_467_600_000_000, 1_000_000)
    url = f"sqlite:///{clew.folder / 'clew.db'}?synchronous=OFF"
    with Conversations.open(url, now=lambda: next(seconds)) as opened:
        thread = opened.start_thread("Trip", thread_id="trip")
        thread.append([Message.user(f"How far is {city}?") for city in ("Cork", "Galway", "Sligo")])
        yield opened


def record_run(conversations: Conversations, *context: ContextEvent) -> None:
    """Record a run on the thread with these context events before the model call."""
    started = JOKER.model_copy(update={"providers": ("user-facts",), "missing": ("lessons",)})
    record(
        conversations,
        "trip",
        "r1",
        started,
        Message.user("And Donegal?"),
        *context,
        called(-2),
        Message.assistant("260 km."),
        answered(-2, "stop", (120, 4), 830),
        RunCompleted(finish_reason="stop"),
    )


REDUCED = HistoryReduced(
    agent="joker",
    reducer="summarise(1)",
    upto=4,
    left_out=((2, 3),),
    summary=Message.system("They asked of cities."),
    trimmed=((4, 200),),
    over_budget=True,
)


def test_show_has_what_the_model_received_besides_the_history(clew: Clew, conversations: Conversations) -> None:
    record_run(conversations, REDUCED, GIVEN, ContextFailed(provider="mem0", hook="invoking", error=TIMED_OUT))
    output = [line.rstrip() for line in clew.text("show", "trip").splitlines()]
    assert output[output.index("    └ Joker completed · 1 model call · 120→4 tokens · 830 ms") + 1 :] == [
        "      without the provider lessons, which was missing",
        f"      - summarise(1): {LEFT_OUT}",
        f"      + user-facts · {BESIDE}",
        "        The user's name",
        "        is Caoimhe.",
        "        user: Known: kilometres",
        "      mem0 failed in invoking: TimeoutError: 60 s",
    ]


def test_show_and_log_say_that_signed_parts_were_left_out(clew: Clew, conversations: Conversations) -> None:
    called_without = called(-2).model_copy(update={"left_out": (1, 3)})
    steps = (JOKER, Message.user("And Donegal?"), called_without, Message.assistant("260 km."))
    done = answered(-2, "stop", (120, 4), 830), RunCompleted(finish_reason="stop")
    record(conversations, "trip", "r1", *steps, *done)
    words = "signed parts of 2 messages left out"
    assert f"      - {words}" in [line.rstrip() for line in clew.text("show", "trip").splitlines()]
    (logged,) = [line for line in clew.text("log", "trip").splitlines() if "model-called" in line]
    assert logged.rstrip().endswith(f"gpt-x · streamed · {words}")
    assert clew.object("show", "trip", "--json")["runs"][0]["left_out"] == 2


def test_show_in_json_has_what_the_model_received(clew: Clew, conversations: Conversations) -> None:
    record_run(conversations, REDUCED, GIVEN, ContextFailed(provider="mem0", hook="invoking", error=TIMED_OUT))
    (run,) = clew.object("show", "trip", "--json")["runs"]
    assert run["missing"] == ["lessons"]
    assert run["context"] == [
        {
            "version": 7,
            "type": "history-reduced",
            "agent": "joker",
            "reducer": "summarise(1)",
            "upto": 4,
            "left_out": [[2, 3]],
            "summary": {"role": "system", "contents": [{"type": "text", "text": "They asked of cities."}]},
            "trimmed": [[4, 200]],
            "over_budget": True,
        },
        {
            "version": 8,
            "type": "context-provided",
            "provider": "user-facts",
            "instructions": "The user's name\nis Caoimhe.",
            "messages": [{"role": "user", "contents": [{"type": "text", "text": "Known: kilometres"}]}],
            "before": 0,
            "tools": ["ab" * 32, "cd" * 32],
            "reads": [{"scope": "user/42", "version": 3}, {"scope": "agent/a", "version": 0}],
            "facts": [{"scope": "user/42", "fact": "f1", "version": 2}],
            "citations": [{"source_name": "Report"}],
        },
        {
            "version": 9,
            "type": "context-failed",
            "provider": "mem0",
            "hook": "invoking",
            "error": {"kind": "TimeoutError", "message": "60 s"},
        },
    ]


def test_the_log_has_a_line_for_each_event_of_a_component(clew: Clew, conversations: Conversations) -> None:
    kept = ContextStateRecorded(provider="preferences", state={"units": "kilometres"}, seen=6)
    record_run(conversations, REDUCED, GIVEN, ContextFailed(provider="mem0", hook="invoking", error=TIMED_OUT), kept)
    lines = [line.rstrip() for line in clew.text("log", "trip", env={"COLUMNS": "220"}).splitlines()]
    what = [line[27:] for line in lines if "context-" in line or "history-" in line or "run-started" in line]
    assert re.fullmatch(
        r"run-started +user:42  Joker \(joker\) · openai-chat · 2 tools · with user-facts · without lessons", what[0]
    )
    assert [re.sub(" {3,}", "  ", each.removeprefix("│ ")) for each in what[1:]] == [
        f"history-reduced  summarise(1): {LEFT_OUT}",
        f"context-provided  user-facts: 5 words · {BESIDE}",
        "context-failed  mem0: invoking · TimeoutError: 60 s",
        'context-state-recorded  preferences: state {"units": "kilometres"}',
    ]


def test_a_rewind_removes_the_context_of_a_run(clew: Clew, conversations: Conversations) -> None:
    record_run(conversations, GIVEN)
    conversations.thread("trip").rewind(to=4)
    assert clew.object("show", "trip", "--json")["runs"] == []
    assert "Caoimhe" not in clew.text("show", "trip")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (ContextProvided(provider="p"), "p: nothing"),
        (ContextStateRecorded(provider="p"), "p: state nothing"),
        (HistoryReduced(agent="a", reducer="r", upto=4), "r: nothing left out"),
        (
            HistoryReduced(agent="a", reducer="r", upto=9, left_out=((2, 4), (7, 7))),
            "r: versions 2 to 4, 7 left out",
        ),
        (ScopeOpened(holds="facts"), "facts"),
        (ScopeOpened(holds="documents", embedder="e", dimensions=1536), "documents · e (1,536)"),
        (FactRemembered(fact="f", statement=Statement(text="Likes\ntea")), "f: Likes tea"),
        (FactRemembered(fact="f", statement=STATEMENT), f"f: Prefers kilometres · {STATED}"),
        (FactSuperseded(fact="f", by="g", statement=Statement(text="miles")), "g instead of f: miles"),
        (FactRetracted(fact="f"), "f"),
        (FactRetracted(fact="f", reason="moved"), "f: moved"),
        (
            DocumentAdded(document="d", text="four", namespaces=("n", "m"), source_name="Report", replaces="c"),
            "d · Report · in n, m · 4 characters · instead of c",
        ),
        (DocumentAdded(document="d", text="", namespaces=("n",), source_link="x:y"), "d · x:y · in n"),
        (DocumentRemoved(document="d"), "d"),
        (DocumentRemoved(document="d", reason="old"), "d: old"),
        (StateClaimed(provider="history-store", thread_id="t"), "history-store: t"),
        (
            ThreadForked(parent_id="p", parent_version=3, parent_hash="00", memory="as-of"),
            "from p at version 3, memory as-of",
        ),
    ],
)
def test_every_event_has_a_text_without_lookups(data: AnyEvent, text: str) -> None:
    assert what_happened(event(data), find_nothing) == text


@pytest.mark.parametrize("type_", sorted(EVENT_TYPES))
def test_the_text_of_any_event_is_one_line_that_is_safe_for_a_terminal(type_: str) -> None:
    @settings(max_examples=20)
    @given(DATA[EVENT_TYPES[type_].model])
    def text(data: AnyEvent) -> None:
        line = what_happened(event(data), find_nothing)
        assert UNSAFE.search(line) is None

    text()


def test_the_texts_of_providers_cannot_control_the_terminal(clew: Clew, conversations: Conversations) -> None:
    text = ContextProvided(
        provider=EVIL,
        instructions=EVIL,
        messages=(Message.user(EVIL),),
        reads=(ScopeRead(scope=EVIL, version=1),),
    )
    failed = ContextFailed(provider=EVIL, hook="invoked", error=Failure(kind=EVIL, message=EVIL))
    kept = ContextStateRecorded(provider=EVIL, state={EVIL: EVIL})
    reduced = HistoryReduced(agent=EVIL, reducer=EVIL, upto=2, left_out=((2, 2),), summary=Message.system(EVIL))
    record_run(conversations, text, failed, kept, reduced)
    for command in (["show"], ["log"], ["replay"], ["show", "--json"], ["log", "--json"]):
        output = clew.text(command[0], "trip", *command[1:])
        assert UNSAFE.search(output) is None, ascii(output)
    assert UNSAFE.search(clew.text("audit")) is None

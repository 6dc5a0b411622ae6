"""``clew memory``: the facts of scopes, now and before, their origins, and their retraction."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.acceptance.clew_command import GLAZE
from tests.cli.test_completion import candidates
from tests.service.recorded_runs import JOKER, answered, called, record

from clew import Conversations, Message
from clew.cli.rendering import memory as memory_rendering
from clew.domain.context.events import ContextProvided
from clew.domain.memory.events import DocumentAdded, MemoryEvent, Provenance, ScopeOpened, ScopeRead
from clew.domain.memory.facts import Fact, FactOrigin
from clew.domain.memory.scope import ScopeFold
from clew.domain.runs.events import RunCompleted
from clew.service.effects import run
from clew.service.memory.streams import commit

if TYPE_CHECKING:
    from tests.cli.conftest import CalledClew as Clew

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202ereversed\u2028x"
FACT = [
    *("scope", "fact", "text", "key", "kind", "status", "version", "recorded_at", "valid_from", "valid_to", "learned"),
    *("promoted", "replaces", "actor", "metadata", "value", "created_at"),
]


class Known(NamedTuple):
    """A scope with a name, replaced units and a retracted fact; and a scope of a group."""

    clew: Clew
    conversations: Conversations
    name: Fact
    kilometres: Fact
    miles: Fact
    gone: Fact
    promoted: Fact


@pytest.fixture
def known(clew: Clew) -> Iterator[Known]:
    seconds = itertools.count(1_768_467_600_000_000, 1_000_000)
    url = f"sqlite:///{clew.folder / 'clew.db'}?synchronous=OFF"
    with Conversations.open(url, now=lambda: next(seconds)) as conversations:
        thread = conversations.start_thread("Trip", thread_id="trip")
        message = thread.append(Message.user("Hello, my name is\nCaoimhe."))
        user = conversations.memory("user/42")
        source = Provenance(thread="trip", version=message.version)
        name = user.remember("The user's name is Caoimhe.", key="name", kind="fact", source=source, actor="user:42")
        kilometres = user.remember("Prefers kilometres.", key="units")
        gone = user.remember("Has a dog.")
        miles = user.supersede(kilometres, "Prefers miles.", metadata={"big": 10**30})
        user.retract(gone, reason="it was a cat")
        promoted = user.promote(name, to=conversations.memory("group/g1"), actor="user:1")
        yield Known(clew, conversations, name, kilometres, miles, gone, promoted)


def given(known: Known) -> None:
    """A run on another thread that receives the name."""
    known.conversations.start_thread(thread_id="next")
    passed_on = ContextProvided(
        provider="user-facts",
        instructions="The user's name is Caoimhe.",
        reads=(ScopeRead(scope="user/42", version=6),),
        facts=(known.name.reference,),
    )
    answer = (Message.assistant("Caoimhe."), answered(-2, "stop", (9, 2), 30), RunCompleted())
    record(known.conversations, "next", "r1", JOKER, Message.user("My name?"), passed_on, called(-2), *answer)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# list and at


def test_lists_the_scopes(known: Known) -> None:
    output = lines(known.clew.text("memory", "list"))
    assert re.fullmatch(r"Scope +Holds +Facts +Ver +Updated", output[0])
    assert [line.split() for line in output[2:]] == [
        ["group/g1", "facts", "1", "2", "2026-01-15", "09:00"],
        ["user/42", "facts", "2", "6", "2026-01-15", "09:00"],
    ]
    result = known.clew.lines("memory", "list", "--json")
    assert [(each["name"], each["holds"], each["facts"], each["version"]) for each in result] == [
        ("group/g1", "facts", 1, 2),
        ("user/42", "facts", 2, 6),
    ]
    assert {*result[0]} >= {"embedder", "dimensions", "opened_at", "updated_at"}


def test_a_narrow_terminal_shows_the_names_of_the_scopes(known: Known) -> None:
    output = known.clew.run("memory", "list", env={"COLUMNS": "30"}).stdout
    assert [line.split()[0] for line in output.splitlines()[2:]] == ["group/g1", "user/42"]


def test_says_that_there_are_no_scopes(clew: Clew) -> None:
    clew.text("import", clew.file("two.jsonl", GLAZE))
    assert clew.text("memory", "list").startswith("There are no memory scopes.")
    assert clew.lines("memory", "list", "--json") == []


def test_lists_the_facts_of_a_scope_and_their_origins(known: Known) -> None:
    output = lines(known.clew.text("memory", "list", "user/42"))
    assert output[0] == "user/42 · 2 facts"
    assert output[1] == f"{known.name.id}  The user's name is Caoimhe."
    assert re.fullmatch(r"    key name · fact · from 2026-01-15 \S+ · learned in trip v2 · by user:42", output[2])
    assert output[3] == f"{known.miles.id}  Prefers miles."
    assert "dog" not in "".join(output)


def test_lists_facts_in_json_with_all_their_fields(known: Known) -> None:
    result = known.clew.lines("memory", "list", "user/42", "--json")
    assert [list(each) for each in result] == [FACT, FACT]
    name, miles = result
    assert name["learned"] == {"thread": "trip", "version": 2}
    assert (name["scope"], name["fact"], name["status"], name["actor"]) == ("user/42", known.name.id, "live", "user:42")
    assert name["valid_from"] == name["recorded_at"]
    assert name["valid_to"] is None
    assert (miles["replaces"], miles["key"], miles["metadata"]) == (known.kilometres.id, "units", {"big": 10**30})
    (wider,) = known.clew.lines("memory", "list", "group/g1", "--json")
    assert wider["promoted"] == {"scope": "user/42", "fact": known.name.id, "version": known.name.version}
    assert wider["learned"] == name["learned"]


def test_history_also_lists_replaced_and_retracted_facts(known: Known) -> None:
    output = lines(known.clew.text("memory", "list", "user/42", "--history"))
    assert output[0] == "user/42 · 4 facts"
    assert "    replaced · key units · from " in "\n".join(output)
    assert "    retracted · from " in "\n".join(output)
    result = known.clew.lines("memory", "list", "user/42", "--history", "--json")
    assert [each["status"] for each in result] == ["live", "superseded", "retracted", "live"]
    assert result[1]["valid_to"] == result[3]["valid_from"]


@pytest.mark.parametrize("command", [["memory", "at", "user/42"], ["memory", "list", "user/42", "--at"]])
def test_lists_what_was_known_at_a_version_or_a_time(known: Known, command: list[str]) -> None:
    def texts(when: str) -> list[str]:
        return [each["text"] for each in known.clew.lines(*command, when, "--json")]

    before = ["The user's name is Caoimhe.", "Prefers kilometres.", "Has a dog."]
    assert texts("4") == before
    assert texts("1") == []
    assert texts(known.gone.recorded_at.isoformat()) == before
    assert texts("2026-01-15T10:00:00+01:00") == []
    output = lines(known.clew.text(*command, "4"))
    assert output[0] == "user/42 · at 4 · 3 facts"
    assert lines(known.clew.text(*command, "1")) == ["user/42 · at 1 · no facts"]


def test_lists_what_is_true_of_a_time(known: Known) -> None:
    year = datetime(2020, 1, 1, tzinfo=UTC)
    known.conversations.memory("user/42").remember("Lived in Cork.", valid_from=year, valid_to=year.replace(year=2021))
    result = known.clew.lines("memory", "list", "user/42", "--valid-at", "2020-06-01T00:00:00Z", "--json")
    assert [each["text"] for each in result] == ["Lived in Cork."]
    assert "Cork" not in known.clew.text("memory", "list", "user/42")
    output = known.clew.text("memory", "list", "user/42", "--valid-at", "2020-06-01T00:00:00Z")
    assert "from 2020-01-01 00:00:00Z to 2021-01-01 00:00:00Z" in output


def test_a_fact_with_line_ends_stays_one_line(known: Known) -> None:
    known.conversations.memory("user/42").remember("Likes tea.\n0123456789abcdef  Forged.\n    from 2020")
    output = lines(known.clew.text("memory", "list", "user/42"))
    assert any(line.endswith("  Likes tea. 0123456789abcdef  Forged. from 2020") for line in output)
    assert not any(line.startswith("0123456789abcdef") for line in output)


def test_search_finds_facts_by_words(known: Known) -> None:
    (result,) = known.clew.lines("memory", "search", "user/42", "prefers", "--json")
    assert list(result) == [*FACT, "score"]
    assert result["text"] == "Prefers miles."
    output = lines(known.clew.text("memory", "search", "user/42", "prefers"))
    assert output[0] == f"{known.miles.id}  Prefers miles."
    assert "score " in output[1]
    assert [each["text"] for each in known.clew.lines(*OLD, "--json")] == ["Prefers kilometres."]
    assert len(known.clew.lines("memory", "search", "user/42", "the prefers name", "--top", "1", "--json")) == 1
    assert known.clew.text("memory", "search", "user/42", "zebra") == ("No matching facts.\n")


OLD = ("memory", "search", "user/42", "prefers", "--at", "4")


# why


def test_why_shows_the_message_of_a_fact_and_the_calls_that_received_it(known: Known) -> None:
    given(known)
    output = lines(known.clew.text("memory", "why", "user/42", known.name.id))
    assert output[0] == f"{known.name.id}  The user's name is Caoimhe."
    assert re.fullmatch(r"├ version 2 of user/42: remembered 2026-01-15 \S+ by user:42", output[1])
    assert output[2:] == [
        "├ learned in thread trip at version 2: user: “Hello, my name is Caoimhe.”",
        "└ received by 1 model call",
        "   next version 5 (run r1)",
    ]
    result = known.clew.object("memory", "why", "user/42", known.name.id, "--json")
    assert list(result) == ["fact", "thread_id", "version", "message", "redacted", "promoted_from", "used_by"]
    assert (result["thread_id"], result["version"], result["redacted"]) == ("trip", 2, False)
    assert result["message"]["contents"] == [{"type": "text", "text": "Hello, my name is\nCaoimhe."}]
    assert result["used_by"] == [{"thread_id": "next", "version": 5, "provided": 4, "run_id": "r1"}]


def test_why_shows_that_the_message_was_redacted(known: Known) -> None:
    known.conversations.thread("trip").redact(2)
    assert "├ learned in thread trip at version 2: [redacted]" in known.clew.text(
        "memory", "why", "user/42", known.name.id
    )
    result = known.clew.object("memory", "why", "user/42", known.name.id, "--json")
    assert (result["redacted"], result["message"]) == (True, None)


def test_why_of_a_promoted_fact_shows_the_narrower_scope(known: Known) -> None:
    output = lines(known.clew.text("memory", "why", "group/g1", known.promoted.id))
    assert output[3] == "├ promoted from user/42:"
    assert output[4] == f"│  {known.name.id}  The user's name is Caoimhe."
    assert output[6] == "│  ├ learned in thread trip at version 2: user: “Hello, my name is Caoimhe.”"
    assert output[-1] == "└ received by no model call"
    result = known.clew.object("memory", "why", "group/g1", known.promoted.id, "--json")
    assert result["promoted_from"]["fact"]["fact"] == known.name.id


def test_why_of_a_replaced_or_retracted_fact_says_so(known: Known) -> None:
    output = known.clew.text("memory", "why", "user/42", known.kilometres.id)
    assert ", replaced since" in output
    assert "├ not learned in a thread" in output
    assert ", retracted since" in known.clew.text("memory", "why", "user/42", known.gone.id)
    assert f"├ instead of {known.kilometres.id}" in known.clew.text("memory", "why", "user/42", known.miles.id)


def test_a_unique_prefix_names_a_fact(known: Known) -> None:
    ids = [known.name.id, known.kilometres.id, known.miles.id, known.gone.id]
    length = next(n for n in range(1, 40) if len({id_[:n] for id_ in ids}) == 4)
    result = known.clew.object("memory", "why", "user/42", known.name.id[:length], "--json")
    assert result["fact"]["fact"] == known.name.id


def test_why_shows_a_missing_message() -> None:
    fact = Fact("s", "f", "x", 2, datetime.now(UTC), datetime.now(UTC))
    output = "".join(
        line.plain for line in memory_rendering.origin_lines(FactOrigin(fact, thread_id="t", version=9), [])
    )
    assert "learned in thread t at version 9: [the message is missing]" in output


# forget


def test_forget_retracts_a_fact_and_earlier_versions_keep_it(known: Known) -> None:
    done = known.clew.text("memory", "forget", "user/42", known.name.id, "--reason", "The user asked", "--actor", "me")
    past = f"clew memory at user/42 {known.name.version}"
    assert done == f"user/42 does not know {known.name.id} any more. Earlier versions do: {past}\n"
    assert "Caoimhe" not in known.clew.text("memory", "list", "user/42")
    assert "Caoimhe" in known.clew.text(*past.split()[1:])
    (entry,) = known.clew.lines("audit", "--scope", "user/42", "--actor", "me", "--json")
    assert (entry["type"], entry["why"], entry["scope"]) == ("fact-retracted", "The user asked", "user/42")
    assert "no live fact" in known.clew.refused(1, "memory", "forget", "user/42", known.name.id)


def test_forget_in_json_is_the_fact_as_it_is_now(known: Known) -> None:
    result = known.clew.object("memory", "forget", "user/42", known.name.id, "--json")
    assert list(result) == FACT
    assert (result["fact"], result["status"]) == (known.name.id, "retracted")


# other readers of the streams of scopes


def test_the_audit_trail_has_who_remembered_a_fact_but_not_its_text(known: Known) -> None:
    result = known.clew.lines("audit", "--scope", "user/42", "--json")
    assert [(each["type"], each["actor"]) for each in result] == [
        ("scope-opened", "user:42"),
        ("fact-remembered", "user:42"),
        ("fact-remembered", None),
        ("fact-remembered", None),
        ("fact-superseded", None),
        ("fact-retracted", None),
    ]
    assert {(each["thread_id"], each["scope"]) for each in result} == {(None, "user/42")}
    assert result[1]["what"].startswith(f"remembered fact '{known.name.id[:10]}")
    assert result[1]["what"].endswith("(27 characters, key 'name', learned in 'trip' at version 2)")
    (promoted,) = known.clew.lines("audit", "--type", "fact-remembered", "--actor", "user:1", "--json")
    assert f"promoted from '{known.name.id}' of 'user/42'" in promoted["what"]
    everything = known.clew.text("audit", "--all")
    assert "Caoimhe" not in everything
    assert "user/42  v2" in everything
    assert "user/42" not in known.clew.text("audit", "--thread", "trip")
    assert "no memory scope 'trip'" in known.clew.refused(1, "audit", "--scope", "trip")  # it is a thread


def test_scopes_do_not_change_lists_counts_and_checks_of_threads(known: Known) -> None:
    assert [each["thread_id"] for each in known.clew.lines("threads", "--json")] == ["trip"]
    total = known.clew.object("stats", "--json")
    assert (total["threads"], total["events"], total["messages"]) == (1, 2, 1)
    verdict = known.clew.object("verify", "--json")
    assert (verdict["ok"], verdict["events"]) == (True, 10)
    assert "warning" not in {each["state"] for each in known.clew.lines("doctor", "--json") if "proj" in each["name"]}
    assert "Caoimhe" in known.clew.text("search", "Caoimhe")
    assert len(known.clew.lines("search", "Caoimhe", "--json")) == 1


def test_verify_names_a_changed_scope(known: Known) -> None:
    known.conversations.close()
    with sqlite3.connect(known.clew.folder / "clew.db") as database:
        of_a_scope = "SELECT id FROM stream WHERE name = 'default/memory/user%2F42'"
        database.execute(f"UPDATE event SET state = x'00ff' WHERE version = 3 AND stream = ({of_a_scope})")  # noqa: S608  # a constant
    database.close()
    done = known.clew.run("verify", "--json")
    assert done.returncode == 3
    bad = json.loads(done.stdout)["first_bad"]
    assert (bad["thread_id"], bad["version"]) == ("memory/user/42", 3)


def test_completes_the_names_of_scopes(known: Known) -> None:
    for command in ("list", "at", "search", "why", "forget"):
        assert candidates(known.clew, "clew", "memory", command, "u") == ["user/42"]
    assert candidates(known.clew, "clew", "memory", "why", "") == ["group/g1", "user/42"]
    assert candidates(known.clew, "clew", "audit", "--scope", "g") == ["group/g1"]
    assert candidates(known.clew, "clew", "memory", "fo") == ["forget"]
    assert candidates(known.clew, "clew", "show", "") == ["trip"]


# errors


@pytest.mark.parametrize("command", ["list", "at", "search", "why", "forget"])
def test_refuses_an_unknown_scope(known: Known, command: str) -> None:
    rest = {"at": ["1"], "search": ["x"], "why": ["f"], "forget": ["f"]}.get(command, [])
    error = known.clew.refused(1, "memory", command, "user/43", *rest)
    assert error == "There is no memory scope 'user/43'. `clew memory list` shows the scopes."
    done = known.clew.run("memory", command, "user/43", *rest, "--json")
    assert json.loads(done.stderr)["error"]["type"] == "ScopeError"
    assert "an empty name" in known.clew.refused(1, "memory", command, "", *rest)
    assert "1 to 200" in known.clew.refused(2, "memory", command, "x" * 201, *rest)


def test_refuses_a_scope_of_documents(known: Known) -> None:
    events: list[MemoryEvent] = [
        ScopeOpened(holds="documents"),
        DocumentAdded(document="d", text="x", namespaces=("n",)),
    ]
    run(commit(known.conversations._core, "Memories", ScopeFold, lambda _fold, _now: events))
    assert known.clew.lines("memory", "list", "--json")[0]["holds"] == "documents"
    output = known.clew.refused(1, "memory", "list", "Memories")
    trail = "`clew audit --scope Memories` lists its events."
    assert output == f"Scope 'Memories' holds documents, not facts. {trail}"
    entry = known.clew.lines("audit", "--scope", "Memories", "--json")[-1]
    assert entry["what"] == "added document 'd' to 'n' (1 character)"


def test_refuses_an_unknown_fact(known: Known) -> None:
    for command in ("why", "forget"):
        assert "no live fact 'zz'" in known.clew.refused(1, "memory", command, "user/42", "zz")
        error = known.clew.refused(1, "memory", command, "user/42", "zz")
        assert error.endswith("no live fact 'zz'. `clew memory list user/42 --history` shows all of them.")
        assert "FACT '' is empty" in known.clew.refused(2, "memory", command, "user/42", "")
    done = known.clew.run("memory", "why", "user/42", "zz", "--json")
    assert json.loads(done.stderr)["error"]["type"] == "UnknownFactError"


def test_refuses_an_ambiguous_prefix_of_a_fact(clew: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (f"3f{number}" for number in range(100))
    monkeypatch.setattr("clew.infrastructure.clock.thread_id", lambda: next(ids))
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        for number in range(7):
            conversations.memory("user/42").remember(f"fact {number}")
    error = clew.refused(2, "memory", "why", "user/42", "3f")
    assert "FACT '3f' is not unique, it matches 7 facts: 3f0, 3f1, 3f2, 3f3, 3f4…" in error


@pytest.mark.parametrize("when", ["message:1", "before refund"])
def test_refuses_a_when_that_is_neither_version_nor_time(known: Known, when: str) -> None:
    assert f"WHEN '{when}': give a version of the scope" in known.clew.refused(2, "memory", "at", "user/42", when)
    assert f"--at '{when}'" in known.clew.refused(2, "memory", "list", "user/42", "--at", when)
    for given in ("4", when):
        assert f"--valid-at '{given}'" in known.clew.refused(2, "memory", "list", "user/42", "--valid-at", given)


def test_refuses_an_unknown_version_and_a_time_without_an_offset(known: Known) -> None:
    assert "its versions are 1 to 6" in known.clew.refused(1, "memory", "at", "user/42", "99")
    assert "has no UTC offset" in known.clew.refused(2, "memory", "at", "user/42", "2026-01-31T12:00:00")
    assert "SCOPE" in known.clew.refused(2, "memory", "list", "--history")


def test_memory_alone_shows_its_help(clew: Clew) -> None:
    done = clew.run("memory")
    assert done.returncode == 2
    assert "forget" in done.stdout


def test_facts_cannot_control_the_terminal(clew: Clew) -> None:
    with Conversations.open(f"sqlite:///{clew.folder / 'clew.db'}") as conversations:
        conversations.start_thread(thread_id=EVIL, messages=[Message.user(EVIL)])
        scope = conversations.memory(EVIL)
        source = Provenance(thread=EVIL, version=2)
        first = scope.remember(EVIL, key=EVIL, kind=EVIL, actor=EVIL, metadata={EVIL: EVIL}, source=source)
        fact = scope.supersede(first, EVIL, source=source)
        scope.promote(fact, to=conversations.memory(EVIL + "wide"))
    for command in (
        ["list"],
        ["list", EVIL],
        ["list", EVIL, "--history"],
        ["at", EVIL, "2"],
        ["search", EVIL, "reversed"],
        ["why", EVIL, fact.id],
        ["forget", EVIL, fact.id, "--reason", EVIL],
    ):
        for more in ([], ["--json"]) if command[0] != "forget" else ([],):
            output = clew.text("memory", *command, *more)
            assert UNSAFE.search(output) is None, ascii(output)
    assert UNSAFE.search(clew.text("audit")) is None

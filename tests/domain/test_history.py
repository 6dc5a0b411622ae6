from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import DATA, event

from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded, HistoryReduced
from clew.domain.decider_state import advance
from clew.domain.events import (
    MESSAGE_APPENDED,
    CheckpointMade,
    Event,
    HistoryRewound,
    MessageAppended,
    Opaque,
    Shredded,
    ThreadEvent,
    ThreadForked,
    ThreadStarted,
)
from clew.domain.history import HistoryBuilder, ThreadState, as_message, evolve
from clew.domain.messages import Message
from clew.domain.runs.events import AgentIdentity, Failure, Fingerprint, RunAbandoned, RunCompleted, RunStarted


@dataclass
class Told:
    """A random lineage, and the number of messages on the path at each version."""

    events: list[Event] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0])


def of_components(draw: st.DrawFn, step: str, version: int) -> ThreadEvent:
    """What components do: keep something, leave out a part of the history, give or fail; and runs that they serve."""
    agent, provider = (draw(st.sampled_from(["a", "b"])) for _ in range(2))
    match step:
        case "s":
            return ContextStateRecorded(provider=provider, state=draw(st.none() | st.integers(0, 3)), seen=version - 1)
        case "h":
            left_out = draw(st.lists(st.tuples(st.integers(1, version), st.integers(1, version)), max_size=2))
            return HistoryReduced(agent=agent, reducer="r", upto=version - 1, left_out=tuple(left_out))
        case "k":
            return ContextFailed(provider=provider, hook="invoking", error=Failure(kind="E"))
        case "p":
            given: ContextProvided = draw(DATA[ContextProvided])
            return given
        case "b":
            made_of = Fingerprint(client="c", providers=(provider,))
            return RunStarted(agent=AgentIdentity(id=agent), fingerprint=made_of, providers=("c",))
        case _:
            ended: list[ThreadEvent] = [RunCompleted(), RunAbandoned(reason="asked")]
            return draw(st.sampled_from(ended))


@st.composite
def lineages(draw: st.DrawFn) -> Told:
    """Appends, rewinds to any version (abandoned ones too), forks, redactions, context and events of unknown types."""
    told = Told()

    def add(made: Event, count: int) -> None:
        told.events.append(made._replace(messages=count))
        told.counts.append(count)

    add(event(ThreadStarted(), 1), 0)
    for step in draw(st.lists(st.sampled_from("mmmmrrfcoxskhpbe"), max_size=40)):
        version, count = len(told.counts), told.counts[-1]
        match step:
            case "m":
                role = draw(st.sampled_from(["user", "assistant"]))
                said = Message.user(f"{version}") if role == "user" else Message.assistant(f"{version}")
                add(
                    event(MessageAppended(message=said), version, actor=draw(st.sampled_from([None, "ann"]))), count + 1
                )
            case "r":
                to = draw(st.integers(min_value=1, max_value=version - 1))
                add(event(HistoryRewound(to=to), version), told.counts[to])
            case "f":
                forked = ThreadForked(parent_id="a", parent_version=version - 1, parent_hash="")
                add(event(forked, version, stream=f"default/thread/fork-{version}"), count)
            case "c":
                add(event(CheckpointMade(name=f"c{version}", at=1), version), count)
            case "o":
                add(Event("default/thread/a", version, "song-sung", "e", version, count, Opaque(b"\x01")), count)
            case "x":
                shredded = Event("default/thread/a", version, MESSAGE_APPENDED, "e", version, 0, Shredded("user"))
                add(shredded, count + 1)
            case _:
                begun = version if step == "b" else draw(st.integers(min_value=1, max_value=version))
                add(event(of_components(draw, step, version), version, run_id=f"run-{begun}"), count)
    return told


def states(events: list[Event]) -> list[ThreadState]:
    """The state after each event, by the definition; the first is that before any."""
    found = [ThreadState()]
    for each in events:
        found.append(evolve(found[-1], each))
    return found


@given(lineages())
def test_the_builder_gives_at_every_version_what_evolve_defines(told: Told) -> None:
    builder = HistoryBuilder("a")
    builder.add(told.events)
    for version, state in enumerate(states(told.events)):
        found = builder.history(version)
        assert found.messages == state.messages
        assert found.context == state.context
        assert found.version == state.version == version
    assert builder.history() == builder.history(len(told.events))


@given(lineages(), st.data())
def test_a_builder_that_goes_on_equals_one_that_starts_over(told: Told, data: st.DataObject) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(told.events)))
    builder = HistoryBuilder("a")
    builder.add(told.events[:cut])
    before = builder.history()
    builder.add(told.events[cut:])
    assert builder.history(cut).messages == before.messages == states(told.events[:cut])[-1].messages
    assert builder.history().messages == states(told.events)[-1].messages


@given(lineages())
def test_the_control_counts_the_messages_on_the_path(told: Told) -> None:
    control = ThreadState().control
    for each, state in zip(told.events, states(told.events)[1:], strict=True):
        control = advance(control, each)
        assert state.control == control
        assert control.messages == len(state.messages)


@given(lineages())
def test_a_later_event_changes_no_earlier_state(told: Told) -> None:
    found = states(told.events)
    shown = [state.messages for state in found]
    evolve(found[-1], event(HistoryRewound(to=1), len(found)))
    assert [state.messages for state in found] == shown


def test_a_rewind_brings_back_what_an_earlier_rewind_abandoned() -> None:
    said = [MessageAppended(message=Message.user(text)) for text in ("one", "two")]
    happened: list[ThreadEvent] = [ThreadStarted(), said[0], said[1], HistoryRewound(to=2), HistoryRewound(to=3)]
    found = states([event(data, version) for version, data in enumerate(happened, start=1)])
    assert [[each.text for each in state.messages] for state in found] == [
        [],
        [],
        ["one"],
        ["one", "two"],
        ["one"],
        ["one", "two"],
    ]


def test_a_redacted_message_keeps_its_place_and_says_nothing() -> None:
    row = Event("default/thread/a", 3, MESSAGE_APPENDED, "e3", 5, 2, Shredded("tool"), "ann")
    said = as_message(row)
    assert said is not None
    assert (said.version, said.role, said.event_id, said.recorded_at, said.actor) == (3, "tool", "e3", 5, "ann")
    assert said.redacted
    assert (said.text, said.contents, said.author, said.metadata) == ("", (), None, {})
    assert said.time.isoformat() == "1970-01-01T00:00:00.000005+00:00"


def test_only_messages_are_messages() -> None:
    assert as_message(event(CheckpointMade(name="c", at=1))) is None
    assert as_message(Event("s", 1, "thread-labelled", "", 0, 0, Shredded(None))) is None
    assert as_message(Event("s", 1, MESSAGE_APPENDED, "", 0, 0, Opaque(b""))) is None


def test_a_history_is_a_sequence_of_its_messages() -> None:
    builder = HistoryBuilder("a")
    builder.add([event(ThreadStarted(), 1), event(MessageAppended(message=Message.user("hi", author="ann")), 2)])
    found = builder.history()
    assert len(found) == builder.weight == 1
    assert [(each.text, each.author, each.redacted) for each in found] == [("hi", "ann", False)]

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tests.domain.strategies import DATA, event

from clew.domain.context.events import ContextFailed, ContextProvided, ContextStateRecorded, HistoryReduced
from clew.domain.context.state import ContextState, context_state_of
from clew.domain.decider_state import Control, advance
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
from clew.domain.history import HistoryBuilder, NotSeen, Spans, ThreadState, as_message, evolve
from clew.domain.messages import Message
from clew.domain.runs.events import AgentIdentity, Failure, Fingerprint, RunAbandoned, RunCompleted, RunStarted


@dataclass
class Lineage:
    """A random lineage, and the number of messages on the path at each version."""

    events: list[Event] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0])


def component_event(draw: st.DrawFn, step: str, version: int) -> ThreadEvent:
    """Draw an event of a component or run: state, reduction, failure, context, or the start or end of a run."""
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
            provided: ContextProvided = draw(DATA[ContextProvided])
            return provided
        case "b":
            fingerprint = Fingerprint(client="c", providers=(provider,))
            return RunStarted(agent=AgentIdentity(id=agent), fingerprint=fingerprint, providers=("c",))
        case _:
            ended: list[ThreadEvent] = [RunCompleted(), RunAbandoned(reason="asked")]
            return draw(st.sampled_from(ended))


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    """Draw appends, rewinds to any version (also abandoned ones), forks, redactions, context and unknown events."""
    lineage = Lineage()

    def add(made: Event, count: int) -> None:
        lineage.events.append(made._replace(messages=count))
        lineage.counts.append(count)

    add(event(ThreadStarted(), 1), 0)
    for step in draw(st.lists(st.sampled_from("mmmmrrfcoxskhpbe"), max_size=40)):
        version, count = len(lineage.counts), lineage.counts[-1]
        match step:
            case "m":
                role = draw(st.sampled_from(["user", "assistant"]))
                message = Message.user(f"{version}") if role == "user" else Message.assistant(f"{version}")
                add(
                    event(MessageAppended(message=message), version, actor=draw(st.sampled_from([None, "ann"]))),
                    count + 1,
                )
            case "r":
                to = draw(st.integers(min_value=1, max_value=version - 1))
                add(event(HistoryRewound(to=to), version), lineage.counts[to])
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
                started = version if step == "b" else draw(st.integers(min_value=1, max_value=version))
                add(event(component_event(draw, step, version), version, run_id=f"run-{started}"), count)
    return lineage


@dataclass
class Without:
    """Needs all but a span of versions."""

    span: tuple[int, int]
    more = 0

    def unneeded(self, _: ContextState) -> Spans:
        return (self.span,)


def states(events: list[Event]) -> list[ThreadState]:
    """Return the states by definition: before the first event and after each event."""
    all_states = [ThreadState()]
    for each in events:
        all_states.append(evolve(all_states[-1], each))
    return all_states


@given(lineages())
def test_the_builder_equals_evolve_at_every_version(lineage: Lineage) -> None:
    builder = HistoryBuilder("a")
    builder.add(lineage.events)
    for version, state in enumerate(states(lineage.events)):
        all_states = builder.history(version)
        assert all_states.messages == state.messages
        assert all_states.context == state.context
        assert all_states.version == state.version == version
    assert builder.history() == builder.history(len(lineage.events))


@given(lineages())
def test_a_builder_takes_messages_in_place_of_their_events(lineage: Lineage) -> None:
    of_events, of_messages = HistoryBuilder("a"), HistoryBuilder("a")
    of_events.add(lineage.events)
    of_messages.add([as_message(each) or each for each in lineage.events])
    for version in range(len(lineage.events) + 1):
        assert of_messages.history(version) == of_events.history(version)
        assert of_messages.history(version).context == of_events.history(version).context
    assert (of_messages.version, of_messages.weight) == (of_events.version, of_events.weight)


@given(lineages(), st.data())
def test_an_extended_builder_equals_a_new_one(lineage: Lineage, data: st.DataObject) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(lineage.events)))
    builder = HistoryBuilder("a")
    builder.add(lineage.events[:cut])
    before = builder.history()
    builder.add(lineage.events[cut:])
    assert builder.history(cut).messages == before.messages == states(lineage.events[:cut])[-1].messages
    assert builder.history().messages == states(lineage.events)[-1].messages


@given(lineages())
def test_the_control_counts_the_messages_on_the_path(lineage: Lineage) -> None:
    control = ThreadState().control
    for each, state in zip(lineage.events, states(lineage.events)[1:], strict=True):
        control = advance(control, each)
        assert state.control == control
        assert control.messages == len(state.messages)


@given(lineages())
def test_the_control_names_the_events_of_the_context_state(lineage: Lineage) -> None:
    controls = [Control()]
    for each in lineage.events:
        controls.append(advance(controls[-1], each))
    for control, state in zip(controls, states(lineage.events), strict=True):
        versions = control.context.known(lambda at: controls[at].context)
        assert versions.known(lambda at: controls[at].context) == versions
        named = {*versions.states.values(), *versions.reductions.values()}
        assert context_state_of(versions, {at: lineage.events[at - 1] for at in named}) == state.context


@given(lineages(), st.data())
def test_a_builder_that_continues_a_part_equals_one_that_read_all(lineage: Lineage, data: st.DataObject) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(lineage.events)))
    whole = HistoryBuilder("a")
    whole.add(lineage.events[:cut])
    first = data.draw(st.integers(1, cut + 1))
    needed = NotSeen(("a",)) if data.draw(st.booleans()) else Without((first, data.draw(st.integers(first, cut + 2))))
    part = HistoryBuilder("a", whole.history(None, needed))
    for each in lineage.events[cut:]:
        whole.add([each])
        part.add([each])
        asked = Without((1, each.version // 2))
        for wanted in (None, asked, needed):
            if part.has(None, wanted):
                assert part.history(None, wanted) == whole.history(None, wanted)
                assert part.history(None, wanted).context == whole.history(None, wanted).context


@given(lineages())
def test_a_later_event_changes_no_earlier_state(lineage: Lineage) -> None:
    all_states = states(lineage.events)
    shown = [state.messages for state in all_states]
    evolve(all_states[-1], event(HistoryRewound(to=1), len(all_states)))
    assert [state.messages for state in all_states] == shown


def test_a_rewind_restores_messages_that_an_earlier_one_abandoned() -> None:
    appended = [MessageAppended(message=Message.user(text)) for text in ("one", "two")]
    events: list[ThreadEvent] = [ThreadStarted(), appended[0], appended[1], HistoryRewound(to=2), HistoryRewound(to=3)]
    all_states = states([event(data, version) for version, data in enumerate(events, start=1)])
    assert [[each.text for each in state.messages] for state in all_states] == [
        [],
        [],
        ["one"],
        ["one", "two"],
        ["one"],
        ["one", "two"],
    ]


def test_a_redacted_message_keeps_its_place_and_has_no_content() -> None:
    row = Event("default/thread/a", 3, MESSAGE_APPENDED, "e3", 5, 2, Shredded("tool"), "ann")
    message = as_message(row)
    assert message is not None
    assert (message.version, message.role, message.event_id, message.recorded_at, message.actor) == (
        3,
        "tool",
        "e3",
        5,
        "ann",
    )
    assert message.redacted
    assert (message.text, message.contents, message.author, message.metadata) == ("", (), None, {})
    assert message.time.isoformat() == "1970-01-01T00:00:00.000005+00:00"


def test_only_messages_are_messages() -> None:
    assert as_message(event(CheckpointMade(name="c", at=1))) is None
    assert as_message(Event("s", 1, "thread-labelled", "", 0, 0, Shredded(None))) is None
    assert as_message(Event("s", 1, MESSAGE_APPENDED, "", 0, 0, Opaque(b""))) is None


def test_a_history_is_a_sequence_of_its_messages() -> None:
    builder = HistoryBuilder("a")
    builder.add([event(ThreadStarted(), 1), event(MessageAppended(message=Message.user("hi", author="ann")), 2)])
    all_states = builder.history()
    assert len(all_states) == 1
    assert [(each.text, each.author, each.redacted) for each in all_states] == [("hi", "ann", False)]

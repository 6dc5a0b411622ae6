from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.domain.decider import Append, Delete, End, Intent, Start, Suspend
from clew.domain.errors import ImportFormatError, StoreUnavailableError, ThreadDeletedError, UnknownThreadError
from clew.domain.formats.conversation_import import ImportFailure, ImportReport, Item, read_conversation, thread_id
from clew.domain.formats.openai_messages import decode
from clew.domain.messages import FunctionResult, Message
from clew.domain.ports import Appended, Submitted, Write
from clew.engine import Engine
from clew.infrastructure import clock
from clew.infrastructure.conversation_files import read_conversations
from clew.infrastructure.event_log import ConversationLog
from clew.service import redactions, thread_commands, thread_queries
from clew.service.async_effects import drive
from clew.service.conversation_transfer import (
    Cursor,
    export_page,
    export_thread,
    import_conversation,
    import_conversations,
)
from clew.service.core import Caches, Core, open_core
from clew.service.effects import run

HELLO = {"role": "user", "content": "Hello"}
HI = {"role": "assistant", "content": "Hi"}
BYE = {"role": "user", "content": "Bye"}


@pytest.fixture
def core(any_url: str) -> Iterator[Core]:
    core = open_core(any_url, tenant="default", create=True, now=clock.now, projections=(), embedded=False)
    yield core
    core.close()


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def import_values(core: Core, *values: object) -> ImportReport:
    items = [Item("a.jsonl", line, value) for line, value in enumerate(values, start=1)]
    return run(import_conversations(core, iter(items)))


def export_all(core: Core, *, forks: bool = False) -> list[Any]:
    exported: list[Any] = []
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        page, cursor = run(export_page(core, cursor, forks=forks))
        exported += page
    return exported


def conversation(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "c", **fields, "messages": list(messages)}


def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition; the test's time limit ends a hopeless wait."""
    while not condition():
        time.sleep(0.001)


def change(core: Core, id_: object, intent: Intent) -> None:
    run(thread_commands.change(core, thread_id(id_), intent, None))  # type: ignore[arg-type]  # ids of tests are JSON


def test_imports_real_conversations_and_exports_them_equal(core: Core, corpus: list[dict[str, Any]]) -> None:
    messages = sum(len(each["messages"]) for each in corpus)
    before = [canonical(each) for each in corpus]
    report = import_values(core, *corpus)
    assert report == ImportReport(len(corpus), messages, messages + len(corpus), 0, [])
    assert [canonical(each) for each in export_all(core)] == before
    position = core.log.last_position()
    assert import_values(core, *corpus) == ImportReport(0, 0, 0, len(corpus), [])
    assert core.log.last_position() == position
    assert [canonical(each) for each in export_all(core)] == before
    assert core.log.verify().first_bad is None


def test_imports_the_samples_of_the_project(core: Core) -> None:
    samples = Path(__file__).parents[2] / "examples"
    report = run(import_conversations(core, read_conversations([samples / "support.jsonl"])))
    assert (report.threads, report.failed) == (4, [])
    assert all(each["metadata"]["topic"] for each in export_all(core))


def test_exports_every_field_of_a_conversation(core: Core) -> None:
    odd = {"big": 10**299, "float": 1.0, "none": None, "_type_": "os", "nested": [{"": [True, -0.0]}], "parent_id": "x"}
    conversations = [
        conversation({**HELLO, **odd}, {**HI, "content": None}, id="a", **odd, title="T", metadata={"k": None}),
        conversation(id={"a": [1]}, title=None, metadata=None),
        conversation(HELLO, id=0, title=["x"], metadata={}),
        conversation(HELLO, id=False),
        conversation(HELLO, id=""),
    ]
    assert import_values(core, *conversations).threads == 5
    assert [canonical(each) for each in export_all(core)] == [canonical(each) for each in conversations]


def test_exports_a_conversation_without_an_id_with_its_thread_id(core: Core) -> None:
    import_values(core, [HELLO], {"messages": [HI], "id": None, "x": 1})
    listed, bare = export_all(core)
    assert listed == {"id": thread_id(read_conversation([HELLO]).key(1)), "messages": [HELLO]}
    assert bare["messages"] == [HI]
    assert (bare["x"], len(bare["id"])) == (1, 16)


def test_distinguishes_equal_conversations_without_ids_by_occurrence(core: Core) -> None:
    assert import_values(core, [HELLO], [HI], [HELLO]).threads == 3
    assert import_values(core, [HELLO], [HELLO]).skipped == 2
    report = import_values(core, [HELLO], [HELLO], [HELLO])
    assert (report.threads, report.skipped) == (1, 2)


def test_appends_the_rest_of_a_longer_conversation_in_one_commit(core: Core) -> None:
    import_values(core, conversation(HELLO))
    assert import_values(core, conversation(HELLO, HI, BYE)) == ImportReport(1, 2, 2, 0, [])
    assert export_all(core) == [conversation(HELLO, HI, BYE)]
    assert run(thread_queries.existing(core, thread_id("c"))).version == 4


def test_writes_a_conversation_in_one_commit(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    submit = ConversationLog.submit

    def counted(log: ConversationLog, write: Write) -> Any:
        writes.append(len(write.events))
        return submit(log, write)

    monkeypatch.setattr(ConversationLog, "submit", counted)
    import_values(core, conversation(HELLO, HI, BYE))
    assert writes == [4]


@pytest.mark.parametrize(
    ("intent", "status"), [(Suspend(), "suspended"), (End(), "ended"), (Delete(), "deleted")], ids=str
)
def test_skips_an_equal_thread_of_any_status_and_refuses_to_extend_it(core: Core, intent: Intent, status: str) -> None:
    import_values(core, conversation(HELLO))
    change(core, "c", intent)
    position = core.log.last_position()
    assert import_values(core, conversation(HELLO)).skipped == 1
    (failed,) = import_values(core, conversation(HELLO, HI)).failed
    assert f"the thread is {status}, at version 3" in failed.error
    assert core.log.last_position() == position


def test_refuses_a_thread_that_has_advanced_or_differs(core: Core) -> None:
    import_values(core, conversation(HELLO, x=1))
    change(core, "c", Append((Message.assistant("Something else"),)))
    for value, reason in [
        (conversation(HELLO, HI, x=1), "it differs from its thread at message 2"),
        (conversation(HELLO, HI, BYE, x=1), "it differs from its thread at message 2"),
        (conversation(HELLO, {**HI, "content": "Something else"}, x=1.0), "it differs from its thread in 'x'"),
    ]:
        report = import_values(core, value)
        assert (report.threads, report.skipped) == (0, 0)
        assert reason in report.failed[0].error
    both = conversation(HELLO, {**HI, "content": "Something else"}, x=1)
    assert import_values(core, both, conversation(HELLO, x=1)).skipped == 2


def test_compares_with_the_present_path_after_a_rewind(core: Core) -> None:
    import_values(core, conversation(HELLO, HI))
    run(thread_commands.rewind(core, thread_id("c"), 2, abandon_run=False, actor=None))
    assert import_values(core, conversation(HELLO)).skipped == 1
    assert import_values(core, conversation(HELLO, BYE)).messages == 1
    assert export_all(core) == [conversation(HELLO, BYE)]


def test_a_redacted_message_equals_any_and_is_exported_without_content(core: Core) -> None:
    import_values(core, conversation(HELLO, HI))
    run(redactions.redact(core, thread_id("c"), 3, None, None))
    assert import_values(core, conversation(HELLO, HI)).skipped == 1
    assert export_all(core) == [conversation(HELLO, {"role": "assistant", "content": None, "redacted": True})]
    assert import_values(core, conversation(HELLO, HI, BYE)).messages == 1
    change(core, "c", Delete())
    assert import_values(core, conversation(HELLO, HI, BYE)).skipped == 1


def test_refuses_a_thread_of_the_same_id_that_was_not_imported(core: Core) -> None:
    run(thread_commands.start(core, thread_id("c"), Start(messages=(Message.user("Hello"),)), None))
    (failed,) = import_values(core, conversation(HELLO)).failed
    assert "taken by another thread" in failed.error
    run(thread_commands.start(core, "parent", Start(), None))
    plain = thread_commands.ForkStart()
    run(thread_commands.fork(core, "parent", plain, at=None, at_message=None, new_id=thread_id("d"), actor=None))
    (failed,) = import_values(core, conversation(id="d")).failed
    assert "taken by another thread" in failed.error


def test_reports_invalid_conversations_and_imports_the_rest(core: Core) -> None:
    unreadable = ImportFailure("a.jsonl", 2, "It is not JSON")
    items: list[Item | ImportFailure] = [
        Item("a.jsonl", 1, conversation(HELLO, id="first")),
        unreadable,
        Item("a.jsonl", 3, conversation({"role": "wizard", "content": "secret"}, id="bad")),
        Item("a.jsonl", 4, conversation({**HELLO, "n": float("nan")}, id="bad")),
        Item("a.jsonl", 5, conversation(HELLO, id="last")),
    ]
    seen: list[int] = []
    progress = lambda report: seen.append(report.threads + len(report.failed))  # noqa: E731  # it is one line
    report = run(import_conversations(core, iter(items), progress=progress))
    assert (report.threads, report.messages, report.events) == (2, 2, 4)
    assert report.failed[0] == unreadable
    assert [failed.line for failed in report.failed] == [2, 3, 4]
    assert not any("secret" in failed.error or "\n" in failed.error for failed in report.failed)
    assert [each["id"] for each in export_all(core)] == ["first", "last"]
    assert seen == [1, 2, 3, 4, 5]


def test_refuses_a_message_of_fifty_megabytes_and_imports_the_rest(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    huge = conversation(HELLO, {"role": "user", "content": "x" * 50_000_000}, id="huge")
    path.write_text("".join(canonical(each) + "\n" for each in [conversation(HELLO), huge, conversation(HI, id="d")]))
    report = run(import_conversations(core, read_conversations([path])))
    assert (report.threads, report.events) == (2, 4)
    assert [(failed.file, failed.line) for failed in report.failed] == [(str(path), 2)]
    assert "at most 16,777,216" in report.failed[0].error
    assert len(core.log.events_after(0, 9, "")) == 4
    assert [each["id"] for each in export_all(core)] == ["c", "d"]
    longer = conversation(HELLO, {"role": "user", "content": "x" * 17_000_000})
    assert len(import_values(core, longer).failed) == 1
    assert export_all(core)[0] == conversation(HELLO)


def test_concurrent_imports_write_each_thread_once(core: Core) -> None:
    values = [conversation(HELLO, HI, id=number) for number in range(20)] + [[HELLO], [HELLO]]
    reports: list[ImportReport] = []
    gate = threading.Barrier(4)

    def import_all() -> None:
        gate.wait()
        reports.append(import_values(core, *values))

    threads = [threading.Thread(target=import_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.failed for report in reports] == [[], [], [], []]
    assert sum(report.threads for report in reports) == 22
    assert sum(report.skipped for report in reports) == 66
    assert len(export_all(core)) == 22


def test_retries_when_another_import_was_faster(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    import_values(core, conversation(HELLO))
    submit = ConversationLog.submit
    raced: list[Appended] = []

    def submit_twice(log: ConversationLog, write: Write) -> Any:
        if not raced:
            raced.append(submit(log, write).outcome.result())
        return submit(log, write)

    monkeypatch.setattr(ConversationLog, "submit", submit_twice)
    assert import_values(core, conversation(HELLO, HI)).skipped == 1
    raced.clear()
    assert import_values(core, conversation(BYE, id="new")).skipped == 1
    assert [each["messages"] for each in export_all(core)] == [[HELLO, HI], [BYE]]


def test_imports_one_conversation_or_raises_the_reason(core: Core) -> None:
    done = run(import_conversation(core, read_conversation(conversation(HELLO)), 1, "user:42"))
    assert (done.thread_id, done.messages, done.events) == (thread_id("c"), 1, 2)
    assert {event.actor for event in core.log.lineage(core.stream(done.thread_id))} == {"user:42"}
    with pytest.raises(ImportFormatError, match="differs from its thread at message 1"):
        run(import_conversation(core, read_conversation(conversation(HI)), 1))


def test_exports_imported_threads_first_then_the_others_by_creation(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.conversation_transfer.PAGE", 2)
    run(
        thread_commands.start(
            core, "own", Start(title="Own", metadata={"k": 1}, messages=(Message.user("Hello"),)), None
        )
    )
    import_values(core, conversation(HELLO, id="z"), conversation(HELLO, id="gone"), conversation(HELLO, id="a"))
    run(thread_commands.start(core, "later", Start(), None))
    titled = thread_commands.ForkStart("F")
    run(thread_commands.fork(core, thread_id("z"), titled, at=None, at_message=None, new_id="f", actor=None))
    change(core, "gone", Delete())
    assert [each["id"] for each in export_all(core)] == ["z", "a", "own", "later"]
    with_forks = export_all(core, forks=True)
    assert [each["id"] for each in with_forks] == ["z", "a", "own", "later", "f"]
    assert with_forks[2] == {"id": "own", "title": "Own", "metadata": {"k": 1}, "messages": [HELLO]}
    assert with_forks[3] == {"id": "later", "messages": []}
    assert with_forks[4] == {"id": "f", "title": "F", "messages": [HELLO]}


def test_exports_messages_appended_after_the_import(core: Core) -> None:
    import_values(core, conversation(HELLO, x=[1]))
    results = (FunctionResult(call_id="1", result="a"), FunctionResult(call_id="2", result={"b": 1}))
    change(core, "c", Append((Message(role="tool", contents=results),)))
    assert run(export_thread(core, thread_id("c"))) == conversation(
        HELLO,
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": '{"b": 1}'},
        x=[1],
    )


def test_refuses_to_export_a_deleted_or_an_unknown_thread_by_name(core: Core) -> None:
    import_values(core, conversation(HELLO))
    change(core, "c", Delete())
    with pytest.raises(ThreadDeletedError):
        run(export_thread(core, thread_id("c")))
    with pytest.raises(UnknownThreadError):
        run(export_thread(core, "nowhere"))


def test_keeps_tenants_apart(core: Core) -> None:
    other = replace(core, tenant="other", caches=Caches())
    assert import_values(core, conversation(HELLO)).threads == 1
    assert import_values(other, conversation(HELLO)).threads == 1
    assert len(export_all(core)) == len(export_all(other)) == 1


TIMED = [{**HELLO, "timestamp": "2024-05-01T10:00:00Z"}, {**HI, "create_time": 1_714_557_600.5}, BYE]


def said(core: Core) -> list[str | None]:
    messages = run(thread_queries.history(core, thread_id("c"))).messages
    return [None if each.said_at is None else each.said_at.isoformat() for each in messages]


def test_an_import_keeps_when_each_message_was_said(core: Core) -> None:
    assert import_values(core, {"id": "c", "messages": TIMED[:1]}).threads == 1
    assert import_values(core, {"id": "c", "messages": TIMED}).messages == 2
    assert said(core) == ["2024-05-01T10:00:00+00:00", "2024-05-01T10:00:00.500000+00:00", None]
    assert export_all(core) == [{"id": "c", "messages": TIMED}]
    assert import_values(core, {"id": "c", "messages": TIMED}) == ImportReport(0, 0, 0, 1, [])


def test_a_conversation_that_was_imported_without_these_times_is_still_the_same(core: Core) -> None:
    intent = replace(read_conversation({"id": "c", "messages": TIMED[:2]}).start(), said=())
    run(thread_commands.start(core, thread_id("c"), intent, None))
    assert import_values(core, {"id": "c", "messages": TIMED[:2]}).skipped == 1
    assert import_values(core, {"id": "c", "messages": [*TIMED[:2], TIMED[0]]}).messages == 1
    assert said(core) == [None, None, "2024-05-01T10:00:00+00:00"]


def numbered(count: int) -> list[Item]:
    return [Item("a.jsonl", line, {"id": line, "messages": [HELLO, HI]}) for line in range(1, count + 1)]


@pytest.fixture
def file_core(file_url: str) -> Iterator[Core]:
    core = open_core(file_url, tenant="default", create=True, now=clock.now, projections=(), embedded=False)
    yield core
    core.close()


def small_groups(monkeypatch: pytest.MonkeyPatch, conversations: int) -> None:
    """Let a group end after this many conversations of ``numbered()``."""
    monkeypatch.setattr("clew.service.conversation_transfer.MOST_EVENTS", 3 * conversations)


def recorded_writes(monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    writes: list[Write] = []
    submit = ConversationLog.submit

    def recorded(log: ConversationLog, write: Write) -> Submitted:
        writes.append(write)
        return submit(log, write)

    monkeypatch.setattr(ConversationLog, "submit", recorded)
    return writes


def test_the_next_group_is_read_while_one_is_written(file_core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch, 8)
    datastore: Any = file_core.log.recorder.datastore  # type: ignore[attr-defined]  # the log is an application
    before, reports, taken = datastore._writer.commits, list[ImportReport](), list[Item]()

    def next_items() -> Iterator[Item]:
        for item in numbered(5 * 8):
            taken.append(item)
            yield item

    with datastore.lock.held():
        importing = threading.Thread(
            target=lambda: reports.append(run(import_conversations(file_core, next_items()))), daemon=True
        )
        importing.start()
        until(lambda: len(taken) == 2 * 8)
        importing.join(0.05)
        assert len(taken) == 2 * 8, "no more than one group is read ahead"
        assert file_core.log.last_position() == 0
    importing.join()
    assert reports == [ImportReport(5 * 8, 2 * 5 * 8, 3 * 5 * 8, 0, [])]
    assert datastore._writer.commits - before == 5


def test_new_conversations_are_written_in_groups(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch, 20)
    writes = recorded_writes(monkeypatch)
    assert run(import_conversations(core, iter(numbered(50)))).threads == 50
    assert [len(write.previous) for write in writes] == [20, 20, 10]
    assert [len(write.events) for write in writes] == [60, 60, 30]
    assert [each["id"] for each in export_all(core)] == [*range(1, 51)]


def test_a_group_ends_when_its_conversations_have_many_bytes(
    core: Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.service.conversation_transfer.MOST_BYTES", 10_000)
    writes = recorded_writes(monkeypatch)
    values = [conversation({"role": "user", "content": "x" * 2_500}, id=number) for number in range(12)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    (tmp_path / "list.json").write_text(json.dumps([{**value, "id": str(value["id"])} for value in values]))
    for name in ("lines.jsonl", "list.json"):
        writes.clear()
        assert run(import_conversations(core, read_conversations([tmp_path / name]))).threads == 12
        assert [len(write.previous) for write in writes] == [4, 4, 4]


def test_a_new_message_is_decoded_and_checked_once(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []

    def counted(value: object, number: int) -> Message:
        decoded.append(value)
        return decode(value, number)

    def unexpected(_: Message) -> None:
        raise AssertionError("the message was checked when it was decoded")

    monkeypatch.setattr("clew.domain.formats.conversation_import.decode", counted)
    monkeypatch.setattr("clew.domain.decider.check_message", unexpected)
    values = [conversation(HELLO, HI, id=number) for number in range(30)]
    assert import_values(core, *values).messages == 60
    assert decoded == [HELLO, HI] * 30


def test_existing_threads_are_looked_up_once_for_a_group(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[int] = []
    existing = core.log.existing

    def counted(names: Sequence[str]) -> set[str]:
        lookups.append(len(names))
        return existing(names)

    monkeypatch.setattr(core.log, "existing", counted)
    run(import_conversations(core, iter(numbered(30))))
    assert run(import_conversations(core, iter(numbered(40)))) == ImportReport(10, 20, 30, 30, [])
    assert lookups == [30, 40]


def test_a_group_with_a_new_a_known_and_a_repeated_conversation_keeps_the_order_of_the_input(core: Core) -> None:
    import_values(core, conversation(HELLO, id="known"))
    report = import_values(
        core,
        conversation(HELLO, id="a"),
        conversation(HELLO, HI, id="known"),
        conversation(BYE, id="b"),
        conversation(HELLO, HI, id="a"),
        conversation(BYE, id="known"),
    )
    assert report[:4] == (4, 4, 6, 0)
    assert [each.line for each in report.failed] == [5]
    assert export_all(core) == [
        conversation(HELLO, HI, id="known"),
        conversation(HELLO, HI, id="a"),
        conversation(BYE, id="b"),
    ]


def test_a_conversation_of_the_group_before_is_extended(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch, 1)
    report = import_values(core, conversation(HELLO, HI), conversation(HELLO, HI, BYE), conversation(HELLO, HI, BYE))
    assert report == ImportReport(2, 3, 4, 1, [])


def test_a_group_that_meets_another_import_is_imported_one_by_one(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.log, "existing", lambda _: set())  # the other import comes after the lookup
    import_values(core, conversation(HELLO, id=7), conversation(BYE, id=9))
    report = run(import_conversations(core, iter(numbered(10))))
    assert report[:4] == (9, 17, 25, 0)
    assert [each.line for each in report.failed] == [9]
    assert [each["id"] for each in export_all(core)] == [7, 9, 1, 2, 3, 4, 5, 6, 8, 10]


def test_read_models_follow_an_import_at_its_end(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch, 4)
    notified: list[int] = []
    monkeypatch.setattr(core.models, "notify", lambda: notified.append(core.log.verify().events))
    run(import_conversations(core, iter(numbered(20))))
    assert notified == [60]
    run(import_conversations(core, iter(numbered(20))))
    assert notified == [60], "nothing was imported"


def test_the_same_conversation_twice_in_a_row_is_skipped_or_extended(core: Core) -> None:
    report = import_values(core, conversation(HELLO), conversation(HELLO), conversation(HELLO, HI), conversation(BYE))
    assert report[:4] == (2, 2, 3, 1)
    assert [each.line for each in report.failed] == [4]
    assert export_all(core) == [conversation(HELLO, HI)]


def test_input_with_one_id_several_times_can_be_imported_again_and_may_grow(core: Core) -> None:
    lines = [conversation(HELLO), conversation(HELLO, HI), conversation(HELLO, id="other")]
    assert import_values(core, *lines) == ImportReport(3, 3, 5, 0, [])
    assert import_values(core, *lines) == ImportReport(0, 0, 0, 3, [])
    assert import_values(core, *lines, conversation(HELLO, HI, BYE)) == ImportReport(1, 1, 1, 3, [])
    assert import_values(core, *lines) == ImportReport(0, 0, 0, 3, [])
    assert export_all(core) == [conversation(HELLO, HI, BYE), conversation(HELLO, id="other")]


def test_everything_before_an_error_of_the_reader_is_imported(core: Core) -> None:
    def next_items() -> Iterator[Item]:
        yield from numbered(3)
        raise ImportFormatError("The rest cannot be read.")

    with pytest.raises(ImportFormatError, match="The rest"):
        run(import_conversations(core, next_items()))
    assert [each["id"] for each in export_all(core)] == [1, 2, 3]


def test_progress_is_reported_in_the_order_of_the_input(core: Core) -> None:
    reports: list[tuple[int, int]] = []
    items: list[Item | ImportFailure] = [*numbered(40)]
    items.insert(20, ImportFailure("a.jsonl", 99, "unreadable"))
    run(import_conversations(core, iter(items), progress=lambda report: reports.append((report[0], len(report[4])))))
    assert reports == [*[(number, 0) for number in range(1, 21)], *[(number, 1) for number in range(20, 41)]]


def test_a_cancelled_import_stores_nothing_later(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch, 5)

    async def work() -> None:
        async with Engine.open(file_url, projections=()) as engine:
            datastore: Any = engine._core.log.recorder.datastore  # type: ignore[attr-defined]  # as above
            importing = asyncio.create_task(drive(import_conversations(engine._core, iter(numbered(20)))))
            with datastore.lock.held():
                blocking = asyncio.create_task(engine.start_thread(thread_id="first"))
                while not datastore.queue.waiting:  # noqa: ASYNC110  # another thread changes it
                    await asyncio.sleep(0.001)
                importing.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await importing
            thread = await blocking
            stored = engine._core.log.last_position()
            assert stored in {1, 1 + 3 * 5}
            await thread.append(Message.user("later"))
            assert engine._core.log.last_position() == stored + 1
            assert (await engine.verify()).first_bad is None

    asyncio.run(work())


def test_an_import_raises_the_error_of_the_store_and_keeps_whole_groups(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, 2)
    submit, submitted = core.log.submit, list[int]()

    def fail(write: Write) -> Submitted:
        submitted.append(1)
        if len(submitted) == 3:
            message = "the disk of the test is full"
            raise StoreUnavailableError(message)
        return submit(write)

    monkeypatch.setattr(core.log, "submit", fail)
    with pytest.raises(StoreUnavailableError, match="is full"):
        run(import_conversations(core, iter(numbered(9))))
    assert [each["id"] for each in export_all(core)] == [1, 2, 3, 4]
    assert core.log.verify().first_bad is None
    assert run(import_conversations(core, iter(numbered(9)))) == ImportReport(5, 10, 15, 4, [])

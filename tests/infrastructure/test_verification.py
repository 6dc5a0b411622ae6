from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.infrastructure.tampering import Place, Store, build

from clew.conversations import Conversations
from clew.domain.errors import CorruptEventError, UnknownThreadError
from clew.domain.messages import Message
from clew.domain.ports import Blob, IntegrityFault, Write
from clew.domain.streams import digest, link
from clew.infrastructure.envelope import decode, encode, stub

COLUMNS = ("type", "version", "state", "hash")


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verification") / "store.db"
    build(path)
    return path


@pytest.fixture
def store(store_path: Path, tmp_path: Path) -> Iterator[Store]:
    copy = tmp_path / "copy.db"
    shutil.copy(store_path, copy)
    with closing(Store(copy)) as opened:
        assert opened.fault() is None
        yield opened
        assert opened.fault() is None, "a change was not undone"


def sample(cases: list[Any], scale: float, minimum: int = 60) -> list[Any]:
    """All cases at full scale, otherwise a part of them: always the same ones."""
    count = max(minimum, round(len(cases) * scale))
    return cases if count >= len(cases) else random.Random(7).sample(cases, count)


def check_fault(fault: IntegrityFault | None, *expected: tuple[str, int]) -> None:
    assert fault is not None, f"no fault at {expected}"
    assert (fault.thread_id, fault.version) in expected, fault


def test_an_unchanged_store_verifies_and_reports_its_size(store: Store) -> None:
    verdict = store.verifier.verify()
    assert verdict == (len(store.streams), len(store.places), None)
    assert store.places_of_type("message-redacted")
    assert store.raw.execute("SELECT count(*) FROM remains").fetchone()[0] == 1
    assert store.raw.execute("SELECT count(*) FROM event WHERE length(digest) = 32").fetchone()[0] == 1


def test_verifies_a_thread_with_its_ancestors_only(store: Store) -> None:
    twig = store.place("twig", 8)
    assert store.verifier.verify("twig").threads == 3
    assert store.verifier.verify("other").threads == 1
    assert store.verifier.verify("branch").first_bad is None
    store.raw.execute("UPDATE event SET hash = x'00' WHERE position = ?", (twig.position,))
    check_fault(store.verifier.verify("twig").first_bad, ("twig", 8))
    assert store.verifier.verify("branch").first_bad is None
    with pytest.raises(UnknownThreadError):
        store.verifier.verify("missing")
    store.raw.execute("UPDATE event SET hash = ? WHERE position = ?", (hash_of(store, twig), twig.position))


def hash_of(store: Store, place: Place) -> bytes:
    """The correct hash of a row, computed from the previous row."""
    previous = store.raw.execute(
        "SELECT hash FROM event WHERE stream = ? AND version = ?", (place.stream, place.version - 1)
    ).fetchone()[0]
    name = store.streams[place.stream]
    return link(previous, name, place.version, store.value(place, "type"), digest(store.value(place, "state")))


# Changed bytes


@pytest.mark.parametrize("column", ["type", "state", "hash", "digest"])
def test_finds_any_changed_byte_of_a_row(store: Store, column: str, scale: float) -> None:
    cases: list[tuple[Place, int]] = []
    for place in store.places:
        value = store.value(place, column) or b""
        cases += [(place, index) for index in range(len(value.encode() if isinstance(value, str) else value))]
    kind = "TEXT" if column == "type" else "BLOB"
    chance = random.Random(3)
    for place, index in sample(cases, scale):
        value = store.value(place, column)
        changed = bytearray(value.encode() if isinstance(value, str) else value)
        changed[index] ^= 1 << chance.randrange(8)
        sql = f"UPDATE event SET {column} = CAST(? AS {kind}) WHERE position = ?"  # noqa: S608 - names of columns
        check_fault(store.fault((sql, (bytes(changed), place.position))), (place.thread_id, place.version))


@pytest.mark.parametrize("column", ["type", "state", "hash"])
@pytest.mark.parametrize("change", ["x'' || {0}", "{0} || x'00'", "substr({0}, 2)", "x''", "x'ff'", "'text'", "0"])
def test_finds_a_value_with_another_length_or_type(store: Store, column: str, change: str) -> None:
    for place in store.places:
        new = change.format(column)
        where = f"position = {place.position}"
        same = store.raw.execute(
            f"SELECT ({new}) IS {column} OR length({column}) = 0 FROM event WHERE {where}"  # noqa: S608 - made here
        ).fetchone()[0]
        if not same:
            sql = f"UPDATE event SET {column} = {new} WHERE {where}"  # noqa: S608 - made here
            check_fault(store.fault((sql, ())), (place.thread_id, place.version))


def test_finds_any_changed_version(store: Store, scale: float) -> None:
    cases = [(place, place.version ^ (1 << bit)) for place in store.places for bit in (*range(8), 31, 62)]
    cases += [(place, new) for place in store.places for new in (-place.version, 0, place.version + 1, 10**9)]
    used = {(place.stream, place.version) for place in store.places}
    for place, new in sample(cases, scale):
        if (place.stream, new) not in used:
            fault = store.fault(("UPDATE event SET version = ? WHERE position = ?", (new, place.position)))
            check_fault(fault, (place.thread_id, place.version), (place.thread_id, new))


def test_finds_any_changed_byte_of_a_streams_name(store: Store, scale: float) -> None:
    chance = random.Random(5)
    cases = [(key, index) for key, name in store.streams.items() for index in range(len(name))]
    for key, index in sample(cases, scale):
        changed = bytearray(store.streams[key].encode())
        changed[index] ^= 1 << chance.randrange(8)
        fault = store.fault(("UPDATE stream SET name = CAST(? AS TEXT) WHERE id = ?", (bytes(changed), key)))
        assert fault is not None
        assert fault.version == store.first[key]
        displayed = bytes(changed).decode(errors="surrogateescape").encode(errors="replace").decode()
        assert fault.thread_id in (displayed.split("/")[-1], unquote(displayed.split("/")[-1]), displayed)


def test_finds_a_changed_stub_in_the_side_table(store: Store) -> None:
    for column in ("state", "digest"):
        sql = f"UPDATE remains SET {column} = {column} || x'00'"  # noqa: S608 - names of columns
        check_fault(store.fault((sql, ())), ("root", 2))
    check_fault(store.fault(("DELETE FROM remains", ())), ("root", 2))


# Changed rows


def test_finds_a_deleted_row_that_is_not_the_last_of_its_thread(store: Store) -> None:
    for place in store.places:
        if place.version < store.heads[place.stream]:
            fault = store.fault(("DELETE FROM event WHERE position = ?", (place.position,)))
            check_fault(fault, (place.thread_id, place.version))


def test_finds_a_thread_without_rows(store: Store) -> None:
    for key, first in store.first.items():
        check_fault(store.fault(("DELETE FROM event WHERE stream = ?", (key,))), (store.thread(key), first))


@pytest.mark.parametrize("column", COLUMNS)
def test_finds_two_swapped_rows(store: Store, column: str, scale: float) -> None:
    pairs = list(itertools.combinations(store.places, 2))
    used = {(place.stream, place.version) for place in store.places}
    for one, two in sample(pairs, scale):
        first, second = store.value(one, column), store.value(two, column)
        is_used = one.stream != two.stream and used & {(one.stream, two.version), (two.stream, one.version)}
        if first == second or (column == "version" and is_used):
            continue
        sql = f"UPDATE event SET {column} = ? WHERE position = ?"  # noqa: S608 - names of columns
        fault = store.fault(
            (sql, (-1 if column == "version" else b"", one.position)),
            (sql, (first, two.position)),
            (sql, (second, one.position)),
        )
        places = [(a.thread_id, b.version) for a in (one, two) for b in (one, two)]
        if column == "version" and one.stream != two.stream:  # one thread has a gap after its head
            places += [(each.thread_id, store.heads[each.stream] + 1) for each in (one, two)]
        check_fault(fault, *places)


def test_finds_a_row_that_was_moved_to_another_thread(store: Store, scale: float) -> None:
    cases = [(place, key) for place in store.places for key in store.streams if key != place.stream]
    for place, key in sample(cases, scale):
        version = store.heads[key] + 1
        sql = "UPDATE event SET stream = ?, version = ? WHERE position = ?"
        fault = store.fault((sql, (key, version, place.position)))
        check_fault(fault, (place.thread_id, place.version), (store.thread(key), version))


def test_finds_a_row_that_was_moved_to_a_missing_thread(store: Store) -> None:
    for place in store.places:
        fault = store.fault(("UPDATE event SET stream = 99 WHERE position = ?", (place.position,)))
        check_fault(fault, (place.thread_id, place.version), ("#99", place.version))


def test_finds_a_row_below_all_versions(store: Store) -> None:
    for place in store.places:
        lowest = "UPDATE event SET version = -9223372036854775808 WHERE position = ?"
        check_fault(
            store.fault((lowest, (place.position,))), (place.thread_id, -(2**63)), (place.thread_id, place.version)
        )


def test_finds_a_name_that_is_not_text_and_a_digest_that_is_not_bytes(store: Store) -> None:
    for key in store.streams:
        assert store.fault(("UPDATE stream SET name = CAST('x' AS BLOB) WHERE id = ?", (key,))) is not None
    for place in store.places:
        fault = store.fault(("UPDATE event SET digest = 0 WHERE position = ?", (place.position,)))
        check_fault(fault, (place.thread_id, place.version))


def test_finds_a_copied_row(store: Store) -> None:
    for key, head in store.heads.items():
        sql = (
            "INSERT INTO event (stream, version, type, state, hash) "
            "SELECT stream, version + 1, type, state, hash FROM event WHERE stream = ? AND version = ?"
        )
        check_fault(store.fault((sql, (key, head))), (store.thread(key), head + 1))


# Changed streams


def test_finds_a_changed_or_removed_parent_or_cut_of_a_fork(store: Store) -> None:
    for key in store.forks:
        cut = store.first[key] - 1
        parent = store.raw.execute("SELECT parent FROM stream WHERE id = ?", (key,)).fetchone()[0]
        changes: list[str] = ["parent = NULL", "cut = NULL", "parent = NULL, cut = NULL", "cut = 'text'", "parent = 99"]
        changes += [f"parent = {other}" for other in store.streams if other != parent]
        changes += [f"cut = {other}" for other in (-1, 0, 1, cut - 1, cut + 1, cut + 2, 10**12) if other != cut]
        for change in changes:
            fault = store.fault((f"UPDATE stream SET {change} WHERE id = ?", (key,)))  # noqa: S608 - made here
            check_fault(fault, (store.thread(key), cut + 1))


def test_finds_an_added_parent_or_cut(store: Store) -> None:
    for key in set(store.streams) - set(store.forks):
        changes = [f"parent = {parent}, cut = {cut}" for parent in store.streams for cut in (0, 1, 2, 5)]
        missing = ["parent = 99", "parent = 0", "parent = -1", "parent = 'q'"]
        for change in [*changes, *missing, "parent = 1", "cut = 0", "cut = 1", "parent = 99, cut = 1"]:
            fault = store.fault((f"UPDATE stream SET {change} WHERE id = ?", (key,)))  # noqa: S608 - made here
            check_fault(fault, (store.thread(key), 1))


def test_finds_swapped_names(store: Store) -> None:
    sql = "UPDATE stream SET name = ? WHERE id = ?"
    for one, two in itertools.combinations(store.streams, 2):
        changes = (sql, ("-", one)), (sql, (store.streams[one], two)), (sql, (store.streams[two], one))
        check_fault(store.fault(*changes), (store.thread(two), store.first[one]), (store.thread(one), store.first[two]))


def test_finds_a_thread_that_was_moved_to_another_tenant(store: Store) -> None:
    for key, name in store.streams.items():
        changed = name.replace("default/", "evil/").replace("acme/", "default/")
        fault = store.fault(("UPDATE stream SET name = ? WHERE id = ?", (changed, key)))
        check_fault(fault, (store.thread(key), store.first[key]))


def test_finds_a_deleted_stream(store: Store) -> None:
    for key in store.streams:
        fault = store.fault(("DELETE FROM stream WHERE id = ?", (key,)))
        children = [(store.thread(fork), store.first[fork]) for fork in store.forks]
        check_fault(fault, (f"#{key}", store.first[key]), *children)


def test_finds_faults_in_a_stream_with_a_negative_key(store: Store) -> None:
    key = next(iter(store.streams))
    fault = store.fault(
        ("UPDATE stream SET id = -5 WHERE id = ?", (key,)),
        ("UPDATE event SET stream = -5 WHERE stream = ?", (key,)),
        ("UPDATE event SET hash = x'00' WHERE stream = -5 AND version = 2", ()),
    )
    check_fault(fault, (store.thread(key), 2), *((store.thread(fork), store.first[fork]) for fork in store.forks))


# Shredding


def test_finds_a_row_that_was_shredded_without_an_event(store: Store) -> None:
    for place in store.places_of_type("message-appended"):
        state = store.value(place, "state")
        if state[:1] != b"\0":
            continue  # an event has shredded it
        remaining = stub(decode(store.streams[place.stream], place.version, "message-appended", state))
        sql = "UPDATE event SET state = ?, digest = ? WHERE position = ?"
        fault = store.fault((sql, (remaining, digest(state), place.position)))
        check_fault(fault, (place.thread_id, place.version))


def test_finds_a_digest_without_shredding(store: Store) -> None:
    for place in store.places:
        state = store.value(place, "state")
        if state[:1] == b"\0":
            fault = store.fault(("UPDATE event SET digest = ? WHERE position = ?", (digest(state), place.position)))
            check_fault(fault, (place.thread_id, place.version))


def test_finds_an_edited_stub(store: Store) -> None:
    stored = store.value(store.place("root", 5), "state")
    assert b'"o":"assistant"' in stored
    sql = "UPDATE event SET state = ? WHERE position = ?"
    edited = stored.replace(b"assistant", b"developer")
    check_fault(store.fault((sql, (edited, store.place("root", 5).position))), ("root", 5))
    side_table = store.raw.execute("SELECT state FROM remains").fetchone()[0].replace(b'"o":"user"', b'"o":"tool"')
    check_fault(store.fault(("UPDATE remains SET state = ?", (side_table,))), ("root", 2))


def test_finds_a_redaction_whose_row_has_content(store: Store) -> None:
    place = store.place("root", 5)
    name = store.streams[place.stream]
    redacted = decode(name, 5, "message-appended", store.value(place, "state"))
    text = store.place("root", 6)
    forged = decode(name, 6, "message-appended", store.value(text, "state"))._replace(
        version=5, event_id=redacted.event_id
    )
    sql = "UPDATE event SET state = ?, digest = NULL WHERE position = ?"
    check_fault(store.fault((sql, (encode(forged), place.position))), ("root", 5))


# Data outside of the chain


def test_ignores_an_unreadable_snapshot(store: Store) -> None:
    store.raw.execute("INSERT INTO snapshot VALUES (1, 3, x'ff')")
    assert store.verifier.verify().first_bad is None


@pytest.mark.parametrize(
    ("before", "after"), [('"active"', '"deleted"'), ('"T"', '"F"'), (",127,", ",128,"), ('"T",{}', '"T",{"a":1}')]
)
def test_finds_a_snapshot_that_contradicts_the_events(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "clew.db"
    with Conversations.open(f"sqlite:///{path}") as conversations:
        thread = conversations.start_thread("T", messages=[Message.user("Hello")] * 140)
        fork = thread.fork()
        fork.append([Message.user("Hello")] * 128)
        assert conversations.verify().first_bad is None
    with closing(sqlite3.connect(path)) as raw, raw:
        changed = "UPDATE snapshot SET state = CAST(replace(CAST(state AS TEXT), ?, ?) AS BLOB) WHERE version = 128"
        assert raw.execute(changed, (before, after)).rowcount == 1
    with Conversations.open(f"sqlite:///{path}") as conversations:
        fault = conversations.verify().first_bad
        assert fault is not None
        assert (fault.thread_id, fault.version) == (thread.id, 128)
        assert conversations.verify(fork.id).first_bad == fault


def test_does_not_find_a_missing_end_or_changed_positions_without_seals(store: Store) -> None:
    last = store.place("other", store.heads[next(key for key in store.streams if store.thread(key) == "other")])
    assert store.fault(("DELETE FROM event WHERE position = ?", (last.position,))) is None
    assert store.fault(("UPDATE event SET position = position + 1000 WHERE position = ?", (last.position,))) is None
    # A missing version is still found if it is the cut of a fork.
    check_fault(store.fault(("DELETE FROM event WHERE stream = 2 AND version > 5", ())), ("twig", 7))


def test_verifies_a_memory_store() -> None:
    with Conversations.open("memory:") as conversations:
        thread = conversations.start_thread(thread_id="a", messages=[Message.user("x")])
        thread.fork(thread_id="b").append(Message.user("y"))
        thread.redact(2)
        assert conversations.verify() == (2, 5, None)
        assert conversations.verify("b") == (2, 5, None)


# Blobs


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE blob SET data = CAST(data || x'00' AS BLOB)",
        "UPDATE blob SET data = CAST(data AS TEXT)",
        "UPDATE blob SET data = 7",
        "UPDATE blob SET digest = zeroblob(32)",
        "UPDATE blob SET digest = 'text'",
        "UPDATE blob SET digest = 5",
        "UPDATE blob SET rowid = -9, digest = x''",
    ],
)
def test_finds_a_blob_that_does_not_match_its_digest(store: Store, change: str) -> None:
    insertions = [("INSERT INTO blob VALUES (?, 'definition', ?)", (digest(data), data)) for data in (b"kept", b"")]
    assert store.fault(*insertions) is None
    fault = store.fault(insertions[0], (change, ()), insertions[1])
    assert fault is not None
    assert fault.thread_id.startswith("#blob:")
    assert (fault.version, fault.reason) == (0, "its bytes do not match its digest")


def test_verifying_a_thread_ignores_blobs(store: Store) -> None:
    assert store.fault(("INSERT INTO blob VALUES (x'00', 'definition', x'00')", ())) is not None
    store.raw.execute("INSERT INTO blob VALUES (x'00', 'definition', x'00')")
    assert store.verifier.verify("twig").first_bad is None
    store.raw.execute("DELETE FROM blob")


def test_does_not_return_a_changed_blob(store: Store) -> None:
    log = store.verifier._core.log
    blob = Blob(digest(b"kept"), "content", b"kept")
    log.submit(Write([], {}, blobs=[blob])).outcome.result()
    assert log.blob(blob.digest) == blob
    store.raw.execute("UPDATE blob SET data = x'00'")
    with pytest.raises(CorruptEventError, match=rf"{blob.digest.hex()} is damaged"):
        log.blob(blob.digest)
    store.raw.execute("DELETE FROM blob")

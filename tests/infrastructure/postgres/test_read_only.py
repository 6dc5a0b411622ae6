"""PostgreSQL databases that are opened for reading, by a user who may write and by one who may not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import login

from clew import Conversations, Message
from clew.cli import main
from clew.domain.errors import ReadOnlyStoreError, StoreSchemaError, StoreUrlError
from clew.infrastructure.inmemory.vectors import OverlaidVectors
from clew.infrastructure.stores import store_at

COUNTS = "SELECT (SELECT count(*) FROM clew_event), (SELECT max(position) FROM clew_generation WHERE live)"


@pytest.fixture
def filled(postgres: str) -> str:
    with Conversations.open(postgres) as conversations:
        thread = conversations.start_thread(thread_id="refund", messages=[Message.user("It is lost.")])
        thread.checkpoint("lost")
        conversations.wait(conversations.position())
    return postgres


@pytest.mark.parametrize("by_url", [False, True])
@pytest.mark.parametrize("user", [lambda url: url, lambda url: login(url, "pg_read_all_data")], ids=["owner", "reader"])
def test_everything_can_be_read_and_nothing_written(filled: str, user: Callable[[str], str], *, by_url: bool) -> None:
    before = ask(filled, COUNTS)
    url = user(filled)
    if by_url:
        url += f"{'&' if '?' in url else '?'}mode=ro"
    with Conversations.open(url, read_only=not by_url) as conversations:
        assert [each.id for each in conversations.threads()] == ["refund"]
        assert [hit.version for hit in conversations.search("lost")] == [2]
        assert len(list(conversations.audit())) == 3
        assert conversations.verify().first_bad is None
        thread = conversations.thread("refund")
        assert [message.text for message in thread.history(at="lost")] == ["It is lost."]
        with pytest.raises(ReadOnlyStoreError, match="read-only here"):
            thread.append(Message.user("More"))
        with pytest.raises(ReadOnlyStoreError):
            conversations.start_thread()
        with pytest.raises(ReadOnlyStoreError):
            conversations._core.models.projector.rebuild("search").__next__()
        with pytest.raises(ReadOnlyStoreError):
            conversations._core.models._store.claim("worker", ["search"], 1)
        assert isinstance(conversations._core.vectors, OverlaidVectors)
    assert ask(filled, COUNTS) == before


def test_no_tables_are_created(postgres: str) -> None:
    with pytest.raises(StoreSchemaError, match="tables do not exist"):
        Conversations.open(postgres, read_only=True)
    assert not ask(postgres, "SELECT 1 FROM pg_class WHERE relname = 'clew_meta'")


def test_the_command_reads_with_the_mode_in_the_url(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{filled}{'&' if '?' in filled else '?'}mode=ro"
    assert main(["--db", url, "show", "refund"]) == 0
    assert "It is lost." in capsys.readouterr().out
    assert main(["--db", url, "label", "refund", "a=1"]) == 1
    assert "read-only here" in capsys.readouterr().err


def test_another_mode_is_refused() -> None:
    with pytest.raises(StoreUrlError, match="mode must be ro or rw"):
        store_at("postgresql://user@host/database?mode=rwc")
    with closing(store_at("postgresql://user@host/database?mode=ro&sslmode=require").open_vectors()):
        pass

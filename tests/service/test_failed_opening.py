"""A service that fails to open leaves nothing open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.sqlite.store import SQLiteStore


@pytest.mark.parametrize("failing", ["open_projections", "open_vectors"])
def test_closes_the_log_when_another_part_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    closed: list[str] = []

    def recording_close(name: str) -> Any:
        open_part = getattr(SQLiteStore, name)

        def opened(*args: Any, **kwargs: Any) -> Any:
            part = open_part(*args, **kwargs)
            close = part.close

            def closing() -> None:
                closed.append(name)
                close()

            monkeypatch.setattr(part, "close", closing)
            return part

        return opened

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailableError("gone")

    for name in ("open_log", "open_projections"):
        monkeypatch.setattr(SQLiteStore, name, recording_close(name))
    monkeypatch.setattr(SQLiteStore, failing, fail)
    with pytest.raises(StoreUnavailableError, match="gone"):
        Conversations.open(f"sqlite:///{tmp_path}/clew.db")
    assert closed == {"open_projections": ["open_log"], "open_vectors": ["open_projections", "open_log"]}[failing]

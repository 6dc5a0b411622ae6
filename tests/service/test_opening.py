"""Opening a service: what cannot be opened leaves nothing open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.infrastructure.sqlite.store import SQLiteStore


@pytest.mark.parametrize("failing", ["open_projections", "open_vectors"])
def test_a_log_is_closed_when_the_rest_of_a_store_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    closed: list[str] = []

    def noted(name: str) -> Any:
        open_part = getattr(SQLiteStore, name)

        def opened(*given: Any, **more: Any) -> Any:
            made = open_part(*given, **more)
            close = made.close

            def closing() -> None:
                closed.append(name)
                close()

            monkeypatch.setattr(made, "close", closing)
            return made

        return opened

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailableError("gone")

    for name in ("open_log", "open_projections"):
        monkeypatch.setattr(SQLiteStore, name, noted(name))
    monkeypatch.setattr(SQLiteStore, failing, fail)
    with pytest.raises(StoreUnavailableError, match="gone"):
        Conversations.open(f"sqlite:///{tmp_path}/clew.db")
    assert closed == {"open_projections": ["open_log"], "open_vectors": ["open_projections", "open_log"]}[failing]

"""The service for threads of control: threads, forks, checkpoints, rewinds and histories. Synchronous."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from clew.domain.decisions import Start
from clew.domain.importing import Failure, ImportReport, Item
from clew.domain.json_values import JsonObject
from clew.domain.messages import Message
from clew.domain.names import check_id
from clew.domain.ports import Verdict
from clew.infrastructure import clock
from clew.infrastructure.conversation_files import read_conversations
from clew.infrastructure.urls import open_log
from clew.service import exporting, finding, importing, reading, writing
from clew.service.core import Core, new_core
from clew.service.feeds import store_feed
from clew.service.operations import run
from clew.service.reading import ThreadSummary
from clew.service.subscription import Subscription
from clew.threads import LocalThread

PAGE = 100


class Conversations:
    """All threads of one tenant in one store. Use it from as many threads as you like; close it when done."""

    def __init__(self, core: Core, live: weakref.WeakSet[Subscription] | None = None) -> None:
        self._core = core
        self._live: weakref.WeakSet[Subscription] = weakref.WeakSet() if live is None else live

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///clew.db",
        *,
        tenant: str = "default",
        create: bool = True,
        now: Callable[[], int] = clock.now,
    ) -> Self:
        """Open a store by its URL.

        ``sqlite:///file.db`` (relative), ``sqlite:////file.db`` (absolute) or ``memory:``. Without ``create`` a
        database that is not there is a StoreUnavailableError, and is not made. ``now`` gives microseconds since 1970
        (UTC). Raises StoreUrlError, StoreSchemaError, StoreUnavailableError or, for the tenant, InvalidNameError.
        """
        check_id(tenant, "tenant")
        return cls(new_core(open_log(url, create=create), tenant, now))

    def acting_as(self, actor: str | None) -> Conversations:
        """The same service with this actor on every call."""
        return Conversations(self._core.acting_as(actor), self._live)

    def start_thread(
        self,
        title: str | None = None,
        *,
        thread_id: str | None = None,
        labels: JsonObject | None = None,
        metadata: JsonObject | None = None,
        messages: Sequence[Message] = (),
        actor: str | None = None,
    ) -> LocalThread:
        """Begin a thread, with its first messages if there are any, in one commit. Raises ThreadExistsError."""
        intent = Start(title, labels or {}, metadata or {}, None, tuple(messages))
        return self._thread(run(writing.start(self._core, thread_id, intent, actor)))

    def open_thread(self, thread_id: str, *, actor: str | None = None) -> LocalThread:
        """The thread of that id, begun if it is not there."""
        run(writing.open_or_start(self._core, thread_id, actor))
        return self._thread(thread_id)

    def thread(self, thread_id: str) -> LocalThread:
        """The thread of that id. Raises UnknownThreadError."""
        run(reading.existing(self._core, thread_id))
        return self._thread(thread_id)

    def find(self, prefix: str) -> str:
        """The id of the one thread that is named so, or else whose id begins so.

        Raises UnknownThreadError, AmbiguousThreadError or InvalidNameError.
        """
        return run(finding.find(self._core, prefix))

    def threads(self) -> Iterator[ThreadSummary]:
        """Every thread, forks and deleted ones too, in the order in which they were begun; read a page at a time."""
        after: int | None = 0
        while after is not None:
            found, after = run(reading.summaries(self._core, after, PAGE))
            yield from found

    def import_files(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import OpenAI chat messages from JSON files, JSON lines or directories of them; again adds nothing.

        What cannot be imported is in the report's ``failed``, and the rest is imported. Raises ImportFormatError for a
        path that is not there or, when it is the only one, holds no conversations.
        """
        found = (paths,) if isinstance(paths, str | Path) else paths
        return self.import_items(read_conversations(found), actor=actor, progress=progress)

    def import_items(
        self,
        items: Iterable[Item | Failure],
        *,
        actor: str | None = None,
        progress: Callable[[ImportReport], None] | None = None,
    ) -> ImportReport:
        """Import conversations that were read already, each when its turn comes; raises what their iterator raises."""
        operation = importing.import_conversations(self._core, iter(items), actor=actor, progress=progress)
        return run(operation)

    def export(self, thread_ids: str | Iterable[str] | None = None, *, forks: bool = False) -> Iterator[JsonObject]:
        """Conversations in the OpenAI chat format, each as it was imported.

        Without ids the imported threads in import order, then the others by creation; without deleted ones and, unless
        ``forks`` is true, without forks.
        """
        named = (thread_ids,) if isinstance(thread_ids, str) else thread_ids
        for thread_id in named or ():
            yield run(exporting.export_thread(self._core, thread_id))
        cursor = exporting.Cursor() if thread_ids is None else None
        while cursor is not None:
            page = run(exporting.export_page(self._core, cursor, forks=forks))
            yield from page.conversations
            cursor = page.next

    def subscribe(self, *, after: int = 0) -> Subscription:
        """Every event of every thread from a position on, and then those that come, as they come."""
        return Subscription(self._core, store_feed(self._core, after), self._live)

    def verify(self, thread_id: str | None = None) -> Verdict:
        """Recompute the hash chain: of a thread with its ancestors, or of everything in the store."""
        return run(reading.verify(self._core, thread_id))

    def close(self) -> None:
        """Write what was submitted, end the subscriptions and let go of the store."""
        for subscription in list(self._live):
            subscription.close()
        self._core.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _thread(self, thread_id: str) -> LocalThread:
        return LocalThread(self._core, self._live, thread_id)

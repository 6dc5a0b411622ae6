"""Threads as documents, awaited: what a thread and an engine of threads have of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from clew.domain.json_values import JsonObject
from clew.domain.models.client import ThreadKind
from clew.domain.runs.ports import OnExisting
from clew.service import thread_documents
from clew.service.async_operations import drive
from clew.service.core import Core

T_co = TypeVar("T_co", covariant=True)


class SerializedThread:
    """A thread that can be written as a document."""

    id: str
    _core: Core

    async def serialize(self) -> JsonObject:
        """The thread with its whole past as one JSON object, to be kept or sent: ``json.dump`` takes it.

        ``restore_thread`` and ``agent.deserialize_thread`` make the thread of it again, in any store. It has no
        instructions and no tool schemas of agents, and no secrets: a state of a component that looks like a credential
        raises CredentialError. Raises CorruptEventError for a thread that does not verify.
        """
        return await drive(thread_documents.serialize(self._core, self.id))


class RestoresThreads(ABC, Generic[T_co]):
    """An engine, as far as it makes threads of documents."""

    _core: Core

    async def restore_thread(
        self,
        document: JsonObject,
        *,
        on_existing: OnExisting = "raise",
        as_new: bool = False,
        actor: str | None = None,
    ) -> T_co:
        """The thread that a document holds, with its id, its events and its hashes, as ``serialize`` has written it.

        Everything in it is checked before anything is stored, and all of it is stored at once. What the store has
        already stays as it is; where the thread has gone on since, ThreadAheadError is raised, or with
        ``on_existing="fork"`` a fork at the document's version is returned. With ``as_new`` a new thread is begun with
        the messages and the states on the document's path. Raises ThreadDocumentError for what is not as it was
        written, and ThreadDivergedError for a thread that is there with another past.
        """
        restoring = thread_documents.restore(self._core, document, on_existing=on_existing, as_new=as_new, actor=actor)
        return self._thread(*(await drive(restoring)))

    @abstractmethod
    def _thread(self, thread_id: str, kind: ThreadKind) -> T_co:
        """The thread of that id and kind."""

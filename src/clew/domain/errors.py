"""Clew's errors, as one tree; those of runs are in ``domain/runs/errors.py``.

ClewError
├── InvalidContentError          the content cannot be stored and come back equal
├── InvalidNameError             not a valid id, tenant or checkpoint name
├── InvalidTimeError             a time without a zone, or not a time
├── InvalidAuthorizeError        authorize is not a function, or answers neither True nor False
├── NotAuthorizedError           the caller may not read what was requested
├── UnknownThreadError           no thread with that id
├── AmbiguousThreadError         more than one thread's id begins with this prefix
├── UnknownVersionError          the thread has no such version, message or moment
├── UnknownCheckpointError       the thread has no checkpoint with that name
├── ThreadExistsError            the id is already used
│   └── ThreadAheadError         … by the same thread, which has newer events than the document
├── CheckpointExistsError        the checkpoint name is already used along the lineage
├── ThreadStatusError            the thread's status does not allow it
│   └── ThreadDeletedError       … because the thread is deleted
├── NotRedactableError           the version holds no message that can be redacted
├── ConflictError                another writer was first
├── IdempotencyKeyReusedError    the key was used with other content
├── InvalidSearchError           a search without search terms
├── ImportFormatError            a file or a conversation that cannot be imported
├── ThreadDocumentError          not a thread document, or a changed one
├── ThreadDivergedError          the store has this thread with another past
├── InvalidProjectionError       a projection with an invalid declaration
├── UnknownProjectionError       no projection with that name
├── ProjectionBehindError        the projection has not reached the requested position
├── ScopeError                   not a valid scope or namespace, or the caller may not write to it
├── UnknownFactError             the scope has no live fact with that id
├── UnknownDocumentError         the namespace has no document with that id or link
├── FactRefusedError             the scope's screen refuses the fact
├── EmbeddingError               the embedder gave no vectors
│   └── EmbeddingMismatchError   … or vectors of another model or size than the scope's
├── MemoryServiceError           an external memory service failed
├── ReducerError                 a reducer returned something that no request can be made of
├── HistoryStoreError            a history store failed
│   ├── HistoryStoreSharedError  two threads would be kept in one place
│   └── HistoryStoreContractError  a history store breaks the contract
├── CredentialError              something that looks like a credential would be stored or shown
└── StoreError                   the store cannot do what was requested
    ├── StoreUrlError            not the URL of a store
    ├── StoreSchemaError         not a Clew database, or a newer schema
    ├── StoreUnavailableError    the store cannot be opened, read or written
    ├── TenantRequiredError      the database separates tenants, and no tenant was named
    ├── ShardError               a request to a directory of shards cannot be fulfilled
    ├── CorruptEventError        stored bytes that are not an event
    └── ClosedError              used after close()

Each message says what was requested, what was found and what to do.
"""

from __future__ import annotations

from shlex import quote


class ClewError(Exception):
    """The root of all errors that Clew raises on purpose."""


class InvalidContentError(ClewError):
    """What was given cannot be stored and come back equal: not JSON, too deep, too large or not Unicode."""


class InvalidNameError(ClewError):
    """An id, a tenant or a checkpoint name that Clew does not take."""


class InvalidTimeError(ClewError):
    """A time without a zone, so that it names no moment."""


class InvalidAuthorizeError(ClewError):
    """``authorize`` is no function that returns True or False."""


class NotAuthorizedError(ClewError):
    """Who acts may not do that with the thread. It does not tell whether there is a thread of that id.

    Attributes: ``actor`` (None where nobody acts), ``action`` and ``thread_id``, None for what is of no thread.
    """

    def __init__(self, actor: str | None, action: str, thread_id: str | None) -> None:
        who = "Nobody in particular" if actor is None else f"{actor!r}"
        what = "what is of no one thread" if thread_id is None else f"thread {thread_id!r}, if there is one"
        asked = {"memory": "use memory", "rows": "read the rows of projections"}.get(action) or f"{action} {what}"
        super().__init__(
            f"{who} may not {asked}. Act as somebody who may, with acting_as(actor), or have authorize allow it."
        )
        self.actor = actor
        self.action = action
        self.thread_id = thread_id

    def __reduce__(self) -> tuple[type, tuple[str | None, str, str | None]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.actor, self.action, self.thread_id)


class UnknownThreadError(ClewError):
    """No thread of that id is in the store."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"There is no thread {thread_id!r}. List the threads that there are, or start it first.")
        self.thread_id = thread_id


class AmbiguousThreadError(ClewError):
    """The ids of several threads begin so."""

    def __init__(self, prefix: str, candidates: list[str], *, more: bool = False) -> None:
        there = ", ".join(candidates) + (" and others" if more else "")
        super().__init__(f"More than one thread's id begins with {prefix!r}: {there}. Give more of the id.")
        self.prefix = prefix
        self.candidates = candidates


class UnknownVersionError(ClewError):
    """The thread has no such version, no such message, or had not begun at that time."""


class UnknownCheckpointError(ClewError):
    """The thread has no checkpoint of that name."""

    def __init__(self, thread_id: str, name: str, known: list[str]) -> None:
        there = "It has none." if not known else "It has: " + ", ".join(repr(k) for k in known[:10]) + "."
        super().__init__(f"Thread {thread_id!r} has no checkpoint {name!r}. {there}")
        self.thread_id = thread_id
        self.name = name


class ThreadExistsError(ClewError):
    """A thread of that id is in the store already."""

    def __init__(self, thread_id: str, found: str = "", advice: str = "Choose another id, or") -> None:
        super().__init__(f"There is already a thread {thread_id!r}{found}. {advice} open the one that is there.")
        self.thread_id = thread_id


class ThreadAheadError(ThreadExistsError):
    """The thread of a document is in the store, and has gone on since. ``there`` and ``given`` are the versions."""

    def __init__(self, thread_id: str, there: int, given: int) -> None:
        found = f", at version {there}, and the document is of version {given} of it"
        super().__init__(thread_id, found, 'Give on_existing="fork" to go on from the document, or')
        self.there = there
        self.given = given


class CheckpointExistsError(ClewError):
    """The name of the checkpoint is taken along the thread's lineage."""

    def __init__(self, thread_id: str, name: str, version: int) -> None:
        super().__init__(
            f"Thread {thread_id!r} already has a checkpoint {name!r}, at version {version}. Choose another name."
        )
        self.thread_id = thread_id
        self.name = name
        self.version = version


class ThreadStatusError(ClewError):
    """The thread's status does not allow what was asked."""

    def __init__(self, thread_id: str, status: str, asked: str, advice: str) -> None:
        super().__init__(f"Thread {thread_id!r} is {status}: {asked} is refused. {advice}")
        self.thread_id = thread_id
        self.status = status
        self.asked = asked


class ThreadDeletedError(ThreadStatusError):
    """The thread is deleted: only its events can be read."""


class NotRedactableError(ClewError):
    """The version holds no message, or one that is redacted already."""


class ConflictError(ClewError):
    """Somebody else wrote to the stream first.

    Attributes: ``stream`` (its name or the thread's id), ``expected`` and ``actual`` (versions; 0 for a stream that
    is not there).
    """

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{stream}: expected version {expected}, found version {actual}. Read what is there, then decide again."
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type, tuple[str, int, int]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.stream, self.expected, self.actual)


class IdempotencyKeyReusedError(ClewError):
    """An idempotency key that already stands for other content."""

    def __init__(self, stream: str, key: str) -> None:
        super().__init__(
            f"{stream}: the idempotency key {key!r} was used for other content. Use a new key for a new append."
        )
        self.stream = stream
        self.key = key


class InvalidSearchError(ClewError):
    """A search that asks for nothing."""


class ImportFormatError(ClewError):
    """A file, a line or a conversation that is not in the format it should have."""


class ThreadDocumentError(ClewError):
    """A document of a thread that is none, is of a newer version, or is not as it was written: says where."""


class ThreadDivergedError(ClewError):
    """A thread of a file or a document is in the store already, with another event at the same version.

    Attributes: ``thread_id``, ``version``, and the hashes of that version in hex, ``there`` (None where the thread that
    is there has no such event of its own) and as ``given``.
    """

    def __init__(
        self,
        thread_id: str,
        version: int,
        there: str | None,
        given: str,
        advice: str = "Import the file into another database to have both.",
    ) -> None:
        found = "is not an event of its own" if there is None else f"has the hash {there}"
        super().__init__(
            f"Thread {thread_id!r} is there with another past: version {version} {found}, and what was given has the "
            f"hash {given}. The thread was left as it is. {advice}"
        )
        self.thread_id = thread_id
        self.version = version
        self.there = there
        self.given = given


class InvalidProjectionError(ClewError):
    """The declaration of a projection cannot be carried out, or two have one name."""


class UnknownProjectionError(ClewError):
    """No projection of that name."""

    def __init__(self, name: str, known: list[str], *, unfilled: bool = False) -> None:
        if unfilled:
            super().__init__(
                f"Projection {name!r} was not filled yet, and is not filled from here. Let `clew project run`, or a "
                "service that may write, fill it first; where this is a standby, on its primary."
            )
            return
        there = f"There are: {', '.join(known)}." if known else "None was filled yet."
        super().__init__(
            f"There is no projection {name!r}. {there} "
            "Give it to open(projections=…) beside clew.projections.SHIPPED, or fill it with `clew project run`."
        )


class ProjectionBehindError(ClewError):
    """A projection has not come as far as was waited for."""


class StoreError(ClewError):
    """The store cannot do what was asked."""


class StoreUrlError(StoreError):
    """The URL does not name a store that Clew knows."""


class StoreSchemaError(StoreError):
    """The database belongs to another program, or to a Clew with another schema."""


class StoreUnavailableError(StoreError):
    """The store cannot be opened, read or written: missing, read-only, full, locked or broken."""


class ShardError(StoreError):
    """A shard does not exist, exists already, or accepts no new tenants."""


class TenantRequiredError(StoreError):
    """The database keeps tenants apart by itself, and the connection is on behalf of none."""


class CorruptEventError(StoreError):
    """Stored bytes that are no event of the type that the row names.

    Attributes: ``stream``, ``version`` and ``position`` of the row, None where it was not a row of the store that was
    read. What comes after it can be read: a thread's events after the version, or the store's after the position.
    """

    stream: str | None = None
    version: int | None = None
    position: int | None = None


class ClosedError(StoreError):
    """Something was used after its ``close()``."""


class ScopeError(ClewError):
    """A scope or a namespace that is none, or that is not the caller's to write: unset never means everyone's."""


class UnknownFactError(ClewError):
    """The scope holds no live fact of that id."""

    def __init__(self, scope: str, fact: str) -> None:
        super().__init__(
            f"Scope {scope!r} has no live fact {fact!r}. `clew memory list {quote(scope)} --history` shows all of them."
        )
        self.scope = scope
        self.fact = fact

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.scope, self.fact)


class UnknownDocumentError(ClewError):
    """The namespace holds no document of that id or link."""


class FactRefusedError(ClewError):
    """The scope's screen keeps the fact out; ``reason`` is what it gave as its own."""

    def __init__(self, scope: str, reason: str) -> None:
        super().__init__(f"Scope {scope!r} does not take the fact: {reason}")
        self.scope = scope
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.scope, self.reason)


class EmbeddingError(ClewError):
    """No vectors were to be had for a text. Nothing was stored."""


class EmbeddingMismatchError(EmbeddingError):
    """Vectors of another model, or of another size, than those that the scope is searched by. Nothing was stored."""


class MemoryServiceError(ClewError):
    """An external memory service that could not be reached, or refused."""


class ReducerError(ClewError):
    """A reducer gave what no request can be made of. ``reducer`` is its name; nothing was recorded."""

    def __init__(self, reducer: str, problem: str) -> None:
        super().__init__(f"The reducer {reducer} {problem}")
        self.reducer = reducer
        self.problem = problem

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.reducer, self.problem)


class HistoryStoreError(ClewError):
    """A history store that could not be reached, refused, or gave what is no list of messages."""


class HistoryStoreSharedError(HistoryStoreError):
    """Two threads of a tenant have a history store of the same state: each would be shown what the other said.

    Attributes: ``provider`` whose state it is, ``thread_id``, and ``other``, the thread that had it first.
    """

    def __init__(self, provider: str, thread_id: str, other: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has the same state of {provider!r} as thread {other!r}: both would be kept in one "
            "place. Give each thread its own: make it from ctx.tenant and ctx.thread_id."
        )
        self.provider = provider
        self.thread_id = thread_id
        self.other = other

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.provider, self.thread_id, self.other)


class HistoryStoreContractError(HistoryStoreError, AssertionError):
    """A history store does what none may do: ``rule`` is what it breaks. In a test, a failure."""

    def __init__(self, rule: str, found: str) -> None:
        super().__init__(f"The history store breaks the rule that {rule}: {found}.")
        self.rule = rule
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.rule, self.found)


class CredentialError(ClewError):
    """Something that looks like a credential was about to be stored, or given out. ``place`` says where it is."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}: it looks like {found}. Credentials are not kept in threads: leave it out, and have the process "
            "that needs it read it from its own settings."
        )
        self.place = place
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Survive pickling, as exceptions that cross processes must."""
        return type(self), (self.place, self.found)

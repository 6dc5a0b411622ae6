"""Clew's errors, as one tree; those of runs are in ``domain/runs/errors.py``.

ClewError
├── InvalidContentError          the content cannot be stored and read back unchanged
├── InvalidNameError             not a valid id, tenant or checkpoint name
├── InvalidTimeError             a time without a zone, or not a time
├── InvalidAuthorizeError        authorize is not a function, or its answer is not valid
├── NotAuthorizedError           the caller may not read what was requested
├── UnknownThreadError           no thread with that id
├── AmbiguousThreadError         more than one thread's id begins with this prefix
├── UnknownVersionError          the thread has no such version, message or moment
├── UnknownCheckpointError       the thread has no checkpoint with that name
├── ThreadExistsError            the id is already used
│   └── ThreadAheadError         … by the same thread, which has newer events than the document
├── ThreadHasForksError          a purge would also destroy what forks have inherited
├── CheckpointExistsError        the checkpoint name is already used along the lineage
├── ThreadStatusError            the thread's status does not allow it
│   └── ThreadDeletedError       … because the thread is deleted
├── NotRedactableError           the version holds no message that can be redacted
├── ConflictError                another writer was first
│   └── FactConflictError        … and changed the fact of a key
├── BatchError                   parts that cannot be in one commit, or a batch that is not stored
├── IdempotencyKeyReusedError    the key was used with other content
├── InvalidSearchError           a search without search terms
├── ImportFormatError            a file or a conversation that cannot be imported
├── ThreadDocumentError          not a thread document, or a changed one
├── ThreadDivergedError          the store has this thread with different events
├── InvalidProjectionError       a projection with an invalid declaration
├── UnknownProjectionError       no projection with that name
├── ProjectionBehindError        the projection has not reached the requested position
├── ScopeError                   not a valid scope or namespace, or the caller may not write to it
├── UnknownFactError             the scope has no live fact with that id
├── UnknownDocumentError         the namespace has no document with that id or link
├── FactRefusedError             the scope's screen refuses the fact
├── EmbeddingError               the embedder returned no valid vectors
│   └── EmbeddingMismatchError   … or vectors of another model or size than the scope's
├── MemoryServiceError           an external memory service failed
├── ReducerError                 a reducer returned a result from which no request can be built
├── HistoryStoreError            a history store failed
│   ├── HistoryStoreSharedError  two threads would be stored in one place
│   └── HistoryStoreContractError  a history store breaks the contract
├── CredentialError              something that looks like a credential would be stored or shown
└── StoreError                   the store cannot do what was requested
    ├── StoreUrlError            not the URL of a store
    ├── StoreSchemaError         not a Clew database, or a newer schema
    ├── StoreUnavailableError    the store cannot be opened, read or written
    │   └── ReadOnlyStoreError   … because it was opened only for reading
    ├── TenantRequiredError      the database separates tenants, and no tenant was named
    ├── ShardError               a request to a directory of shards cannot be fulfilled
    ├── CorruptEventError        stored bytes that are not an event
    └── ClosedError              used after close()

Each message says what was requested, what was found and what to do.
"""

from __future__ import annotations

from functools import partial
from shlex import quote
from typing import Any, Self


class ClewError(Exception):
    """The base class of all errors of Clew."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Keep the arguments for pickling."""
        error = super().__new__(cls, *arguments)
        error._arguments = arguments, options
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, to cross processes: the error is created again with the same arguments."""
        arguments, options = self._arguments
        return partial(type(self), *arguments, **options), (), self.__dict__


class InvalidContentError(ClewError):
    """The content cannot be stored and read back unchanged: not JSON, too deep, too large or not Unicode."""


class InvalidNameError(ClewError):
    """An id, a tenant or a checkpoint name that Clew does not accept."""


class InvalidTimeError(ClewError):
    """A time without a UTC offset, or outside the years 1 to 9999."""


class InvalidAuthorizeError(ClewError):
    """``authorize`` is not a plain function, its answer is neither a bool nor a filter, or a filter is not valid."""


class NotAuthorizedError(ClewError):
    """The actor does not have this permission. The error does not say whether the thread exists.

    Attributes: ``actor`` (None without an actor), ``action`` and ``thread_id`` (None for actions without a thread).
    """

    def __init__(self, actor: str | None, action: str, thread_id: str | None) -> None:
        who = "A caller without an actor" if actor is None else f"{actor!r}"
        what = "data outside single threads" if thread_id is None else f"thread {thread_id!r}, if it exists"
        request = {"memory": "use memory", "rows": "read the rows of projections"}.get(action) or f"{action} {what}"
        super().__init__(
            f"{who} may not {request}. Use acting_as(actor) with an actor who may, or allow it in authorize."
        )
        self.actor = actor
        self.action = action
        self.thread_id = thread_id


class UnknownThreadError(ClewError):
    """The store has no thread with that id."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"There is no thread {thread_id!r}. List the existing threads, or start it first.")
        self.thread_id = thread_id


class AmbiguousThreadError(ClewError):
    """The ids of several threads begin with this prefix."""

    def __init__(self, prefix: str, candidates: list[str], *, more: bool = False) -> None:
        listed = ", ".join(candidates) + (" and others" if more else "")
        super().__init__(f"More than one thread's id begins with {prefix!r}: {listed}. Give more of the id.")
        self.prefix = prefix
        self.candidates = candidates


class UnknownVersionError(ClewError):
    """The thread has no such version or message, or did not exist at that time."""


class UnknownCheckpointError(ClewError):
    """The thread has no checkpoint with that name."""

    def __init__(self, thread_id: str, name: str, known: list[str], advice: str = "") -> None:
        existing = "It has none." if not known else f"It has: {', '.join(map(repr, known[:10]))}."
        super().__init__(f"Thread {thread_id!r} has no checkpoint {name!r}. {existing}{advice and f' {advice}'}")
        self.thread_id = thread_id
        self.name = name


class ThreadExistsError(ClewError):
    """The store already has a thread with that id."""

    def __init__(self, thread_id: str, details: str = "", advice: str = "Choose another id, or") -> None:
        super().__init__(f"There is already a thread {thread_id!r}{details}. {advice} open the existing one.")
        self.thread_id = thread_id


class ThreadHasForksError(ClewError):
    """A purge would also destroy what forks have inherited.

    ``forks`` is the number of those that the actor may see, and ``hidden`` is true if there are others. Only the first
    1,000 forks are looked at; ``more`` is true if there are further ones.
    """

    def __init__(self, thread_id: str, forks: int, *, hidden: bool = False, more: bool = False) -> None:
        count = "a fork" if forks == 1 else f"{forks:,} forks"
        if more and forks:
            count = f"at least {count}"
        if hidden:
            count = f"{count}, and others that you may not see" if forks else "at least one fork that you may not see"
        super().__init__(
            f"Thread {thread_id!r} has {count}. Forks would lose what they have inherited from it. Purge it with "
            "forks=True, on the command line --forks, or purge the forks and then this thread with it."
        )
        self.thread_id = thread_id
        self.forks = forks
        self.hidden = hidden
        self.more = more


class ThreadAheadError(ThreadExistsError):
    """The store has newer versions of the document's thread. ``there`` and ``given`` are the two versions."""

    def __init__(self, thread_id: str, there: int, given: int) -> None:
        details = f", at version {there}, and the document has its version {given}"
        super().__init__(thread_id, details, 'Give on_existing="fork" to continue from the document, or')
        self.there = there
        self.given = given


class CheckpointExistsError(ClewError):
    """The checkpoint's name is already used along the thread's lineage."""

    def __init__(self, thread_id: str, name: str, version: int) -> None:
        super().__init__(
            f"Thread {thread_id!r} already has a checkpoint {name!r}, at version {version}. Choose another name."
        )
        self.thread_id = thread_id
        self.name = name
        self.version = version


class ThreadStatusError(ClewError):
    """The thread's status does not allow the request."""

    def __init__(self, thread_id: str, status: str, asked: str, advice: str) -> None:
        super().__init__(f"Thread {thread_id!r} is {status}: {asked} is refused. {advice}")
        self.thread_id = thread_id
        self.status = status
        self.asked = asked


class ThreadDeletedError(ThreadStatusError):
    """The thread is deleted: only its events can be read."""


class NotRedactableError(ClewError):
    """The version holds no message, or a message that is already redacted."""


class ConflictError(ClewError):
    """Another writer was first.

    Attributes: ``stream`` (its name or the thread's id), ``expected`` and ``actual`` (versions; 0 for a missing
    stream).
    """

    def __init__(self, stream: str, expected: int, actual: int, message: str | None = None) -> None:
        super().__init__(
            message
            or f"{stream}: expected version {expected}, found version {actual}. Read the new events, then decide again."
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class BatchError(ClewError):
    """Parts that cannot be in one commit, or a result of a batch that is not stored."""


class FactConflictError(ConflictError):
    """Another writer changed the fact of a key first.

    Attributes: ``stream`` (the scope), ``key``, ``expected`` and ``actual`` (versions of the live fact; 0 for none).
    """

    def __init__(self, scope: str, key: str, expected: int, actual: int) -> None:
        wanted, found = (f"the fact of version {version}" if version else "no fact" for version in (expected, actual))
        message = f"Scope {scope!r}, key {key!r}: expected {wanted}, found {found}. Read it again, then decide again."
        super().__init__(scope, expected, actual, message)
        self.key = key


class IdempotencyKeyReusedError(ClewError):
    """The idempotency key was used with other content."""

    def __init__(self, stream: str, key: str) -> None:
        super().__init__(
            f"{stream}: the idempotency key {key!r} was used for other content. Use a new key for a new append."
        )
        self.stream = stream
        self.key = key


class InvalidSearchError(ClewError):
    """A search without search terms."""


class ImportFormatError(ClewError):
    """A file, a line or a conversation in the wrong format."""


class ThreadDocumentError(ClewError):
    """Not a thread document, one of a newer version, or a changed one. The message says where."""


class ThreadDivergedError(ClewError):
    """The store has the thread of a file or a document with another event at the same version.

    Attributes: ``thread_id``, ``version``, and the hashes of that version in hex: ``there`` in the store (None if the
    stored thread inherits that version or does not have it) and ``given``.
    """

    def __init__(
        self,
        thread_id: str,
        version: int,
        there: str | None,
        given: str,
        advice: str = "Import the file into another database to keep both.",
    ) -> None:
        stored = "is not an event of its own" if there is None else f"has the hash {there}"
        super().__init__(
            f"Thread {thread_id!r} exists with different events: its version {version} {stored}, and the given one "
            f"has the hash {given}. The thread was not changed. {advice}"
        )
        self.thread_id = thread_id
        self.version = version
        self.there = there
        self.given = given


class InvalidProjectionError(ClewError):
    """The declaration of a projection is invalid, or two projections have the same name."""


class UnknownProjectionError(ClewError):
    """No projection has that name, or no process has filled the one that has it."""

    def __init__(self, name: str, known: list[str], *, unfilled: bool = False) -> None:
        self.name = name
        self.known = known
        if unfilled:
            super().__init__(
                f"Projection {name!r} was not built yet, and this process cannot build it. Build it with "
                "`clew project run` or a service that can write; on a standby, do so on its primary."
            )
            return
        existing = f"There are: {', '.join(known)}." if known else "No projection was built yet."
        super().__init__(
            f"There is no projection {name!r}. {existing} "
            "Add it to open(projections=…), next to clew.projections.SHIPPED, or build it with `clew project run`."
        )


class ProjectionBehindError(ClewError):
    """The projection did not reach the requested position in time."""


class StoreError(ClewError):
    """The store cannot do what was requested."""


class StoreUrlError(StoreError):
    """The URL does not name a store that Clew knows."""


class StoreSchemaError(StoreError):
    """The database belongs to another program, or to a Clew with another schema."""


class StoreUnavailableError(StoreError):
    """The store cannot be opened, read or written: missing, read-only, full, locked or broken."""


class ReadOnlyStoreError(StoreUnavailableError):
    """The store was opened only for reading."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"{store}: it is read-only here, so nothing can be written. Open it as a user who may write to it, without "
            "read_only=True and ?mode=ro."
        )


class ShardError(StoreError):
    """A shard does not exist, exists already, or accepts no new tenants."""


class TenantRequiredError(StoreError):
    """The database separates tenants, and the connection has no tenant."""


class CorruptEventError(StoreError):
    """Stored bytes that are not an event of the row's type.

    Attributes: ``stream``, ``version`` and ``position`` of the row, None if it was not read from the store. To read on,
    continue after the version in the thread, or after the position in the store.
    """

    stream: str | None = None
    version: int | None = None
    position: int | None = None


class ClosedError(StoreError):
    """Something was used after its ``close()``."""


class ScopeError(ClewError):
    """Not a valid scope or namespace, or the caller may not write to it. A missing name never selects all scopes."""


class UnknownFactError(ClewError):
    """The scope has no live fact with that id."""

    def __init__(self, scope: str, fact: str) -> None:
        super().__init__(
            f"Scope {scope!r} has no live fact {fact!r}. `clew memory list {quote(scope)} --history` shows all of them."
        )
        self.scope = scope
        self.fact = fact


class UnknownDocumentError(ClewError):
    """The namespace has no document with that id or link."""


class FactRefusedError(ClewError):
    """The scope's screen refuses the fact. ``reason`` is the screen's reason."""

    def __init__(self, scope: str, reason: str) -> None:
        super().__init__(f"Scope {scope!r} refuses the fact: {reason}")
        self.scope = scope
        self.reason = reason


class EmbeddingError(ClewError):
    """The embedder returned no valid vectors. Nothing was stored."""


class EmbeddingMismatchError(EmbeddingError):
    """Vectors of another model or size than the scope's. Nothing was stored."""


class MemoryServiceError(ClewError):
    """An external memory service cannot be reached, or refuses a request."""


class ReducerError(ClewError):
    """No request can be built from the result of a reducer. ``reducer`` is its name; nothing was recorded."""

    def __init__(self, reducer: str, problem: str) -> None:
        super().__init__(f"The reducer {reducer} {problem}")
        self.reducer = reducer
        self.problem = problem


class HistoryStoreError(ClewError):
    """A history store cannot be reached, refuses a request, or does not return a list of messages."""


class HistoryStoreSharedError(HistoryStoreError):
    """Two threads of a tenant have the same history store state, so each would see the other's messages.

    Attributes: ``provider``, which has the state, ``thread_id``, and ``other``, the thread that had the state first.
    """

    def __init__(self, provider: str, thread_id: str, other: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has the same state of {provider!r} as thread {other!r}: both would be stored in "
            "one place. Make the state of each thread from ctx.tenant and ctx.thread_id."
        )
        self.provider = provider
        self.thread_id = thread_id
        self.other = other


class HistoryStoreContractError(HistoryStoreError, AssertionError):
    """A history store breaks a rule of the contract, ``rule``. In a test it counts as a failure."""

    def __init__(self, rule: str, found: str) -> None:
        super().__init__(f"The history store breaks the rule that {rule}: {found}.")
        self.rule = rule
        self.found = found


class CredentialError(ClewError):
    """Data that looks like a credential would be stored or shown. ``place`` says where it is."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}: it looks like {found}. Threads never store credentials. Leave it out. The process that needs it "
            "must read it from its own settings."
        )
        self.place = place
        self.found = found

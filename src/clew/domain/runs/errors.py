"""The errors of agents and their runs, a branch of the tree in ``clew.domain.errors``.

ClewError
├── ModelError                     a model service did not answer
│   ├── ModelUnavailableError      it could not be reached, took too long, or failed on its side
│   ├── ModelOverloadedError       it takes no more requests for now
│   ├── ModelStreamError           its answer broke off, or what came was no answer
│   └── ModelRequestError          it refused the request
│       ├── ModelAccessError       … because of the key, or of what the key may do
│       └── ContextWindowError     … because it is larger than the model's context window
├── AnswerFormatError              an answer that is not in the format that was asked for
├── AgentConfigurationError        an agent, a client or a call that contradicts itself
│   ├── InvalidToolError           a function that cannot be a tool
│   ├── MissingExtraError          an optional package that is not installed
│   └── UnsupportedThreadError     a kind of thread that the client or the service cannot do
│       └── ServiceCannotForkError … and the service cannot fork or rewind what it holds
├── ServiceDeletionError           a thread is deleted, and the service still has its side of it
├── ToolFailedError                a tool raised, and its error is to be raised
├── RunStoppedError                a stream that was left, and is asked for more
├── RunLimitError                  a run took more rounds or time than it may
├── ApprovalPendingError           a run waits for somebody's approval
├── ApprovalNotPendingError        what was to be approved does not wait for it
├── NoOpenRunError                 there is no run to go on with
├── AgentChangedError              the agent is another than the one that began the run
├── ContextProviderError           a context provider failed, and must not
├── MissingProviderError           a context provider that served the thread, and that nobody supplied
├── RunAbandonedError              a run was given up: what its context providers are told
├── DefinitionMissingError         instructions or tool schemas that are not in the store
└── ConflictError
    ├── RunInProgressError         somebody else runs on the thread
    └── RunTakenOverError          the run was ended, or gone on with, by somebody else
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clew.domain.errors import ClewError, ConflictError


class ModelError(ClewError):
    """A model service did not answer.

    Attributes: ``status`` (of HTTP, None when there was no response), ``code`` (the service's own word for it, None if
    it gave none), ``retryable`` (whether the same request may succeed later) and ``retry_after`` (the seconds that the
    service asked to wait, None if it did not say).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


class ModelUnavailableError(ModelError):
    """The service could not be reached, took too long, or failed on its side."""


class ModelOverloadedError(ModelError):
    """The service takes no more requests for now."""


class ModelStreamError(ModelError):
    """The answer broke off, stalled, ended early, or what came was no answer."""


class ModelRequestError(ModelError):
    """The service refused the request: as it is, it will never be answered."""


class ModelAccessError(ModelRequestError):
    """The service does not take the key, or the key may not do this."""


class ContextWindowError(ModelRequestError):
    """The request is larger than the model's context window.

    Attributes: ``tokens`` of the request and ``limit`` of the model, None where the service did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        status: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.tokens = tokens
        self.limit = limit


class AnswerFormatError(ClewError):
    """An answer that is not in the format that was asked for. ``text`` is what the model said."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class AgentConfigurationError(ClewError):
    """An agent, a client or a call that contradicts itself."""


class InvalidToolError(AgentConfigurationError):
    """A function that cannot be a tool, or two tools of one name."""


class MissingExtraError(AgentConfigurationError):
    """An optional package is not installed."""

    def __init__(self, asked: str, package: str, extra: str, then: str = "") -> None:
        install = f"pip install 'clew[{extra}]'" + (f" and {then}" if then else "")
        super().__init__(f"{asked} needs the package {package!r}, which is not installed: {install}.")
        self.package = package
        self.extra = extra


class UnsupportedThreadError(AgentConfigurationError):
    """A kind of thread that the client, or the service, cannot do.

    Attributes: ``kind``, what was asked for, and ``supported``, the kinds that can be had.
    """

    def __init__(self, asked: str, kind: str, supported: Sequence[str], advice: str = "") -> None:
        can = " and ".join(supported) or "no"
        super().__init__(
            f"{asked} cannot run on a {kind} thread: it runs on {can} threads. "
            + (advice or f"Start a {supported[0] if supported else 'different'} thread for it.")
        )
        self.kind = kind
        self.supported = tuple(supported)


class ServiceCannotForkError(UnsupportedThreadError):
    """The service cannot fork or rewind what it holds; the record can be forked into a local thread.

    Attributes: ``thread_id``, and ``service_thread_id``, what the service calls it.
    """

    def __init__(self, asked: str, thread_id: str, service_thread_id: str) -> None:
        Exception.__init__(
            self,
            f"{asked}: thread {thread_id!r} is a conversation that a service holds ({service_thread_id}). That only "
            "grows: the service cannot fork it or go back in it. Fork the record into a local thread, "
            "thread.fork(kind='local') or `clew fork --local`, and go on there with a client for local threads.",
        )
        self.kind = "remote"
        self.supported = ("local",)
        self.thread_id = thread_id
        self.service_thread_id = service_thread_id


class ServiceDeletionError(ClewError):
    """A thread is deleted, and the service still has its side of it, or some of it.

    Attributes: ``thread_id``, and ``failed``, which maps what the service calls it to why it is still there.
    """

    def __init__(self, thread_id: str, failed: Mapping[str, str]) -> None:
        first, why = next(iter(failed.items()))
        super().__init__(
            f"Thread {thread_id!r} is deleted, but the service still has {len(failed)} of what it held of it, such as "
            f"{first}: {why} The thread-deleted event names them all. Delete them at the service: "
            "client.delete_service_thread(…)."
        )
        self.thread_id = thread_id
        self.failed = dict(failed)


class ToolFailedError(ClewError):
    """A tool raised, and says that its errors are to be raised; the cause is what it raised."""

    def __init__(self, tool: str, kind: str) -> None:
        super().__init__(
            f"The tool {tool!r} raised {kind}. The run ended with it, and the log has it; run again to go on."
        )
        self.tool = tool


class RunStoppedError(ClewError):
    """A stream that was left is asked for more."""

    def __init__(self) -> None:
        super().__init__("The stream was left, and the run ended with it: what came is on the log. Run again to go on.")


class RunLimitError(ClewError):
    """A run took more rounds, or more time, than it may. What it did is on the log."""


class ApprovalPendingError(ClewError):
    """A run waits for somebody's approval, or, with everything decided, for being gone on with.

    Attributes: ``thread_id`` and ``pending``, the versions of the requests.
    """

    def __init__(self, thread_id: str, pending: Sequence[int]) -> None:
        if pending:
            many = f"{len(pending)} approvals" if len(pending) > 1 else "an approval"
            what = f"waits for {many} (version {', '.join(map(str, pending))}). Approve or reject: thread.approvals()."
        else:
            what = "waits to be gone on with, now that everything is decided: agent.continue_run(thread)."
        super().__init__(f"The run on thread {thread_id!r} {what} Or run with abandon_run=True to give it up.")
        self.thread_id = thread_id
        self.pending = tuple(pending)


class ApprovalNotPendingError(ClewError):
    """What was to be approved does not wait for it: it was decided, or its run is over."""

    def __init__(self, thread_id: str, version: int) -> None:
        super().__init__(
            f"Version {version} of thread {thread_id!r} is no approval that is waited for: it was decided already, "
            "or its run is over, or it was asked for before a fork or a rewind. See thread.approvals()."
        )
        self.thread_id = thread_id
        self.version = version


class NoOpenRunError(ClewError):
    """There is no run to go on with."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"Thread {thread_id!r} has no open run. Use agent.run(…) to begin one.")
        self.thread_id = thread_id


class AgentChangedError(ClewError):
    """The agent is another than the one that ran on the thread before. ``changed`` names what differs."""

    def __init__(self, thread_id: str, changed: Sequence[str]) -> None:
        super().__init__(
            f"Thread {thread_id!r} was last run by another agent: {', '.join(changed)} differ. Use that agent, or "
            "on_changed_agent='warn' to go on with this one."
        )
        self.thread_id = thread_id
        self.changed = tuple(changed)


class AgentChangedWarning(UserWarning):
    """The agent is another than the one that ran on the thread before, and goes on all the same."""


class DefinitionMissingError(ClewError):
    """Instructions or tool schemas of a request are not in the store. ``digests`` names them, in hex."""

    def __init__(self, thread_id: str, version: int, digests: Sequence[str]) -> None:
        super().__init__(
            f"The request of version {version} of thread {thread_id!r} cannot be rebuilt: the store does not have "
            f"{len(digests)} of its definitions ({', '.join(each[:12] for each in digests)}). Open the thread with an "
            "agent that has the same instructions and tools: agent.thread(id)."
        )
        self.thread_id = thread_id
        self.version = version
        self.digests = tuple(digests)


class RunInProgressError(ConflictError):
    """Somebody else runs on the thread. ``holder`` names who, as far as is known."""

    def __init__(
        self,
        stream: str,
        holder: str,
        advice: str = "Wait for it (on_conflict='wait'), run on a fork (on_conflict='fork'), or try again later.",
    ) -> None:
        Exception.__init__(self, f"{stream}: a run is under way ({holder}). {advice}")
        self.stream = stream
        self.holder = holder
        self.expected = self.actual = 0
        self._advice = advice


class RunTakenOverError(ConflictError):
    """The run was ended, or gone on with, by somebody else: nothing more is recorded of it here."""

    def __init__(self, stream: str, run_id: str) -> None:
        Exception.__init__(
            self,
            f"{stream}: the run {run_id} is not this caller's any more: it was abandoned, rewound, ended or gone on "
            "with elsewhere. Read what is there, then run again.",
        )
        self.stream = stream
        self.run_id = run_id
        self.expected = self.actual = 0


class ContextProviderError(ClewError):
    """A context provider failed, or took too long, and its policy is to fail. The cause is what it raised."""

    def __init__(self, provider: str, hook: str, why: str) -> None:
        super().__init__(
            f"Context provider {provider!r} failed in {hook}: {why} What was recorded until then stands. "
            "To go on without it, give it on_failure='continue'."
        )
        self.provider = provider
        self.hook = hook


class MissingProviderError(ClewError):
    """Context providers served the thread before, and nobody supplied them. What they keep there stays."""

    def __init__(self, thread_id: str, providers: Sequence[str]) -> None:
        super().__init__(missing_words(thread_id, providers))
        self.thread_id = thread_id
        self.providers = list(providers)


class MissingProviderWarning(UserWarning):
    """The same, where it goes on without them."""


def missing_words(thread_id: str, providers: Sequence[str]) -> str:
    """What is said of providers that nobody supplied."""
    named = ", ".join(map(repr, providers))
    return (
        f"Thread {thread_id!r} was served by {named}, which nobody supplied; what is kept of it stays. Give the agent "
        "context_providers=…, or the thread: thread.context_providers.add(…)."
    )


class RunAbandonedError(ClewError):
    """A run was given up by somebody else: what its context providers are told."""

    def __init__(self, thread_id: str, run_id: str, reason: str) -> None:
        super().__init__(f"Run {run_id!r} of thread {thread_id!r} was given up: {reason}.")
        self.run_id = run_id
        self.reason = reason

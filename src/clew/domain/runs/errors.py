"""The errors of agents and their runs, a branch of the tree in ``clew.domain.errors``.

ClewError
├── ModelError                     a model service did not answer
│   ├── ModelUnavailableError      it could not be reached, took too long, or failed on its side
│   ├── ModelOverloadedError       it accepts no more requests for now
│   ├── ModelStreamError           its answer broke off, or was not an answer
│   ├── RequestAlteredError        the request was altered on its way to it
│   └── ModelRequestError          it refused the request
│       ├── ModelAccessError       … because of the key or its permissions
│       ├── ContextWindowError     … because it is larger than the model's context window
│       └── ServiceThreadExpiredError … because it no longer has what the thread continues
├── AnswerFormatError              an answer is not in the requested format
├── AgentConfigurationError        an agent, a client or a call has wrong or contradictory arguments
│   ├── InvalidToolError           a function cannot be a tool
│   │   └── ToolNameTakenError     … a context provider gives one with the name of another tool
│   ├── MissingExtraError          an optional package is not installed
│   └── UnsupportedThreadError     the client or the service does not support this kind of thread
│       └── ServiceCannotForkError … the service cannot fork or rewind its conversation
├── ServiceDeletionError           a thread is deleted, but not at its service
├── ToolFailedError                a tool raised an error that ends the run
├── UnansweredCallError            a service waits for a result that the agent cannot give
├── MCPServerError                 an MCP server cannot be reached, or its answer cannot be used
├── MCPToolError                   a tool of an MCP server has reported an error
├── ToolsChangedError              the tools of a server are not those that a thread has used before
├── RunStoppedError                a stream is read again after the caller left it
├── RunLimitError                  a run took more rounds or more time than allowed
├── GuardrailTrippedError          a guardrail stopped the run
├── ApprovalPendingError           a run waits for an approval
├── ApprovalNotPendingError        the call does not wait for an approval
├── NoOpenRunError                 the thread has no run to continue
├── UnknownRunError                the thread has no such run
├── RunNotCompletedError           a run that is asked for again, or followed, ended without an answer
├── AgentChangedError              the agent differs from the one that began the run
├── MediaNotSentError              a wire format cannot send media, and the agent is strict
├── ContextProviderError           a context provider failed, and its policy is to fail the run
├── ProviderContractError          a context provider breaks a rule for providers
├── ModelClientContractError       a model client breaks a rule for clients
├── MissingProviderError           a context provider that the thread used before is missing
├── RunAbandonedError              a run was abandoned: the error that context providers get
├── DefinitionMissingError         instructions or tool schemas are not in the store
├── UnknownWireFormatError         the format of a recorded request is not installed
└── ConflictError
    ├── RunInProgressError         another run is in progress on the thread
    └── RunTakenOverError          another process ended or continued the run
        └── RunInterruptedError    … or may continue it, because this one has closed its engine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from clew.domain.errors import ClewError, ConflictError
from clew.domain.json_values import one_line
from clew.domain.models.media import UnsentMedia


class ModelError(ClewError):
    """A model service did not answer.

    Attributes: ``status`` (of HTTP, None when there was no response), ``code`` (the service's error code, None if
    it sent none), ``retryable`` (whether the same request may succeed later), ``retry_after`` (the seconds to wait,
    None if the service did not say) and ``sent`` (whether the service has received the request, None if that is not
    known; a service that answers with a status has).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        sent: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.sent = True if status is not None else sent
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


class ModelUnavailableError(ModelError):
    """The service could not be reached, took too long, or failed on its side."""


class ModelOverloadedError(ModelError):
    """The service accepts no more requests for now."""


class ModelStreamError(ModelError):
    """The answer broke off, stalled, ended early, or was not an answer."""


class RequestAlteredError(ModelError):
    """Other bytes were sent than those on the log. The answer was not used."""


class ModelRequestError(ModelError):
    """The service refused the request. Sending it again unchanged does not help."""


class ModelAccessError(ModelRequestError):
    """The service does not accept the key, or the key lacks a permission."""


class ContextWindowError(ModelRequestError):
    """The request is larger than the model's context window.

    Attributes: ``tokens`` of the request and ``limit`` of the model, None if the service did not say.
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


class ServiceThreadExpiredError(ModelRequestError):
    """The service no longer has the response or the conversation that a remote thread continues."""


class RemoteTaskError(ModelError):
    """The task of a remote agent failed or was cancelled. A run that continues begins another task."""


class AnswerFormatError(ClewError):
    """An answer is not in the requested format. ``text`` is the text of the answer."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class AgentConfigurationError(ClewError):
    """An agent, a client or a call has wrong or contradictory arguments."""


class InvalidToolError(AgentConfigurationError):
    """A function cannot be a tool, or two tools have the same name."""


class ToolNameTakenError(InvalidToolError):
    """A context provider, such as an MCP server, gives a tool with the name of another tool of the run."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Its tool {name!r} has the name of another tool of the run. Rename one: tool(function, name='…'), or give "
            "the tools of an MCP server other names: MCPTools.http(…, prefix='…')."
        )
        self.name = name


class MissingExtraError(AgentConfigurationError):
    """An optional package is not installed."""

    def __init__(self, asked: str, package: str, extra: str, then: str = "") -> None:
        install = f"pip install '.[{extra}]' in Clew's source folder" + (f" and {then}" if then else "")
        super().__init__(f"{asked} needs the package {package!r}, which is not installed: {install}.")
        self.package = package
        self.extra = extra


class UnsupportedThreadError(AgentConfigurationError):
    """The client or the service does not support this kind of thread.

    Attributes: ``kind``, the requested kind, and ``supported``, the supported kinds.
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
    """The service cannot fork or rewind its conversation; Clew's record can be forked into a local thread.

    Attributes: ``thread_id``, and ``service_thread_id``, the service's id of the conversation.
    """

    def __init__(self, asked: str, thread_id: str, service_thread_id: str) -> None:
        Exception.__init__(
            self,
            f"{asked}: thread {thread_id!r} is a conversation that a service holds ({service_thread_id}). That only "
            "grows: the service cannot fork or rewind it. Fork the record into a local thread, "
            "thread.fork(kind='local') or `clew fork --local`, and continue there with a client for local threads.",
        )
        self.kind = "remote"
        self.supported = ("local",)
        self.thread_id = thread_id
        self.service_thread_id = service_thread_id


class ServiceDeletionError(ClewError):
    """A thread is deleted in Clew, but its service still has some of its conversations or responses.

    Attributes: ``thread_id``, and ``failed``, a mapping from the service's ids to the reasons.
    """

    def __init__(self, thread_id: str, failed: Mapping[str, str]) -> None:
        first, why = next(iter(failed.items()))
        super().__init__(
            f"Thread {thread_id!r} is deleted, but the service still has {len(failed)} of its conversations or "
            f"responses, such as {first}: {why} The thread-deleted event names them all. Delete them at the service: "
            "client.delete_service_thread(…)."
        )
        self.thread_id = thread_id
        self.failed = dict(failed)


class ToolFailedError(ClewError):
    """A tool with ``errors='raise'`` raised. The cause is its error."""

    def __init__(self, tool: str, kind: str) -> None:
        super().__init__(
            f"The tool {tool!r} raised {kind}, which ended the run. It is on the log; run again to continue."
        )
        self.tool = tool


class UnansweredCallError(ClewError):
    """A service waits for the result of a call of one of its own tools, and the agent cannot give it.

    ``call`` is the name of the tool, or the kind of the call.
    """

    def __init__(self, call: str, advice: str) -> None:
        super().__init__(f"The service waits for the result of {call}, which the agent cannot give. {advice}")
        self.call = call


class MCPServerError(ClewError):
    """An MCP server cannot be reached, or its answer cannot be used. ``server`` is its name."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"The MCP server {server!r} failed. {reason}")
        self.server = server


class MCPToolError(ClewError):
    """A tool of an MCP server has reported an error. The text is the server's, for the model."""


class ToolsChangedError(ClewError):
    """The tools of an MCP server are not those that the thread has used before, and ``on_changed`` is ``"raise"``.

    Attributes: ``server``, its name, ``thread_id``, and ``changes``, which names the tools.
    """

    def __init__(self, server: str, thread_id: str, changes: Sequence[str]) -> None:
        super().__init__(
            f"{self.words(server, thread_id, changes)} Read their definitions. To accept them, run once with "
            "on_changed='warn'."
        )
        self.server = server
        self.thread_id = thread_id
        self.changes = tuple(changes)

    @staticmethod
    def words(server: str, thread_id: str, changes: Sequence[str]) -> str:
        """What has changed, in words."""
        named = one_line("; ".join(changes), 500)
        return f"Thread {thread_id!r} has used the MCP server {server!r} with other tools ({named})."


class ToolsChangedWarning(UserWarning):
    """The tools of an MCP server are not those that the thread has used before, and the run continues."""


class RunStoppedError(ClewError):
    """A stream is read again after the caller left it."""

    def __init__(self) -> None:
        super().__init__("The stream was left, which ended the run. What arrived is on the log; run again to continue.")


class RunLimitError(ClewError):
    """A run took more rounds or more time than allowed. What it did is on the log."""


class GuardrailTrippedError(ClewError):
    """A guardrail stopped the run. Attributes: ``guardrail``, its name; ``stage``; and ``reason``.

    The log has what was stopped. The history does not: it is as before the run or, after the model, before its answer.
    """

    def __init__(self, guardrail: str, stage: Literal["before", "beside", "after"], reason: str) -> None:
        super().__init__(f"The guardrail {guardrail!r} ({stage} the model) stopped the run: {reason}")
        self.guardrail = guardrail
        self.stage = stage
        self.reason = reason


class ApprovalPendingError(ClewError):
    """A run waits for approvals or, with all of them decided, for ``continue_run``.

    Attributes: ``thread_id`` and ``pending``, the versions of the requests.
    """

    def __init__(self, thread_id: str, pending: Sequence[int]) -> None:
        if pending:
            many = f"{len(pending)} approvals" if len(pending) > 1 else "an approval"
            what = f"waits for {many} (version {', '.join(map(str, pending))}). Approve or reject: thread.approvals()."
        else:
            what = "can continue, because everything is decided: agent.continue_run(thread)."
        super().__init__(f"The run on thread {thread_id!r} {what} Or run with abandon_run=True to give it up.")
        self.thread_id = thread_id
        self.pending = tuple(pending)


class ApprovalNotPendingError(ClewError):
    """The call does not wait for an approval: it was decided, or its run is over."""

    def __init__(self, thread_id: str, version: int) -> None:
        super().__init__(
            f"Version {version} of thread {thread_id!r} is not a pending approval: it was decided already, "
            "or its run is over, or it was requested before a fork or a rewind. See thread.approvals()."
        )
        self.thread_id = thread_id
        self.version = version


class NoOpenRunError(ClewError):
    """The thread has no run to continue."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"Thread {thread_id!r} has no open run. Use agent.run(…) to begin one.")
        self.thread_id = thread_id


class UnknownRunError(ClewError):
    """The thread has no such run, or no such position in it."""


class RunNotCompletedError(ClewError):
    """A run that is asked for again, or followed, has no answer.

    Attributes: ``thread_id``, ``run_id``, and ``outcome``: ``failed``, ``abandoned``, or ``interrupted`` if no process
    executes it any more.
    """

    def __init__(
        self, thread_id: str, run_id: str, outcome: Literal["failed", "abandoned", "interrupted"], reason: str
    ) -> None:
        advice = (
            "Continue it: await agent.continue_run(thread)"
            if outcome == "interrupted"
            else "Run again, with another idempotency_key if there is one"
        )
        super().__init__(f"Run {run_id} of thread {thread_id!r} was {outcome}: {reason}. {advice}.")
        self.thread_id = thread_id
        self.run_id = run_id
        self.outcome = outcome


class AgentChangedError(ClewError):
    """The agent differs from the one that ran on the thread before. ``changed`` names the differences."""

    def __init__(self, thread_id: str, changed: Sequence[str]) -> None:
        super().__init__(
            f"Thread {thread_id!r} was last run by another agent: {', '.join(changed)} differ. Use that agent, or "
            "on_changed_agent='warn' to continue with this one."
        )
        self.thread_id = thread_id
        self.changed = tuple(changed)


class AgentChangedWarning(UserWarning):
    """The agent differs from the one that ran on the thread before, and the run continues."""


class PricesFailedWarning(UserWarning):
    """A price list raised an error, so the cost of a model call is not known."""


class MediaNotSentError(ClewError):
    """A model would not receive media of the thread, and the agent has ``strict_media=True``. Nothing was sent.

    ``media`` says which: version of the message, place of the content, and media type.
    """

    def __init__(self, thread_id: str, client: str, media: Sequence[UnsentMedia]) -> None:
        super().__init__(
            f"{unsent_words(thread_id, client, media)} Convert it, ask another client, or run with strict_media=False "
            "to send words in its place, where the format has a place for them."
        )
        self.thread_id = thread_id
        self.client = client
        self.media = tuple(media)


class MediaNotSentWarning(UserWarning):
    """A model does not receive media of the thread, because its wire format cannot send it, and the run continues."""


def unsent_words(thread_id: str, client: str, media: Sequence[UnsentMedia]) -> str:
    """What media a client cannot send, in words."""
    named = ", ".join(
        f"{each.media_type} of {f'version {each.version}' if each.version else 'a context provider'}" for each in media
    )
    return f"Thread {thread_id!r}: the client {client} cannot send {named}, so the model does not receive it."


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
    """Another run is in progress on the thread. ``holder`` names it, as far as known."""

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


class RunTakenOverError(ConflictError):
    """Another process ended or continued the run. This one records nothing more of it."""

    def __init__(self, stream: str, run_id: str) -> None:
        Exception.__init__(
            self,
            f"{stream}: the run {run_id} is not this caller's any more: it was abandoned, rewound, ended "
            "or continued elsewhere. Read the thread, then run again.",
        )
        self.stream = stream
        self.run_id = run_id
        self.expected = self.actual = 0


class RunInterruptedError(RunTakenOverError):
    """This process has closed the engine of the run, which is still open: any process can continue it at once."""

    def __init__(self, stream: str, run_id: str) -> None:
        super().__init__(stream, run_id)
        text = f"{stream}: the engine was closed while the run {run_id} was in progress. The run is still open"
        self.args = (f"{text}: agent.continue_run(thread) or agent.continue_runs() continues it, in any process.",)


class ContextProviderError(ClewError):
    """A context provider failed or took too long, and its policy is to fail the run. The cause is its error."""

    def __init__(self, provider: str, hook: str, why: str, advice: str = "") -> None:
        text = f"Context provider {provider!r} failed in {hook}: {why} What was recorded until then stands. {advice}"
        super().__init__(text.rstrip())
        self.provider = provider
        self.hook = hook


class MissingProviderError(ClewError):
    """Context providers that the thread used before are missing now. Their states are kept."""

    def __init__(self, thread_id: str, providers: Sequence[str]) -> None:
        super().__init__(missing_words(thread_id, providers))
        self.thread_id = thread_id
        self.providers = list(providers)


class MissingProviderWarning(UserWarning):
    """Context providers are missing, and the run continues without them."""


def missing_words(thread_id: str, providers: Sequence[str]) -> str:
    """The message about missing providers."""
    named = ", ".join(map(repr, providers))
    return (
        f"Thread {thread_id!r} used the context providers {named} before, and they are missing now. Their states are "
        "kept. Give the agent context_providers=…, or the thread: thread.context_providers.add(…)."
    )


class RunAbandonedError(ClewError):
    """A run was abandoned. Its context providers get this error."""

    def __init__(self, thread_id: str, run_id: str, reason: str) -> None:
        super().__init__(f"Run {run_id!r} of thread {thread_id!r} was abandoned: {reason}.")
        self.run_id = run_id
        self.reason = reason


class ProviderContractError(ClewError, AssertionError):
    """A context provider breaks a rule for all providers, the ``rule``. In a test it is a failure."""

    def __init__(self, provider: str, rule: str, found: str) -> None:
        super().__init__(f"Context provider {provider} breaks the rule that {rule}: {found}")
        self.provider = provider
        self.rule = rule


class ModelClientContractError(ClewError, AssertionError):
    """A model client breaks a rule for all clients, the ``rule``. In a test it is a failure."""

    def __init__(self, client: str, rule: str, found: str) -> None:
        super().__init__(f"The model client {client} breaks the rule that {rule}: {found}")
        self.client = client
        self.rule = rule


class UnknownWireFormatError(ClewError):
    """The format of a recorded request is not installed, so the request cannot be rebuilt. ``wire`` is its name."""

    def __init__(self, wire: str, known: Sequence[str]) -> None:
        super().__init__(
            f"The request has the format {wire!r}, and there are {', '.join(known)}. Install the package with the "
            "client that made the request: it declares its format under the entry points clew.wire_formats."
        )
        self.wire = wire

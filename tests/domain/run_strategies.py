"""What property tests draw from: the data of every event of a run."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from clew.domain.models.client import ServiceReference, Usage
from clew.domain.runs.events import (
    AgentIdentity,
    AnswerInterrupted,
    ApprovalGiven,
    ApprovalRequested,
    Failure,
    Fingerprint,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    RunAbandoned,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ServiceCall,
    ServiceThreadBound,
    ToolFailed,
    ToolFinished,
    ToolStarted,
)

counts = st.integers(min_value=0, max_value=2**53)
versions = st.integers(min_value=1, max_value=2**53)
seconds = st.floats(min_value=0, max_value=1e6)


def run_data(texts: st.SearchStrategy[str], objects: st.SearchStrategy[dict[str, Any]]) -> dict[type[Any], Any]:
    """A strategy for each event of a run, from strategies for texts and for JSON objects."""
    some = st.none() | texts
    identities = st.builds(AgentIdentity, id=texts, name=some, type=texts)
    prints = st.builds(
        Fingerprint,
        client=texts,
        instructions=some,
        tools=st.lists(texts, max_size=2).map(tuple),
        run_tools=st.lists(texts, max_size=2).map(tuple),
        response_format=some,
        providers=st.lists(texts, max_size=2).map(tuple),
        reducer=some,
    )
    failures = st.builds(Failure, kind=texts, message=some, status=st.none() | counts, code=some)
    kinds = st.sampled_from(["response", "conversation"])
    references = st.builds(ServiceReference, kind=kinds, id=texts)
    usages = st.builds(Usage, input_tokens=counts, output_tokens=counts, cached_tokens=counts, reasoning_tokens=counts)
    services = st.builds(ServiceCall, reference=st.none() | references, sent=counts, answer=counts)
    found: dict[type[Any], Any] = {
        RunStarted: st.builds(
            RunStarted,
            agent=identities,
            fingerprint=prints,
            providers=st.lists(texts, max_size=2).map(tuple),
            run_providers=st.lists(texts, max_size=2).map(tuple),
            missing=st.lists(texts, max_size=2).map(tuple),
        ),
        RunResumed: st.builds(RunResumed, attempt=versions, agent=identities, fingerprint=prints),
        ModelCalled: st.builds(
            ModelCalled,
            definitions=versions,
            client=texts,
            wire=st.sampled_from(["openai-chat", "openai-responses"]),
            model=texts,
            options=objects,
            digest=texts,
            service=st.none() | services,
            streamed=st.booleans(),
            attempt=versions,
        ),
        ModelAnswered: st.builds(
            ModelAnswered,
            call=versions,
            message=versions,
            finish_reason=some,
            usage=st.none() | usages,
            model=some,
            response_id=some,
            first_ms=st.none() | counts,
            ms=counts,
        ),
        ModelFailed: st.builds(ModelFailed, call=versions, error=failures, retry_in=st.none() | seconds, ms=counts),
        AnswerInterrupted: st.builds(
            AnswerInterrupted,
            call=versions,
            message=st.none() | versions,
            reason=st.sampled_from(["fault", "cancelled", "stopped", "crashed"]),
            error=st.none() | failures,
        ),
        ToolStarted: st.builds(ToolStarted, message=versions, index=counts),
        ToolFinished: st.builds(ToolFinished, message=versions, index=counts, result=versions, ms=counts),
        ToolFailed: st.builds(
            ToolFailed, message=versions, index=counts, result=versions, reason=texts, kind=some, ms=counts
        ),
        ApprovalRequested: st.builds(
            ApprovalRequested,
            message=versions,
            index=counts,
            reason=st.sampled_from(["approval", "outcome-unknown"]),
        ),
        ApprovalGiven: st.builds(ApprovalGiven, request=versions, approved=st.booleans(), reason=some),
        RunCompleted: st.builds(RunCompleted, finish_reason=some),
        RunFailed: st.builds(RunFailed, error=failures),
        RunAbandoned: st.builds(RunAbandoned, reason=texts),
        ServiceThreadBound: st.builds(ServiceThreadBound, id=texts, kind=kinds),
    }
    assert set(found) == set(get_args(RunEvent))
    return found

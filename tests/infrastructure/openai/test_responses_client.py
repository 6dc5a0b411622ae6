from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.domain.wire_requests import to_send
from tests.infrastructure.openai.replies import CANARY, RESPONSES, updates_of
from tests.servers.raw_server import CUT, RawServer, Reply, stream, whole

from clew.domain.messages import FunctionCall, Message, Raw, Reasoning
from clew.domain.models.client import Answer, ServiceBound, ServiceReference, ServiceThreads, TextDelta
from clew.domain.runs.errors import AgentConfigurationError, ModelRequestError, ModelStreamError
from clew.infrastructure.openai.clients import OpenAIResponsesClient

T = TypeVar("T")
RESPONSE = ServiceReference(kind="response", id="resp_1")
CONVERSATION = ServiceReference(kind="conversation", id="conv_1")


def with_server(
    use: Callable[[OpenAIResponsesClient], Awaitable[T]], *replies: Reply, **more: Any
) -> tuple[T, list[str]]:
    """The result of ``use``, and the requests that it sent."""

    async def run(server: RawServer) -> T:
        return await use(RESPONSES.client(server, **{"store": True, **more}))

    with RawServer() as server:
        server.add_replies(*replies)
        result = asyncio.run(run(server))
        return result, [f"{each.method} {each.path}" for each in server.requests]


@pytest.mark.parametrize("streams", [False, True])
def test_names_the_response_before_the_answer(streams: bool) -> None:  # noqa: FBT001  # pytest passes it
    reply = stream(*RESPONSES.start, *RESPONSES.end) if streams else whole(RESPONSES.whole)
    updates, _ = with_server(
        lambda client: updates_of(client.ask(to_send(client, RESPONSES.body(client), streams=streams))), reply
    )
    assert updates[0] == ServiceBound(RESPONSE)
    assert isinstance(updates[-1], Answer)


def test_names_the_response_of_an_interrupted_answer() -> None:
    updates: list[Any] = []

    async def ask(client: OpenAIResponsesClient) -> None:
        async for update in client.ask(to_send(client, RESPONSES.body(client), streams=True)):
            updates.append(update)  # noqa: PERF401  # keeps the updates before the error

    with pytest.raises(ModelStreamError):
        with_server(ask, stream(*RESPONSES.start, end=CUT))
    assert updates == [ServiceBound(RESPONSE), TextDelta("Hel")]


def test_opens_a_conversation_before_the_first_request() -> None:
    conversation, requests = with_server(
        lambda client: client.open_service_thread(), whole({"id": "conv_1"}), service="conversation"
    )
    assert conversation == CONVERSATION
    assert requests == ["POST /v1/conversations"]


def test_opens_no_conversation_if_responses_have_ids() -> None:
    assert with_server(lambda client: client.open_service_thread()) == (None, [])


def words(role: str, text: str) -> Any:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "id": f"msg_{text}", "content": [{"type": kind, "text": text}]}


CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"}
RESULT: Any = {"type": "function_call_output", "id": "fo_1", "call_id": "a", "output": "found"}
SEARCH: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
THOUGHT: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
FIRST: Any = {"id": "resp_0", "output": [THOUGHT, SEARCH, CALL], "previous_response_id": None}
SECOND: Any = {"id": "resp_1", "output": [words("assistant", "yes")], "previous_response_id": "resp_0"}
HISTORY = [
    Message.user("yes"),
    Message(
        role="assistant",
        contents=(
            Reasoning(text="", data=THOUGHT),
            Raw(value=SEARCH),
            FunctionCall(call_id="a", name="f", arguments="{}"),
        ),
    ),
    Message.tool("a", "found"),
    Message.assistant("yes"),
]


@pytest.mark.parametrize(
    "second_input",
    [
        [RESULT],
        [
            words("user", "yes"),
            {**THOUGHT, "id": "rs_copy"},
            {**SEARCH, "id": "ws_copy", "status": None},
            {**CALL, "id": "fc_copy"},
            RESULT,
        ],
    ],
    ids=["only its own input", "all previous items"],
)
def test_lists_the_history_along_the_chain_of_responses(second_input: list[Any]) -> None:
    history, requests = with_server(
        lambda client: client.service_history(RESPONSE),
        whole(SECOND),
        whole(FIRST),
        whole({"data": [words("user", "yes")], "has_more": False}),
        whole({"data": second_input, "has_more": False}),
    )
    assert history == HISTORY
    assert requests[:2] == ["GET /v1/responses/resp_1", "GET /v1/responses/resp_0"]


def test_lists_a_conversation_in_pages() -> None:
    history, requests = with_server(
        lambda client: client.service_history(CONVERSATION),
        whole({"data": [words("user", "yes"), THOUGHT, SEARCH, CALL], "has_more": True, "last_id": "fc_1"}),
        whole({"data": [RESULT, words("assistant", "yes")], "has_more": False, "last_id": "msg_yes"}),
    )
    assert history == HISTORY
    assert requests == [
        "GET /v1/conversations/conv_1/items?order=asc&limit=100",
        "GET /v1/conversations/conv_1/items?order=asc&limit=100&after=fc_1",
    ]


@pytest.mark.parametrize(
    ("service", "path"), [(RESPONSE, "/v1/responses/resp_1"), (CONVERSATION, "/v1/conversations/conv_1")]
)
@pytest.mark.parametrize("reply", [{"id": "x", "deleted": True}, b""])
def test_deletes_the_thread_at_the_service(service: ServiceReference, path: str, reply: object) -> None:
    _, requests = with_server(lambda client: client.delete_service_thread(service), whole(reply))
    assert requests == [f"DELETE {path}"]


def test_escapes_an_id_in_a_path() -> None:
    odd = ServiceReference(kind="conversation", id="../responses/x?y#z")
    _, requests = with_server(lambda client: client.delete_service_thread(odd), whole({}))
    assert requests == ["DELETE /v1/conversations/..%2Fresponses%2Fx%3Fy%23z"]


def test_reports_an_id_that_the_service_does_not_know() -> None:
    async def ask(client: OpenAIResponsesClient) -> None:
        threads: ServiceThreads = client
        with pytest.raises(ModelRequestError, match="404") as refused:
            await threads.service_history(RESPONSE)
        assert refused.value.status == 404
        with pytest.raises(ModelStreamError):
            await threads.service_history(CONVERSATION)

    with_server(ask, whole({"error": {"message": "No response found."}}, status=404), whole([]))


def test_adds_the_callers_includes() -> None:
    client = RESPONSES.client("http://x/v1", options={"include": ["x", "reasoning.encrypted_content"], "store": False})
    assert client.options["include"] == ["reasoning.encrypted_content", "x"]


def test_refuses_contradictory_options() -> None:
    with pytest.raises(AgentConfigurationError, match="store"):
        RESPONSES.client("http://x/v1", store=True, options={"store": False})
    with pytest.raises(AgentConfigurationError, match="conversation"):
        OpenAIResponsesClient("m", api_key=CANARY, service="thread")  # type: ignore[arg-type]  # an invalid value

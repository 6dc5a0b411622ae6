"""Agents of Amazon Bedrock: runs against a scripted server, with requests that botocore's model accepts."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.eventstream import EventStreamBuffer
from botocore.validate import ParamValidator
from tests.servers.raw_server import CUT, RawServer, Reply, stream, whole
from tests.servers.strict_bedrock import frame

from clew import Agent, AgentCoreClient, BedrockAgentClient, Engine, Message, ScriptedChatClient, tool
from clew.domain.models.client import TokenUsage
from clew.errors import (
    AgentConfigurationError,
    ModelClientContractError,
    ModelStreamError,
    RemoteTaskError,
    ServiceCannotForkError,
)
from clew.events import ModelCalled, ServiceThreadBound
from clew.infrastructure import clock
from clew.testing import HttpModelService, ScriptedReply, check_model_client, model_client_contract

pytestmark = pytest.mark.anyio
KEY = "bedrock-canary0123456789"
KIND = "application/vnd.amazon.eventstream"
SHAPE = botocore.session.get_session().get_service_model("bedrock-agent-runtime").shape_for("InvokeAgentRequest")


def chunk(text: str, **more: Any) -> bytes:
    return frame("chunk", {"bytes": b64encode(text.encode()).decode(), **more})


def trace(**steps: Any) -> bytes:
    return frame("trace", {"sessionId": "s", "trace": {"orchestrationTrace": steps}})


RATIONALE = trace(rationale={"text": "I should greet.", "traceId": "t"})
USAGE = trace(modelInvocationOutput={"metadata": {"usage": {"inputTokens": 9, "outputTokens": 4}}})


def answer(*frames: bytes, end: Any = None) -> Reply:
    return stream(*frames, end=end, done=False, kind=KIND)


def control(*inputs: Any, invocation: str = "inv-1") -> bytes:
    return frame("returnControl", {"invocationId": invocation, "invocationInputs": list(inputs)})


LOOK_UP = {
    "functionInvocationInput": {
        "actionGroup": "orders",
        "actionInvocationType": "RESULT",
        "function": "look_up",
        "parameters": [{"name": "order", "type": "integer", "value": "7"}],
    }
}


ALL = {"name": "all", "type": "boolean", "value": "true"}
REFUND = {
    "apiInvocationInput": {
        "actionGroup": "refunds",
        "agentId": "SUB1",
        "httpMethod": "POST",
        "apiPath": "/refunds/{id}",
        "parameters": [{"name": "id", "type": "string", "value": "7"}],
        "requestBody": {"content": {"application/json": {"properties": [ALL]}}},
    }
}
CANCEL = {"actionGroup": "orders", "function": "cancel", "actionInvocationType": "USER_CONFIRMATION"}
CONFIRM = {"functionInvocationInput": CANCEL}
SLOW = frame("throttlingException", {"message": "Slow."}, "exception")


class AlwaysStreams(HttpModelService):
    """A service that streams each answer, as InvokeAgent does."""

    def _reply(self, reply: ScriptedReply) -> Reply:
        return super()._reply(reply if reply.kind == "status" else replace(reply, streams=True))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine.open(f"sqlite:///{tmp_path / 'clew.db'}") as engine:
        yield engine


def client(server: RawServer, **more: Any) -> BedrockAgentClient:
    address = f"http://127.0.0.1:{server.port}"
    return BedrockAgentClient("AGENT1", "ALIAS1", region="us-east-1", base_url=address, **{"api_key": KEY, **more})


def bodies(server: RawServer) -> list[Any]:
    """The bodies of the requests, each of which botocore's model accepts."""
    read = []
    for request in server.requests:
        _, _, agent, _, alias, _, session, _ = request.path.split("/")
        ids = {"agentId": agent, "agentAliasId": alias, "sessionId": session}
        report = ParamValidator().validate({**request.json(), **ids}, SHAPE)
        assert not report.has_errors(), report.generate_report()
        read.append(request.json())
    return read


async def test_keeps_the_contract_of_model_clients() -> None:
    def make(address: str) -> BedrockAgentClient:
        return BedrockAgentClient("AGENT1", "ALIAS1", region="us-east-1", base_url=address, api_key=KEY)

    pieces = [RATIONALE, chunk("Hello there 🧶")]
    with AlwaysStreams(
        make, whole={}, pieces=pieces, garbage=RATIONALE[:-1] + b"\0", media_type=KIND, error={"message": "No."}
    ) as service:
        await check_model_client(service)


async def test_a_thread_is_a_session(engine: Engine) -> None:
    with RawServer() as server:
        cited = {"attribution": {"citations": [{"retrievedReferences": [{"content": {"text": "A page"}}]}]}}
        server.add_replies(
            answer(RATIONALE, USAGE, USAGE, chunk("Hello ", **cited), chunk("there")), answer(chunk("Again"))
        )
        agent = Agent(client(server, options={"enableTrace": True}), engine=engine, name="Desk")
        thread = await agent.get_remote_thread()
        first = await agent.run([Message.user("Hi", author="Zoë")], thread=thread)
        assert (first.text, first.usage) == ("Hello there", TokenUsage(input_tokens=18, output_tokens=8))
        assert (await agent.run("More", thread=thread)).text == "Again"
        native: Any = first.messages[-1].message
        (patch,) = native.native.patch
        assert patch["value"]["citations"] == [cited["attribution"]]
        assert len(patch["value"]["traces"]) == 3
        assert [body["inputText"] for body in bodies(server)] == ["Zoë: Hi", "More"]
        bound = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
        assert {request.path for request in server.requests} == {
            f"/agents/AGENT1/agentAliases/ALIAS1/sessions/{bound[0].id}/text"
        }
        calls = [event.version async for event in thread.events() if isinstance(event.data, ModelCalled)]
        for at, request in zip(calls, server.requests, strict=True):
            rebuilt = await thread.request(at)
            assert (rebuilt.path, rebuilt.content, rebuilt.verified) == (request.path, request.body, True)
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        buffer = EventStreamBuffer()
        buffer.add_data(chunk("Hello"))
        assert [event.headers[":event-type"] for event in buffer] == ["chunk"]


async def test_streams_the_rationale_and_the_pieces(engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(answer(RATIONALE, chunk("Hello "), chunk("there")))
        agent = Agent(client(server), engine=engine)
        async with agent.run("Hi", thread=await agent.get_remote_thread(), stream=True) as updates:
            pieces = [(update.type, update.text) async for update in updates if update.type in {"text", "reasoning"}]
    assert pieces == [("reasoning", "I should greet."), ("text", "Hello "), ("text", "there")]


async def test_functions_and_paths_of_the_agent_are_calls(engine: Engine) -> None:
    done: list[Any] = []

    def look_up(order: int) -> str:
        """Look up an order."""
        done.append(order)
        return f"order {order}"

    def post_refunds_id(id: str, all: bool) -> dict[str, Any]:  # noqa: A002, FBT001  # the names are those of the API
        """Refund."""
        done.append((id, all))
        return {"paid": 3}

    def cancel() -> bool:
        """Confirm."""
        return True

    with RawServer() as server:
        server.add_replies(answer(chunk("Let me look."), control(LOOK_UP, REFUND, CONFIRM)), answer(chunk("Done.")))
        agent = Agent(client(server), engine=engine, tools=[look_up, post_refunds_id, cancel])
        thread = await agent.get_remote_thread()
        assert (await agent.run("Look", thread=thread)).text == "Done."
        assert done == [7, ("7", True)]
        (_, second) = bodies(server)
    text = {"TEXT": {"body": "order 7"}}
    assert second == {
        "sessionState": {
            "invocationId": "inv-1",
            "returnControlInvocationResults": [
                {"functionResult": {"actionGroup": "orders", "function": "look_up", "responseBody": text}},
                {
                    "apiResult": {
                        "actionGroup": "refunds",
                        "agentId": "SUB1",
                        "apiPath": "/refunds/{id}",
                        "httpMethod": "POST",
                        "httpStatusCode": 200,
                        "responseBody": {"application/json": {"body": '{"paid": 3}'}},
                    }
                },
                {
                    "functionResult": {
                        "actionGroup": "orders",
                        "confirmationState": "CONFIRM",
                        "function": "cancel",
                        "responseBody": {"TEXT": {"body": "true"}},
                    }
                },
            ],
        }
    }


async def test_a_call_waits_for_an_approval_in_any_process(engine: Engine) -> None:
    def look_up(order: int) -> str:
        """Look up an order."""
        return f"order {order}"

    with RawServer() as server:
        server.add_replies(answer(control(LOOK_UP)), answer(chunk("Found.")))
        agent = Agent(client(server), engine=engine, tools=[tool(look_up, approval="always")])
        thread = await agent.get_remote_thread()
        (approval,) = (await agent.run("Look", thread=thread)).approvals
        await approval.approve()
        assert (await agent.continue_run(thread)).text == "Found."
        assert bodies(server)[1]["sessionState"]["invocationId"] == "inv-1"


@pytest.mark.parametrize("frames", [(), (chunk("Hello "),), (RATIONALE, chunk("Hello there"))])
async def test_an_answer_that_is_cut_is_lost_and_its_message_is_not_sent_again(engine: Engine, frames: Any) -> None:
    """Also if all of the answer had arrived: without an end marker, only the end of the reply tells."""
    with RawServer() as server:
        server.add_replies(answer(*frames, end=CUT), answer(chunk("Again")))
        agent = Agent(client(server), engine=engine)
        thread = await agent.get_remote_thread()
        with pytest.raises(RemoteTaskError, match="has the message"):
            await agent.run("first", thread=thread)
        assert (await agent.run("second", thread=thread)).text == "Again"
        assert [body["inputText"] for body in bodies(server)] == ["first", "second"]
        assert [each.text for each in await thread.history()] == ["first", "second", "Again"]


@pytest.mark.parametrize("last", [chunk("Hello there")[:-5], SLOW])
async def test_a_torn_frame_and_an_exception_are_errors(engine: Engine, last: bytes) -> None:
    with RawServer() as server:
        server.add_replies(answer(chunk("Hello "), last))
        agent = Agent(client(server), engine=engine)
        with pytest.raises(RemoteTaskError):
            await agent.run("Hi", thread=await agent.get_remote_thread())
        assert len(server.requests) == 1


async def test_a_message_that_may_have_arrived_is_sent_again_only_by_a_new_run(engine: Engine) -> None:
    with RawServer() as server:
        server.add_replies(Reply((CUT,)), answer(chunk("Hello")))
        agent = Agent(client(server), engine=engine)
        thread = await agent.get_remote_thread()
        with pytest.raises(ModelStreamError, match="may have received"):
            await agent.run("Hi", thread=thread)
        assert len(server.requests) == 1
        assert (await agent.run(thread=thread)).text == "Hello"
        assert [body["inputText"] for body in bodies(server)] == ["Hi", "Hi"]


async def test_a_killed_process_does_not_send_its_message_again(tmp_path: Path) -> None:
    """The process is killed when the service has the message, and before the log says so."""
    with RawServer() as server:
        server.add_replies(answer(chunk("Hello")), answer(chunk("Again")))
        script = f"""
import asyncio, os, signal
from clew import Agent, AgentCoreClient, BedrockAgentClient, Engine
from clew.infrastructure.plain_connection import PlainHttp

send = PlainHttp.send

async def killed(self, *arguments, **options):
    await send(self, *arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

PlainHttp.send = killed

async def main():
    client = BedrockAgentClient(
        "AGENT1", "ALIAS1", region="us-east-1", base_url="http://127.0.0.1:{server.port}", api_key="{KEY}"
    )
    async with Engine.open("sqlite:///{tmp_path}/clew.db") as engine:
        agent = Agent(client, engine=engine, id="desk")
        thread = await agent.get_remote_thread()
        print(thread.id, flush=True)
        await agent.run("Hi", thread=thread)

asyncio.run(main())
"""
        process = subprocess.run(  # noqa: ASYNC221  # it is killed
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
        )
        later = 60_000_000  # microseconds: the lease of the killed process is over
        url = f"sqlite:///{tmp_path}/clew.db"
        async with Engine.open(url, embedded=False, now=lambda: clock.now() + later) as engine:
            agent = Agent(client(server), engine=engine, id="desk")
            thread = await agent.thread(process.stdout.strip())
            with pytest.raises(RemoteTaskError, match="may have reached"):
                await agent.continue_run(thread)
            assert len(server.requests) == 1
            assert (await agent.run("Hello?", thread=thread)).text == "Again"


async def test_waits_and_repeats_a_request_that_is_refused_for_now(engine: Engine) -> None:
    with RawServer() as server:
        error = {"x-amzn-errortype": "ThrottlingException", "retry-after": "0"}
        server.add_replies(whole({"message": "Slow."}, status=429, headers=error), answer(chunk("Hello")))
        agent = Agent(client(server), engine=engine)
        assert (await agent.run("Hi", thread=await agent.get_remote_thread())).text == "Hello"


async def test_a_session_cannot_be_forked_or_read(engine: Engine) -> None:
    def count(body: Any) -> str:
        return str(len(body["messages"]))

    with RawServer() as server:
        server.add_replies(answer(chunk("Hello")))
        agent = Agent(client(server), engine=engine)
        thread = await agent.get_remote_thread()
        await agent.run("Hi", thread=thread)
        with pytest.raises(ServiceCannotForkError, match="local"):
            await thread.fork()
        with pytest.raises(AgentConfigurationError, match=r"no service_history\(\)"):
            await thread.service_history()
        local = Agent(ScriptedChatClient(count), engine=engine, id="local")
        assert (await local.run("Continue", thread=await thread.fork(kind="local"))).text == "3"


async def test_signs_with_the_credentials_of_a_session(engine: Engine) -> None:
    session = botocore.session.get_session()
    session.set_credentials("AKIACANARY", "secret-canary")
    with RawServer() as server:
        server.add_replies(answer(chunk("Hello")))
        agent = Agent(client(server, api_key=None, session=session), engine=engine)
        await agent.run("Hi", thread=await agent.get_remote_thread())
        signed = server.requests[0].headers["authorization"]
    assert signed.startswith("AWS4-HMAC-SHA256 Credential=AKIACANARY/")
    assert "/us-east-1/bedrock/aws4_request" in signed


ARN = "arn:aws:bedrock-agentcore:eu-west-1:123456789012:runtime/desk-abc"
CORE = botocore.session.get_session().get_service_model("bedrock-agentcore").shape_for("InvokeAgentRuntimeRequest")


def agentcore(address: str, **more: Any) -> AgentCoreClient:
    return AgentCoreClient(ARN, base_url=address, **{"api_key": KEY, **more})


async def test_agentcore_keeps_the_contract_of_model_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one rule: without an end marker, no piece of a stream comes before one that may be the last."""
    monkeypatch.setattr(model_client_contract, "_PATIENCE", 1.0)
    with AlwaysStreams(agentcore, whole={}, pieces=["Hello there 🧶", {"event": 1}], optional=1) as service:
        service.pieces = 1
        with pytest.raises(ModelClientContractError, match="yields the pieces"):
            await check_model_client(service)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (whole({"result": "Hello"}), "Hello"),
        (whole({"result": {"role": "assistant", "content": [{"text": "Hel"}, {"text": "lo"}]}}), "Hello"),
        (whole("Hello"), "Hello"),
        (whole({"status": 3}), '{"status": 3}'),
        (stream("Hel", {"data": "lo"}, {"event": {"n": 1}}, done=False), "Hello"),
    ],
)
async def test_reads_the_answers_of_agents_on_agentcore(engine: Engine, reply: Reply, text: str) -> None:
    with RawServer() as server:
        server.add_replies(reply, whole({"result": "Again"}))
        options = {"prompt_field": "question", "user": "u-1"}
        agent = Agent(agentcore(f"http://127.0.0.1:{server.port}", qualifier="v 1", options=options), engine=engine)
        thread = await agent.get_remote_thread()
        assert (await agent.run("Hi", thread=thread)).text == text
        assert (await agent.run("More", thread=thread)).text == "Again"
        assert [request.json() for request in server.requests] == [
            {"user": "u-1", "question": "Hi"},
            {"user": "u-1", "question": "More"},
        ]
        bound = [event.data async for event in thread.events() if isinstance(event.data, ServiceThreadBound)]
        for request in server.requests:
            session = request.headers["x-amzn-bedrock-agentcore-runtime-session-id"]
            assert session == bound[0].id
            report = ParamValidator().validate(
                {"agentRuntimeArn": ARN, "runtimeSessionId": session, "payload": b""}, CORE
            )
            assert not report.has_errors(), report.generate_report()
            assert request.path.endswith("%3Aruntime%2Fdesk-abc/invocations?qualifier=v%201")
        calls = [event.version async for event in thread.events() if isinstance(event.data, ModelCalled)]
        assert all([(await thread.request(at)).verified for at in calls])


@pytest.mark.parametrize("end", [CUT, {"error": "The agent broke.", "error_type": "ValueError"}])
async def test_a_lost_answer_of_agentcore_is_an_error(engine: Engine, end: Any) -> None:
    with RawServer() as server:
        lost = stream("Hel", end=CUT) if end is CUT else stream("Hel", end, done=False)
        server.add_replies(lost, whole({"result": "Again"}))
        agent = Agent(agentcore(f"http://127.0.0.1:{server.port}"), engine=engine)
        thread = await agent.get_remote_thread()
        with pytest.raises(RemoteTaskError, match="has the message"):
            await agent.run("first", thread=thread)
        assert (await agent.run("second", thread=thread)).text == "Again"
        assert [request.json()["prompt"] for request in server.requests] == ["first", "second"]


async def test_signs_for_agentcore_in_the_region_of_the_arn(engine: Engine) -> None:
    session = botocore.session.get_session()
    session.set_credentials("AKIACANARY", "secret-canary")
    with RawServer() as server:
        server.add_replies(whole({"result": "Hello"}))
        client = agentcore(f"http://127.0.0.1:{server.port}", api_key=None, session=session)
        agent = Agent(client, engine=engine)
        await agent.run("Hi", thread=await agent.get_remote_thread())
        assert "/eu-west-1/bedrock-agentcore/aws4_request" in server.requests[0].headers["authorization"]

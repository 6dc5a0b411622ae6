"""run_sync: runs for scripts without an event loop, and interruption by Ctrl-C."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.agents.turns import PATIENCE, check_runs, events_of, taking_turns, turns_of, types_of
from tests.servers.raw_server import RawServer, whole

from clew import Agent, Engine, Middleware, ScriptedChatClient, tool
from clew.agents.middleware import Proceed, RunContext
from clew.domain.json_values import JsonObject
from clew.domain.messages import FunctionResult
from clew.domain.runs.errors import AgentConfigurationError, ModelRequestError, RunInterruptedError
from clew.domain.runs.events import RunAbandoned
from clew.infrastructure.openai.clients import OpenAIChatClient
from clew.infrastructure.scripted_client import Line
from clew.testing import call

INTERRUPTED = """
import asyncio, sys, time
from clew import Agent, Engine, ScriptedChatClient, tool
from clew.testing import call, fault

url, where = sys.argv[1:]

@tool
async def slow() -> str:
    print("asked", flush=True)
    await asyncio.Event().wait()

async def stalls(_):
    print("asked", flush=True)
    await asyncio.Event().wait()

script = stalls if where == "model" else [call("slow")]
agent = Agent(ScriptedChatClient(script), engine=Engine.open(url), tools=[slow])
try:
    agent.run_sync("one")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if where == "unhandled":
        raise
agent = Agent(ScriptedChatClient("Done."), engine=agent.engine)
print(agent.run_sync("two").text)
"""


def test_runs_follow_each_other_on_a_thread() -> None:
    agent = Agent(ScriptedChatClient(["One.", "Two."]))
    first = agent.run_sync("1")
    second = agent.run_sync("2", thread=first.thread)
    assert (first.text, second.text) == ("One.", "Two.")
    assert second.thread.id == first.thread.id


def test_runs_of_many_python_threads_are_independent(url: str) -> None:
    engine = Engine.open(url)
    agent = taking_turns(engine)
    turns = [str(number) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        responses = list(pool.map(agent.run_sync, turns))
    assert [response.text for response in responses] == [f"done {turn}" for turn in turns]
    first = responses[0].thread
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda turn: agent.run_sync(turn, thread=first, on_conflict="wait"), turns[1:]))

    async def check() -> None:
        async with Engine.open(url) as other:
            thread = await other.thread(first.id)
            assert sorted(await turns_of(thread), key=int) == turns
            await check_runs(thread)
        await engine.close()

    asyncio.run(check())


def test_the_error_of_a_run_is_raised() -> None:
    with pytest.raises(ModelRequestError, match="at its end"):
        Agent(ScriptedChatClient([])).run_sync("1")


def test_refused_in_a_running_event_loop() -> None:
    async def main() -> None:
        with pytest.raises(AgentConfigurationError, match="await"):
            Agent(ScriptedChatClient("no")).run_sync("1")

    asyncio.run(main())


def test_tools_see_the_context_variables_of_the_caller() -> None:
    user = contextvars.ContextVar("user", default="unknown")
    seen: list[str] = []

    async def answer(_: JsonObject) -> Line:
        seen.append(user.get())
        return "Hello."

    user.set("ada")
    Agent(ScriptedChatClient(answer)).run_sync("1")
    assert seen == ["ada"]


def test_runs_share_a_connection() -> None:
    with RawServer() as server:
        for answer_text in ("One.", "Two."):
            choice = {"index": 0, "message": {"role": "assistant", "content": answer_text}, "finish_reason": "stop"}
            server.add_replies(whole({"id": "c1", "model": "m-1", "choices": [choice]}))
        agent = Agent(OpenAIChatClient(model="m-1", api_key="none", base_url=server.url))
        first = agent.run_sync("1")
        assert agent.run_sync("2", thread=first.thread).text == "Two."
        assert len(server.requests) == 2
        assert len(server._writers) == 1


def test_a_forked_process_has_its_own_event_loop() -> None:
    assert Agent(ScriptedChatClient("One.")).run_sync("1").text == "One."
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(PATIENCE))
            code = 0 if Agent(ScriptedChatClient("Two.")).run_sync("2").text == "Two." else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Agent(ScriptedChatClient("Three.")).run_sync("3").text == "Three."


@pytest.mark.parametrize("where", ["model", "tool", "unhandled"])
def test_ctrl_c_records_the_end_of_the_run_and_ends_the_script(url: str, where: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, url, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=PATIENCE)
    if where == "unhandled":
        assert (output, child.returncode) == ("interrupted\n", -signal.SIGINT)
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert (output, errors, child.returncode) == ("interrupted\nDone.\n", "", 0)
    asyncio.run(_check_interrupted(url, where))


async def _check_interrupted(url: str, where: str) -> None:
    async with Engine.open(url) as engine:
        thread: Any = await engine.thread((await anext(engine.threads())).id)
        events = await events_of(thread)
        assert events[-1].data == RunAbandoned(reason="cancelled")
        last = "answer-interrupted" if where == "model" else "tool-failed"
        assert types_of(events)[-2] == last
        assert (await thread.history()).messages[0].message.text == "one"
        await check_runs(thread)
        assert (await taking_turns(engine).run("three", thread=thread)).text == "done three"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_the_caller_gets_an_exit_and_the_loop_keeps_running(kind: type[BaseException]) -> None:
    class Ends(Middleware):
        async def run(self, context: RunContext, proceed: Proceed[Any]) -> Any:
            del context, proceed
            raise kind

    agent = Agent(ScriptedChatClient("Done.", loop=True), middleware=[Ends()])
    with pytest.raises(kind):
        agent.run_sync("one")
    assert Agent(ScriptedChatClient("Done.")).run_sync("two").text == "Done."


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_cannot_end_the_program(*, is_async: bool) -> None:
    def leave() -> str:
        sys.exit(3)

    async def leave_later() -> str:
        sys.exit(3)

    leaving = tool(leave_later if is_async else leave, name="leave")
    response = Agent(ScriptedChatClient([call("leave"), "Done."]), tools=[leaving]).run_sync("one")
    result = response.messages[1].contents[0]
    assert isinstance(result, FunctionResult)
    assert result.result == "Error: RuntimeError: leave would have ended the program: sys.exit(3)"
    assert response.text == "Done."


def test_closing_the_engine_leaves_the_run_to_other_processes(url: str) -> None:
    asked = threading.Event()

    async def stalls(_: JsonObject) -> Line:
        asked.set()
        await asyncio.sleep(PATIENCE)
        return ""

    engine = Engine.open(url)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(Agent(ScriptedChatClient(stalls), engine=engine).run_sync, "one")
        assert asked.wait(PATIENCE)
        asyncio.run(engine.close())
        with pytest.raises(RunInterruptedError):
            running.result(PATIENCE)

    async def check() -> None:
        async with asyncio.timeout(5), Engine.open(url) as other:
            (run,) = await Agent(ScriptedChatClient("Done."), engine=other).continue_runs()
            assert (await run.response()).text == "Done."

    asyncio.run(check())

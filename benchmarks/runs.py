"""The cost of an agent's run: commits, CPU beyond the model client's, wall time, CPU of a stream, bytes of the log."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from urllib.request import urlopen

import httpx2

from benchmarks.contenders.conversation import SHAPES, Shape
from benchmarks.contenders.environments import python_of
from benchmarks.measurement import Setting, interleaved, median_ratio, size_on_disk, store_url
from benchmarks.model_server import EVENTS, PIECE
from benchmarks.report import Budget, Figure, at_most
from benchmarks.synthetic_data import MessageGenerator
from clew import Agent, Conversations, Engine, GeminiClient, Message, ScriptedChatClient
from clew.types import Answer, ModelRequest, Question

ROOT = Path(__file__).parent.parent
SDK, POST, FRAMEWORK = "the openai package", "openai's client with a prepared body", "agent-framework"
STORES = {
    "SQLite": ("OFF", "all"),
    "SQLite, the log alone": ("OFF", "log"),
    "memory:": ("memory", "all"),
    "SQLite, durable": ("FULL", "all"),
}
COMMITS: Mapping[Shape, int] = {"whole": 2, "streamed": 2, "with a tool": 4}


class Contender(NamedTuple):
    """A process that holds conversations: its module, further arguments and interpreter."""

    module: str
    rest: tuple[str, ...] = ()
    python: str = sys.executable


class Cost(NamedTuple):
    """The cost of a turn: milliseconds of process CPU and wall time, and commits."""

    cpu: float
    wall: float
    commits: float


def run(setting: Setting) -> Iterator[Figure]:
    """Conversations with a server without delay, each contender in its own process."""
    turns = setting.size(40, 10)
    costs = _costs(setting, turns)
    for shape in SHAPES:
        yield from _commits(shape, costs)
    for shape in SHAPES:
        yield from _cpu(shape, costs, turns)
    for shape in SHAPES:
        yield _latency(shape, costs)
    yield _stream(setting)
    yield _bytes(setting)


def _commits(shape: Shape, costs: Mapping[str, Mapping[Shape, list[Cost]]]) -> Iterator[Figure]:
    commits = max(cost.commits for cost in costs["SQLite"][shape])
    yield Figure(f"{shape}, commits", commits, "", budget=at_most(COMMITS[shape]))


def _cpu(shape: Shape, costs: Mapping[str, Mapping[Shape, list[Cost]]], turns: int) -> Iterator[Figure]:
    """Against the package as documented, and against its cheapest possible request."""
    cpu = {name: [cost.cpu for cost in by_shape[shape]] for name, by_shape in costs.items()}
    yield _beyond(shape, "SQLite", SDK, cpu, at_most(1))
    yield _beyond(shape, "SQLite", POST, cpu, at_most(1))
    yield _beyond(shape, "SQLite, the log alone", POST, cpu)
    yield _beyond(shape, "memory:", POST, cpu)
    if FRAMEWORK in cpu:
        yield _beyond(shape, FRAMEWORK, SDK, cpu)
        yield Figure(
            f"{shape}, CPU, SQLite, against {FRAMEWORK} with its history in memory",
            statistics.median(cpu["SQLite"]),
            "ms",
            baseline=statistics.median(cpu[FRAMEWORK]),
            ratio=median_ratio(cpu["SQLite"], cpu[FRAMEWORK]),
            note=f"conversations of {turns} turns, sent completely each time",
        )


def _beyond(
    shape: Shape, name: str, baseline: str, cpu: Mapping[str, list[float]], budget: Budget | None = None
) -> Figure:
    differences = [one - other for one, other in zip(cpu[name], cpu[baseline], strict=True)]
    return Figure(
        f"{shape}, CPU, {name}, beyond {baseline}",
        statistics.median(differences),
        "ms",
        baseline=statistics.median(cpu[baseline]),
        ratio=median_ratio(cpu[name], cpu[baseline]),
        budget=budget,
    )


def _latency(shape: Shape, costs: Mapping[str, Mapping[Shape, list[Cost]]]) -> Figure:
    durable = [cost.wall for cost in costs["SQLite, durable"][shape]]
    bare = [cost.wall for cost in costs[SDK][shape]]
    return Figure(
        f"{shape}, wall clock, synchronous=FULL, against {SDK}",
        statistics.median(durable),
        "ms",
        baseline=statistics.median(bare),
        ratio=median_ratio(durable, bare),
    )


# Processes


def _costs(setting: Setting, turns: int) -> dict[str, dict[Shape, list[Cost]]]:
    """The costs of each contender's turns, by the shape of the conversation, per round."""
    costs: dict[str, dict[Shape, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[str, str] = {}
    with _server() as address:

        def one_round(name: str, contender: Contender) -> float:
            for shape, cost in _converse(contender, address, turns, setting).items():
                costs[name][shape].append(cost)
            with urlopen(address) as report:  # noqa: S310  # the benchmark's own server
                counts[name] = report.read().decode()
            return 0

        interleaved(
            setting.size(7, 3),
            {name: lambda name=name, each=each: one_round(name, each) for name, each in _contenders().items()},  # type: ignore[misc]  # binds the loop's values
        )
    if len(set(counts.values())) != 1:
        raise RuntimeError(f"The contenders sent different requests: {counts}")
    return costs


def _contenders() -> dict[str, Contender]:
    contenders = {SDK: Contender("bare_openai", ("sdk",)), POST: Contender("bare_openai", ("post",))}
    contenders |= {name: Contender("clew_agent", rest) for name, rest in STORES.items()}
    try:
        contenders[FRAMEWORK] = Contender("agent_framework_agent", python=python_of(FRAMEWORK))
    except RuntimeError as error:  # the other figures are still useful
        print(f"{FRAMEWORK} could not be installed: {error}", file=sys.stderr)
    return contenders


def _converse(contender: Contender, address: str, turns: int, setting: Setting) -> dict[Shape, Cost]:
    rest = list(contender.rest)
    if contender.module == "clew_agent":
        rest[0] = "memory:" if rest[0] == "memory" else setting.url("runs", durable=rest[0] == "FULL")
    module = f"benchmarks.contenders.{contender.module}"
    command = [contender.python, "-m", module, address, str(turns), *rest]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender.module} failed:\n{done.stderr}")
    costs: dict[Shape, dict[str, Any]] = json.loads(done.stdout)
    return {shape: Cost(**cost) for shape, cost in costs.items()}


@contextmanager
def _server() -> Iterator[str]:
    """The address of a server without delay. It ends with its standard input, so never outlives this process."""
    command = [sys.executable, "-m", "benchmarks.model_server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        yield f"http://127.0.0.1:{int(stdout.readline())}"
        stdin.close()


# Streams


def _stream(setting: Setting) -> Figure:
    """A long answer of Gemini: the client's CPU for each event, and that of receiving and parsing the same bytes."""
    with _server() as address:
        costs = interleaved(
            setting.size(9, 3),
            {
                "client": lambda: asyncio.run(_ask_gemini(address)),
                "parsed": lambda: asyncio.run(_parse_stream(address)),
            },
        )
    return Figure(
        "an event of Gemini's stream, CPU, against httpx2 and json.loads",
        statistics.median(costs["client"]),
        "µs",
        baseline=statistics.median(costs["parsed"]),
        ratio=median_ratio(costs["client"], costs["parsed"]),
        budget=at_most(30),
        note=f"{EVENTS:,} events, each in an HTTP chunk of its own; the client is open already",
    )


async def _ask_gemini(address: str) -> float:
    client = GeminiClient("instant-1", api_key="none", base_url=address)
    body = client.wire.make_body(Question(client.model, (Message.user("Go on."),)))
    request = ModelRequest(body, json.dumps(body).encode(), streams=True, model=client.model)

    async def read() -> None:
        answer = [update async for update in client.ask(request)][-1]
        if not isinstance(answer, Answer) or len(answer.message.text) != EVENTS * PIECE:
            raise RuntimeError("The client did not read the whole answer.")

    spent = await _cpu_of_event(read)
    await client.aclose()
    return spent


async def _parse_stream(address: str) -> float:
    url = f"{address}/models/instant-1:streamGenerateContent?alt=sse"
    async with httpx2.AsyncClient() as http:

        async def read() -> None:
            rest, events = b"", list[object]()
            async with http.stream("POST", url, content=b"{}") as response:
                async for received in response.aiter_bytes():
                    *complete, rest = (rest + received).split(b"\r\n\r\n")
                    events += [json.loads(event.removeprefix(b"data: ")) for event in complete]
            if len(events) != EVENTS:
                raise RuntimeError("The stream ended early.")

        return await _cpu_of_event(read)


async def _cpu_of_event(read: Callable[[], Awaitable[None]]) -> float:
    """Microseconds of CPU for an event of the second stream. The first one opens the connection."""
    await read()
    gc.collect()
    begin = time.process_time()
    await read()
    return (time.process_time() - begin) / EVENTS * 1e6


# Bytes


def _bytes(setting: Setting) -> Figure:
    """Turns of 200 + 200 characters, as runs and as appends."""
    turns = setting.size(1_000, 100)
    runs, appends, empty = (setting.fresh(name) for name in ("runs", "appends", "empty"))
    asyncio.run(_run_turns(runs, turns))
    asyncio.run(_run_turns(empty, 0))
    generator = MessageGenerator(1)
    with Conversations.open(store_url(appends), projections=()) as conversations:
        thread = conversations.start_thread()
        for _ in range(turns):
            for message in generator.turn():
                thread.append(message)
    none = size_on_disk(empty)
    measured, plain = ((size_on_disk(path) - none) / turns for path in (runs, appends))
    return Figure(
        f"bytes of the log per run of 200 + 200 characters, against two appends, {turns:,} runs",
        measured,
        "B",
        baseline=plain,
        ratio=measured / plain,
    )


async def _run_turns(path: Path, turns: int) -> None:
    generator = MessageGenerator(1)
    exchanges = [generator.turn() for _ in range(turns)]
    client = ScriptedChatClient([answer for _, answer in exchanges])
    async with Engine.open(store_url(path), projections=()) as engine:
        if exchanges:
            agent = Agent(client, engine=engine, instructions="You answer at once.")
            thread = await agent.get_local_thread()
            for question, _ in exchanges:
                await thread.run(question)

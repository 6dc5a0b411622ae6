"""LangGraph's store in memory scopes of Clew: a namespace is a scope, and an item the live fact of its key."""

import asyncio
import operator
from collections.abc import Callable, Iterable
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem, SearchOp

from clew import Conversations, Fact

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": lambda value, other: float(value) > float(other),
    "$gte": lambda value, other: float(value) >= float(other),
    "$lt": lambda value, other: float(value) < float(other),
    "$lte": lambda value, other: float(value) <= float(other),
}


class ClewStore(BaseStore):
    """All puts of a batch are one commit. Earlier values stay in the past of their scope."""

    def __init__(self, conversations: Conversations, prefix: str = "langgraph/") -> None:
        self.conversations = conversations
        self.prefix = prefix

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        ops = list(ops)
        answers = [self._answer(op) for op in ops]  # as it was before the batch
        puts = {(op.namespace, op.key): op.value for op in ops if isinstance(op, PutOp)}
        if puts:
            with self.conversations.batch() as batch:
                for (namespace, key), value in puts.items():
                    if value is None:
                        batch.delete(self._scope(namespace), key)
                    else:
                        batch.put(self._scope(namespace), key, value)
        return answers

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        return await asyncio.to_thread(self.batch, list(ops))

    def _answer(self, op: Any) -> Any:
        match op:
            case GetOp():
                fact = self._scope(op.namespace).get(str(op.key))
                return fact and Item(**fields(op.namespace, fact))
            case SearchOp():
                return self._search(op)
            case ListNamespacesOp():
                matching = [
                    each
                    for each in self._namespaces(())
                    if all(matches(each, one) for one in op.match_conditions or ())
                ]
                return sorted({each[: op.max_depth] for each in matching})[op.offset : op.offset + op.limit]
        return None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        found = [
            SearchItem(**fields(namespace, fact), score=score)
            for namespace in self._namespaces(op.namespace_prefix)
            for fact, score in self._ranked(namespace, op.query)
            if all(passes(fact.value.get(name), wanted) for name, wanted in (op.filter or {}).items())
        ]
        if op.query:
            found.sort(key=lambda item: item.score or 0, reverse=True)
        return found[op.offset : op.offset + op.limit]

    def _ranked(self, namespace: tuple[str, ...], query: str | None) -> list[tuple[Any, float | None]]:
        """The facts of a namespace; with a query those that match it, with their scores."""
        facts = self._scope(namespace).facts()
        if not query:
            return [(fact, None) for fact in facts]
        return [(each.fact, each.score) for each in self._scope(namespace).search(query, top=len(facts) or 1)]

    def _scope(self, namespace: tuple[str, ...]) -> Any:
        return self.conversations.memory(self.prefix + ".".join(namespace))  # no label has a period

    def _namespaces(self, first: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The namespaces that begin with these labels and have items."""
        scopes = self.conversations.scopes(prefix=self.prefix + ".".join(first))
        names = [tuple(each.name.removeprefix(self.prefix).split(".")) for each in scopes if each.facts]
        return [name for name in names if name[: len(first)] == tuple(first)]


def fields(namespace: tuple[str, ...], fact: Fact) -> dict[str, Any]:
    """What LangGraph's items are made from."""
    times = {"created_at": fact.created_at or fact.recorded_at, "updated_at": fact.recorded_at}
    return {"namespace": namespace, "key": fact.key, "value": fact.value, **times}


def matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a namespace begins or ends as the condition says; ``*`` is any label."""
    step = 1 if condition.match_type == "prefix" else -1
    path, labels = condition.path[::step], namespace[::step]
    pairs = zip(path, labels, strict=False)
    return len(labels) >= len(path) and all(wanted in {"*", label} for wanted, label in pairs)


def passes(value: Any, wanted: Any) -> bool:
    """Whether a field of a value passes a filter: a value, an object of filters, or comparisons."""
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    if any(name.startswith("$") for name in wanted):
        return all(COMPARISONS[name](value, other) for name, other in wanted.items())
    return isinstance(value, dict) and all(passes(value.get(name), each) for name, each in wanted.items())

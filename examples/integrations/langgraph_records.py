"""What the saver for LangGraph stores in a thread, and the state that its records add up to."""

from functools import reduce
from itertools import takewhile
from typing import Any

from clew import Event, Fold, Record
from clew.events import RecordAppended


def record(serde: Any, path: list[Any], content: Any, **data: Any) -> Record:
    """A record for a place in the tree, with serialized content."""
    kind, blob = serde.dumps_typed(content)
    return Record(path[0], {"path": path, "kind": kind, **data}, blob=blob)


def load(serde: Any, record: Any) -> Any:
    """The content of a record."""
    return serde.loads_typed((record.data["kind"], record.blob))


def cleared(record: Any) -> Record:
    """The record that clears the place of another one."""
    return Record(record.type, {"path": record.data["path"]})


def look(tree: Any, *path: Any) -> Any:
    """What is at a place in a tree of dicts, an empty dict if there is nothing."""
    return reduce(lambda branch, name: branch.get(name, {}), path, tree)


def put(tree: Any, path: list[Any], leaf: Any) -> Any:
    """A new tree with a leaf at a place, or without one if the leaf is None."""
    name, *rest = path
    leaf = put(tree.get(name, {}), rest, leaf) if rest else leaf
    return {**tree, name: leaf} if leaf is not None else {each: tree[each] for each in tree if each != name}


def evolve(tree: Any, event: Event) -> Any:
    """The tree after one more event: the newest record of each place. A record without content clears its place."""
    made: Any = event.data
    if not isinstance(made, RecordAppended):
        return tree  # its content was redacted
    data: Any = made.data
    return put(tree, data["path"], made if made.blob is not None else None)


TREE: Fold[Any] = Fold("langgraph", 1, {}, evolve, types=["record-appended"])


def value_record(serde: Any, tree: Any, path: list[Any], old: Any, value: Any) -> Record:
    """The record of a channel's value. What it begins with in common with the old version is not stored again."""
    parts = [list(serde.dumps_typed(each)) for each in (value if type(value) is list else [value])]
    pairs = zip(parts_of(serde, look(tree, *path[:-1]), old), parts, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    base = old if shared else None
    return record(serde, path, parts[shared:], base=base, shared=shared, list=type(value) is list)


def parts_of(serde: Any, versions: dict[Any, Any], version: Any) -> list[Any]:
    """The serialized elements of a channel's value at a version, or the only one if it is not a list."""
    chain: list[Any] = []
    parts: list[Any] = []
    while (made := versions.get(version)) is not None:
        chain.append(made)
        version = made.data["base"]
    for made in reversed(chain):
        parts[made.data["shared"] :] = load(serde, made)
    return parts


def values_of(serde: Any, tree: Any, checkpoint: Any) -> dict[str, Any]:
    """The values of a checkpoint's channels."""
    values = {}
    for channel, version in checkpoint.data["versions"].items():
        versions = look(tree, "value", checkpoint.data["path"][1], channel)
        if version in versions:
            parts = [serde.loads_typed(tuple(each)) for each in parts_of(serde, versions, version)]
            values[channel] = parts if versions[version].data["list"] else parts[0]
    return values


def pending_writes(serde: Any, by_path: Any) -> list[tuple[str, str, Any]]:
    """The writes at a checkpoint, in LangGraph's order: by the task's path, its id, and the place."""
    return [
        (task_id, made.data["channel"], load(serde, made))
        for _, tasks in sorted(by_path.items())
        for task_id, places in sorted(tasks.items())
        for _, made in sorted(places.items())
    ]


def needed_for_the_newest(serde: Any, checkpoints: dict[str, Any]) -> set[str]:
    """The newest checkpoint, and the ancestors that its delta channels are built from."""
    newest = at = max(checkpoints, default="")
    missing = set(load(serde, checkpoints[at])[0]["channel_versions"]) if at else set()
    needed = {newest}
    while missing and at in checkpoints:
        needed.add(at)
        missing -= checkpoints[at].data["versions"].keys()
        at = checkpoints[at].data["parent"]
    return needed


def asked(config: Any) -> tuple[Any, str, str | None]:
    """The thread, the namespace and the checkpoint that a config names."""
    names = config["configurable"]
    return names["thread_id"], names.get("checkpoint_ns", ""), names.get("checkpoint_id")


def config(thread_id: Any, ns: str, id: str) -> Any:
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}

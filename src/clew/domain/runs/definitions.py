"""The definitions of an agent, as blobs that events name by digest: instructions, tool schemas, response format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from clew.domain.models.client import ResponseFormat, ToolSchema
from clew.domain.ports import Blob
from clew.domain.runs.events import Fingerprint
from clew.domain.streams import digest


@dataclass(frozen=True)
class Definitions:
    """What goes into every request of an agent, whatever the history is."""

    instructions: str | None = None
    tools: tuple[ToolSchema, ...] = ()
    response_format: ResponseFormat | None = None
    own_tools: int | None = None
    """How many of the tools are the agent's own, and not those of a single run; None for all."""

    @cached_property
    def blobs(self) -> tuple[Blob, ...]:
        """The stored form, in the order of the fingerprint's digests."""
        parts = [] if self.instructions is None else [self.instructions.encode()]
        parts += [_json(tool) for tool in self.tools]
        if self.response_format is not None:
            parts.append(_json(self.response_format))
        return tuple(Blob(digest(part), "definition", part) for part in parts)

    def fingerprint(self, client: str) -> Fingerprint:
        """The digests, with the kind of client."""
        names = [blob.digest.hex() for blob in self.blobs]
        instructions = names.pop(0) if self.instructions is not None else None
        response_format = names.pop() if self.response_format is not None else None
        own = len(names) if self.own_tools is None else self.own_tools
        return Fingerprint(
            client=client,
            instructions=instructions,
            tools=tuple(names[:own]),
            run_tools=tuple(names[own:]),
            response_format=response_format,
        )


def read_definitions(named: Fingerprint, data: Mapping[str, bytes]) -> Definitions:
    """The definitions that a fingerprint names; ``data`` holds the bytes of each digest."""
    return Definitions(
        None if named.instructions is None else data[named.instructions].decode(),
        read_tools((*named.tools, *named.run_tools), data),
        None if named.response_format is None else ResponseFormat.model_validate_json(data[named.response_format]),
        len(named.tools),
    )


def read_tools(digests: Sequence[str], data: Mapping[str, bytes]) -> tuple[ToolSchema, ...]:
    """The schemas of tools by their digests."""
    return tuple(ToolSchema.model_validate_json(data[digest]) for digest in digests)


_COMPARED = {
    "client": "the kind of client",
    "instructions": "the instructions",
    "tools": "the tools",
    "reducer": "the reducer",
}


def changed(before: Fingerprint, now: Fingerprint) -> list[str]:
    """The differences between two fingerprints, in words."""
    return [words for name, words in _COMPARED.items() if getattr(before, name) != getattr(now, name)]


def _json(value: ToolSchema | ResponseFormat) -> bytes:
    """JSON with the keys in their given order: a rebuilt request must have the same bytes."""
    return json.dumps(value.model_dump(), ensure_ascii=False, separators=(",", ":")).encode()

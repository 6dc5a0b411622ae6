"""The formats of requests by name: those of Clew, and those of other packages."""

from __future__ import annotations

from importlib.metadata import entry_points

from clew.domain.models.a2a_requests import A2A
from clew.domain.models.agentcore import AGENTCORE
from clew.domain.models.anthropic_requests import ANTHROPIC, ANTHROPIC_BEDROCK, ANTHROPIC_VERTEX
from clew.domain.models.assistants_requests import ASSISTANTS
from clew.domain.models.bedrock_agents import BEDROCK_AGENT
from clew.domain.models.bedrock_requests import BEDROCK
from clew.domain.models.chat_requests import OPENAI_CHAT
from clew.domain.models.client import WireFormat
from clew.domain.models.gemini_requests import GEMINI
from clew.domain.models.interactions_requests import INTERACTIONS
from clew.domain.models.responses_requests import OPENAI_RESPONSES
from clew.domain.runs.errors import UnknownWireFormatError

_OWN = {
    wire.name: wire
    for wire in (
        A2A,
        AGENTCORE,
        ANTHROPIC,
        ANTHROPIC_BEDROCK,
        ANTHROPIC_VERTEX,
        ASSISTANTS,
        BEDROCK,
        BEDROCK_AGENT,
        GEMINI,
        INTERACTIONS,
        OPENAI_CHAT,
        OPENAI_RESPONSES,
    )
}

GROUP = "clew.wire_formats"
"""The entry points under which a package declares its formats: ``parrot = "parrots:PARROT"``, a WireFormat."""


def wire_format(name: str) -> WireFormat:
    """The format of that name. Raises UnknownWireFormatError."""
    own = _OWN.get(name)
    if own is not None:
        return own
    declared = entry_points(group=GROUP)
    for point in declared:
        if point.name == name:
            loaded = point.load()
            if isinstance(loaded, WireFormat) and loaded.name == name:
                return loaded
    raise UnknownWireFormatError(name, sorted({*_OWN, *declared.names}))

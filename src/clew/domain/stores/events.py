"""Whose a state is: the first event of a stream that is named after the state."""

from __future__ import annotations

import hashlib
import json

from clew.domain.json_values import Json
from clew.domain.names import stream_name
from clew.domain.values import Value


class StateClaimed(Value):
    """The state that the stream is named after is that of a thread, for good: no other thread's may equal it."""

    provider: str
    thread_id: str


def claim_stream(tenant: str, provider: str, state: Json) -> str:
    """The stream that says whose a state is. It holds the digest of the state, never the state itself."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return stream_name(tenant, "system", f"{provider}:{hashlib.sha256(canonical.encode()).hexdigest()}")

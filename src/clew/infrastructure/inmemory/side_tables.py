"""What lies beside the chain of a store in memory: blobs, leases and drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.infrastructure.append_plan import Plan
    from clew.infrastructure.recorder import Blob, Draft, Lease


@dataclass(slots=True)
class Beside:
    """Blobs by digest, leases and drafts by stream."""

    blobs: dict[bytes, Blob] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    drafts: dict[str, Draft] = field(default_factory=dict)

    def put(self, made: Plan) -> None:
        """Keep what an append writes."""
        for blob in made.append.blobs:
            self.blobs.setdefault(blob.digest, blob)
        for name, lease in made.leases:
            if lease is None:
                self.leases.pop(name, None)
            else:
                self.leases[name] = lease
        for draft in made.append.drafts:
            if draft.data is None:
                self.drafts.pop(draft.stream, None)
            else:
                self.drafts[draft.stream] = draft

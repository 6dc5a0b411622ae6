"""AG-UI: the events of any run, and an agent that is served to user interfaces.

This room needs the extra ``agui``.
"""

from __future__ import annotations

from clew.domain.runs.errors import MissingExtraError

try:
    import ag_ui.core  # noqa: F401
    import starlette.applications  # noqa: F401
except ModuleNotFoundError as error:
    package = "starlette" if (error.name or "").startswith("starlette") else "ag-ui-protocol"
    raise MissingExtraError("clew.agui", package, "agui") from None

from clew.agui.events import agui_events
from clew.agui.messages import agui_messages
from clew.agui.server import Authenticate, MakeOptions, ThreadOf, agui_app, agui_routes

__all__ = ["Authenticate", "MakeOptions", "ThreadOf", "agui_app", "agui_events", "agui_messages", "agui_routes"]

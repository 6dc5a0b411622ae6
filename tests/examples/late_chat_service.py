"""The chat service with a clock that is ahead by ``LATER`` seconds: leases of killed processes have expired."""

from __future__ import annotations

import os
from functools import partial

from examples.chat_service import app
from tests.agents.turns import ShiftedClock

from clew import Engine

__all__ = ["app"]

Engine.open = partial(Engine.open, now=ShiftedClock(float(os.environ["LATER"])))  # type: ignore[method-assign]

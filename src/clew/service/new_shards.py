"""Shards that come to a directory, or move, while somebody works on all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from clew.domain.errors import StoreError
from clew.domain.sharding import Shard

LOOK_SECONDS = 2.0
"""So often the directory is asked."""

Listed: TypeAlias = Callable[[], Sequence[Shard]]


def tell_of_shards(listed: Listed, told: Callable[[Sequence[Shard]], bool], ended: threading.Event) -> None:
    """Tell of the shards that there are: now, and every now and then in a thread of its own.

    So a directory that does not answer holds up nobody; it is asked again. It ends when ``ended`` is set, or when
    ``told`` returns False. Raises what ``listed`` does the first time.
    """
    told(listed())
    # It holds what ``told`` holds, and no more of who asked.
    threading.Thread(target=_tell_on, args=(listed, told, ended), name="clew-shards", daemon=True).start()


def _tell_on(listed: Listed, told: Callable[[Sequence[Shard]], bool], ended: threading.Event) -> None:
    while not ended.wait(LOOK_SECONDS):
        try:
            shards = listed()
        except StoreError:
            continue
        if not told(shards):
            return

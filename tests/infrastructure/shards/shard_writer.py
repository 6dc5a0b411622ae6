"""Who writes conversations of many tenants at once, and says what was acknowledged: in the test, and as a process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from clew import Conversations, Message
from clew.domain.errors import ClewError, ConflictError, StoreUnavailableError, ThreadExistsError

SAID = ("Where is my parcel?", "Let me look.")

T = TypeVar("T")
Tell = Callable[[str, str, int], None]


@contextmanager
def services(url: str, tenants: Sequence[str]) -> Iterator[dict[str, Conversations]]:
    """The services of these tenants, each with few connections."""
    with ExitStack() as stack:
        opened = {
            tenant: stack.enter_context(
                Conversations.open(f"{url}?workers=1&readers=1", tenant=tenant, embedded=False, projections=[])
            )
            for tenant in tenants
        }
        yield opened


def write(service: Conversations, tenant: str, count: int, tell: Tell) -> None:
    """So many threads of two messages; each step again until it is acknowledged, and told then.

    Nobody else writes to them: where the next version is there already, it is that of an append whose reply was lost.
    """
    first, second = map(Message.user, SAID)
    for number in range(count):
        id_ = f"{tenant}-{number}"
        begun = again(partial(service.start_thread, thread_id=id_, messages=[first]), ThreadExistsError)
        tell(tenant, id_, 2)
        thread = begun or again(partial(service.thread, id_))
        assert thread is not None
        again(partial(thread.append, second, expected_version=2), ConflictError)
        tell(tenant, id_, 3)


def again(do: Callable[[], T], stored: type[ClewError] | tuple[()] = ()) -> T | None:
    """What it gives, once the server is there; None where it was ``stored`` already."""
    while True:
        try:
            return do()
        except StoreUnavailableError:
            threading.Event().wait(0.2)
        except stored:
            return None


def write_all(opened: dict[str, Conversations], count: int, tell: Tell) -> None:
    """All tenants at once, each in a thread of its own."""
    threads = [
        threading.Thread(target=write, args=(service, tenant, count, tell), daemon=True)
        for tenant, service in opened.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """``URL TENANTS COUNT``: says ``ready``, waits for a line, then says each acknowledged message on a line."""
    url, tenants, count = sys.argv[1:]
    speaking = threading.Lock()

    def tell(tenant: str, id_: str, version: int) -> None:
        with speaking:
            print(tenant, id_, version, flush=True)  # noqa: T201 - how a process tells

    with services(url, tenants.split(",")) as opened:
        print("ready", flush=True)  # noqa: T201 - as above
        sys.stdin.readline()
        write_all(opened, int(count), tell)


if __name__ == "__main__":
    main()

"""Writes conversations of many tenants concurrently and reports acknowledged messages: in the test or as a process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from clew import Conversations, Message
from clew.domain.errors import ClewError, ConflictError, StoreUnavailableError, ThreadExistsError

TEXTS = ("Where is my parcel?", "Let me look.")

T = TypeVar("T")
Report = Callable[[str, str, int], None]


@contextmanager
def services(url: str, tenants: Sequence[str]) -> Iterator[dict[str, Conversations]]:
    """The services of these tenants, each with two connections."""
    with ExitStack() as stack:
        opened = {
            tenant: stack.enter_context(
                Conversations.open(f"{url}?workers=1&readers=1", tenant=tenant, embedded=False, projections=[])
            )
            for tenant in tenants
        }
        yield opened


def write(service: Conversations, tenant: str, count: int, report: Report) -> None:
    """Write ``count`` threads of two messages. Repeats each step until it is acknowledged, and reports it.

    Nothing else writes to these threads. An existing next version is from an append whose reply was lost.
    """
    first, second = map(Message.user, TEXTS)
    for number in range(count):
        id_ = f"{tenant}-{number}"
        started = retry(partial(service.start_thread, thread_id=id_, messages=[first]), ThreadExistsError)
        report(tenant, id_, 2)
        thread = started or retry(partial(service.thread, id_))
        assert thread is not None
        retry(partial(thread.append, second, expected_version=2), ConflictError)
        report(tenant, id_, 3)


def retry(do: Callable[[], T], stored: type[ClewError] | tuple[()] = ()) -> T | None:
    """Retry until the server is available. Returns the result, or None for the error ``stored``."""
    while True:
        try:
            return do()
        except StoreUnavailableError:
            threading.Event().wait(0.2)
        except stored:
            return None


def write_all(opened: dict[str, Conversations], count: int, report: Report) -> None:
    """Write for all tenants concurrently, each in its own thread."""
    threads = [
        threading.Thread(target=write, args=(service, tenant, count, report), daemon=True)
        for tenant, service in opened.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """``URL TENANTS COUNT``: print ``ready``, wait for a line, then print each acknowledged message on a line."""
    url, tenants, count = sys.argv[1:]
    printing = threading.Lock()

    def report(tenant: str, id_: str, version: int) -> None:
        with printing:
            print(tenant, id_, version, flush=True)  # noqa: T201 - the test reads it

    with services(url, tenants.split(",")) as opened:
        print("ready", flush=True)  # noqa: T201 - as above
        sys.stdin.readline()
        write_all(opened, int(count), report)


if __name__ == "__main__":
    main()

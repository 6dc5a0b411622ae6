"""Threads that only the participants in their labels may read. Run it with the URL of a database."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clew import Conversations, Message
from clew.errors import NotAuthorizedError, UnknownThreadError


class Participants:
    """Checks the labels of a thread, with a service that has no ``authorize``."""

    def __init__(self, unrestricted: Conversations) -> None:
        self._unrestricted = unrestricted

    def __call__(self, actor: str | None, action: str, thread: str | None) -> bool:
        """Return whether a thread's label names the actor. Without a thread, as for memory, return False."""
        del action  # a participant may do everything with the thread
        if actor is None or thread is None:
            return False
        try:
            labels = self._unrestricted.thread(thread).summary().labels
        except UnknownThreadError:
            return False
        participants = labels.get("participants")
        return isinstance(participants, list) and actor in participants


@contextmanager
def opened(url: str) -> Iterator[Conversations]:
    """Open the service for users: ``acting_as`` sets the user of each call."""
    with (
        Conversations.open(url, embedded=False) as unrestricted,
        Conversations.open(url, authorize=Participants(unrestricted)) as service,
    ):
        yield service


def overview(service: Conversations, user: str) -> dict[str, str]:
    """Return the threads that a user may read: the id of each, and its last message, if any."""
    mine = service.acting_as(user)
    messages_of = {each.id: mine.thread(each.id).history().messages for each in mine.threads()}
    return {thread: messages[-1].text if messages else "" for thread, messages in messages_of.items()}


if __name__ == "__main__":
    with opened(sys.argv[1]) as chats:
        chats.acting_as("ada").start_thread(
            thread_id="lunch", labels={"participants": ["ada", "bob"]}, messages=[Message.user("Lunch at noon?")]
        )
        chats.acting_as("ada").start_thread(
            thread_id="gift", labels={"participants": ["ada", "eve"]}, messages=[Message.user("A gift for Bob!")]
        )
        for name in ("ada", "bob", "eve"):
            print(name, overview(chats, name), [hit.thread_id for hit in chats.acting_as(name).search("gift")])
        try:
            chats.acting_as("bob").thread("gift")
        except NotAuthorizedError as error:
            print(error)

"""Random but repeatable words, so that messages neither compress nor repeat."""

from __future__ import annotations

import random
import string

from clew import Message

CHARACTERS = 200


class Speaker:
    """Messages of a given length, the same for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._words = [
            "".join(self._random.choices(string.ascii_lowercase, k=3 + number % 8)) for number in range(4096)
        ]

    def text(self, characters: int = CHARACTERS) -> str:
        """Words of so many characters in all."""
        return " ".join(self._random.choices(self._words, k=characters // 4))[:characters]

    def message(self, characters: int = CHARACTERS) -> Message:
        """A user's message."""
        return Message.user(self.text(characters))

    def turn(self) -> tuple[Message, Message]:
        """A user's message and its answer."""
        return self.message(), Message.assistant(self.text())

    def messages(self, count: int) -> list[Message]:
        """So many messages of users."""
        return [self.message() for _ in range(count)]

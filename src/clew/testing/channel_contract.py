"""The contract of channels, as a test: a channel adapts the messages of a small chat."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from clew.domain.chats.channels import Channel, channel_key
from clew.domain.chats.errors import ChannelContractError
from clew.domain.credential_detection import check_no_credentials
from clew.domain.errors import ClewError
from clew.domain.history import HistoryMessage
from clew.domain.messages import Message, check_message

_SAID = (
    Message.user("Was it günstig?", author="Zoë"),
    Message.assistant("I looked.", author="Me"),
    Message.assistant("It was.", author="Other"),
    Message.user("And now? 🪢"),
)
_MESSAGES = [HistoryMessage(version, each.role, each, "", 0) for version, each in enumerate(_SAID, 3)]


def check_channel(make: Callable[[], Channel]) -> None:
    """Use a channel for a few messages. Raises ChannelContractError, which names the broken rule.

    ``make`` makes the channel anew, as another process does.
    """
    channel, again = make(), make()
    _check(channel, "its key is equal in every process", channel_key(channel) == channel_key(again), "it was not")
    try:
        check_no_credentials([channel.kind, channel.address], "kind and address")
    except ClewError as error:
        raise ChannelContractError(type(channel).__name__, "its kind and address are not secret", str(error)) from None
    before = deepcopy(_MESSAGES)
    synchronised = channel.adapt(_MESSAGES, "Me", newcomer=False)
    newcomer = channel.adapt(_MESSAGES, "Me", newcomer=True)
    repeated = again.adapt(_MESSAGES, "Me", newcomer=True)
    _check(channel, "adapt() is a pure function", before == _MESSAGES and newcomer == repeated, "its results differ")
    for each in (*synchronised, *newcomer):
        check_message(each)
        _check(channel, "no message has an open call", not each.calls and not each.results, "one has")
    _check_heard(channel, "what others say is heard once, in order", synchronised, [0, 2, 3], but=[1])
    _check_heard(channel, "a newcomer hears the whole chat, its own answers included", newcomer, [0, 1, 2, 3], but=[])
    own = [each.role for each in newcomer if _SAID[1].text in each.text]
    _check(channel, "a newcomer's own answers are the assistant's", own == ["assistant"], f"the roles are {own}")
    others = [each.role for each in newcomer if _SAID[2].text in each.text]
    _check(channel, "answers of others are not its own", "assistant" not in others, f"the roles are {others}")
    _check(channel, "nothing said is nothing heard", not channel.adapt([], "Me", newcomer=True), "it gave messages")


def _check_heard(channel: Channel, rule: str, heard: list[Message], said: list[int], *, but: list[int]) -> None:
    text = "\n".join(each.text for each in heard)
    places = [text.find(_SAID[each].text) for each in said]
    complete = -1 not in places and places == sorted(places) and all(text.count(_SAID[each].text) == 1 for each in said)
    _check(channel, rule, complete and not any(_SAID[each].text in text for each in but), f"it gave {text!r}")


def _check(channel: Channel, rule: str, holds: object, found: str) -> None:
    if not holds:
        raise ChannelContractError(type(channel).__name__, rule, found)

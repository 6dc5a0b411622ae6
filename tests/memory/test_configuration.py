"""Invalid configurations of the shipped providers are refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clew.domain.runs.errors import AgentConfigurationError
from clew.infrastructure.scripted_client import ScriptedChatClient
from clew.memory.agent_lessons import AgentLessons
from clew.memory.conversation_summaries import ConversationSummaries
from clew.memory.user_facts import UserFacts
from clew.memory.user_preferences import UserPreferences
from clew.memory.whiteboard import Whiteboard

SCOPED: list[Callable[..., Any]] = [UserFacts, UserPreferences, ConversationSummaries, AgentLessons]
SEARCHED: list[Callable[..., Any]] = [ConversationSummaries, AgentLessons]


@pytest.mark.parametrize("made", SCOPED)
def test_refuses_an_invalid_client(made: Callable[..., Any]) -> None:
    with pytest.raises(AgentConfigurationError, match="client: str is not a model client") as caught:
        made("user/42", "sk-canary")
    assert "canary" not in str(caught.value)


def test_refuses_a_whiteboard_without_a_client() -> None:
    no_client: Any = None
    with pytest.raises(AgentConfigurationError, match="NoneType is not a model client"):
        Whiteboard(no_client)


@pytest.mark.parametrize("made", [*SEARCHED, UserFacts])
@pytest.mark.parametrize("top", [0, -1, True, "3"])
def test_refuses_an_invalid_number_of_facts(made: Callable[..., Any], top: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="top="):
        made("user/42", top=top)


@pytest.mark.parametrize("made", SEARCHED)
@pytest.mark.parametrize("score", [-0.1, 2, float("nan"), True, "0"])
def test_refuses_an_invalid_score(made: Callable[..., Any], score: Any) -> None:
    with pytest.raises(AgentConfigurationError, match="min_score="):
        made("user/42", min_score=score)


def test_refuses_a_whiteboard_without_room() -> None:
    with pytest.raises(AgentConfigurationError, match="most=0"):
        Whiteboard(ScriptedChatClient("Fine."), most=0)


def test_refuses_a_screen_that_is_not_a_function() -> None:
    screen: Any = "strict"
    with pytest.raises(AgentConfigurationError, match="screen='strict'"):
        AgentLessons("agent/desk", screen=screen)


def test_each_provider_has_its_own_id_that_can_be_changed() -> None:
    client = ScriptedChatClient("Fine.")
    made = [each("user/42") for each in SCOPED] + [Whiteboard(client), UserFacts("user/42", id="team-facts")]
    assert [each.id for each in made] == [
        "user-facts",
        "user-preferences",
        "conversation-summaries",
        "agent-lessons",
        "whiteboard",
        "team-facts",
    ]

"""What a thread sees that reads scopes as of a cut.

The thread ``leaf`` was forked from ``fork`` at version 9, which was forked from ``root`` at version 5, as of there: at
position 50. Version 9 of the fork lies at position 90.
"""

from __future__ import annotations

import pytest

from clew.domain.memory.events import Provenance
from clew.domain.memory.scope import AsOf, Inherited

LEAF = AsOf("leaf", 5, 50, {"fork": Inherited(9, 90)})


@pytest.mark.parametrize(
    ("position", "learned", "sees"),
    [
        pytest.param(50, None, True, id="what was there at the cut"),
        pytest.param(50, Provenance(thread="other", version=99), True, id="whoever learned it"),
        pytest.param(51, None, False, id="what came later, from nowhere"),
        pytest.param(51, Provenance(thread="other", version=6), False, id="what others learned later"),
        pytest.param(51, Provenance(thread="root", version=6), False, id="what the parent learned later"),
        pytest.param(51, Provenance(thread="root", version=5), False, id="the parent, later, from before the cut"),
        pytest.param(999, Provenance(thread="leaf", version=10), True, id="what it learned itself"),
        pytest.param(999, Provenance(thread="leaf", version=2), True, id="what it learned from what it inherited"),
        pytest.param(999, Provenance(thread="fork", version=9), True, id="what it has from the fork that cut"),
        pytest.param(999, Provenance(thread="fork", version=10), False, id="what that fork learned after it left"),
        pytest.param(90, Provenance(thread="fork", version=2), True, id="what that fork made of its own past in time"),
        pytest.param(91, Provenance(thread="fork", version=2), False, id="what that fork made of it later"),
    ],
)
def test_a_thread_sees_what_was_there_at_its_cut_and_what_it_has_learned_since(
    position: int, learned: Provenance | None, *, sees: bool
) -> None:
    assert LEAF.sees(position, learned) is sees

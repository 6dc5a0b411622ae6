"""Visibility of facts for a thread that reads scopes as of a cut.

The thread ``leaf`` was forked from ``fork`` at version 9, which was forked from ``root`` at version 5, as of there: at
The thread ``leaf`` is a fork of ``fork`` at version 9, which is a fork of ``root`` at version 5 and reads as of
"""

from __future__ import annotations

import pytest

from clew.domain.memory.events import Provenance
from clew.domain.memory.scope import AsOf, Inherited

LEAF = AsOf("leaf", 5, 50, {"fork": Inherited(9, 90)})


@pytest.mark.parametrize(
    ("position", "learned", "sees"),
    [
        pytest.param(50, None, True, id="before the cut"),
        pytest.param(50, Provenance(thread="other", version=99), True, id="before the cut, of another thread"),
        pytest.param(51, None, False, id="later, without a source"),
        pytest.param(51, Provenance(thread="other", version=6), False, id="later, of another thread"),
        pytest.param(51, Provenance(thread="root", version=6), False, id="later, of the parent"),
        pytest.param(51, Provenance(thread="root", version=5), False, id="later, of the parent before the cut"),
        pytest.param(999, Provenance(thread="leaf", version=10), True, id="own fact"),
        pytest.param(999, Provenance(thread="leaf", version=2), True, id="own fact from an inherited message"),
        pytest.param(999, Provenance(thread="fork", version=9), True, id="of the fork before it was forked"),
        pytest.param(999, Provenance(thread="fork", version=10), False, id="of the fork after it was forked"),
        pytest.param(90, Provenance(thread="fork", version=2), True, id="of the fork's past, in time"),
        pytest.param(91, Provenance(thread="fork", version=2), False, id="of the fork's past, later"),
    ],
)
def test_a_thread_sees_facts_before_its_cut_and_its_own_later_facts(
    position: int, learned: Provenance | None, *, sees: bool
) -> None:
    assert LEAF.sees(position, learned) is sees

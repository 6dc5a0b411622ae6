"""The behaviour of stored states of folds in every store: found along a lineage, and dropped with what they hold."""

from __future__ import annotations

from tests.infrastructure.recorder_steps import append, event, failure

from clew.domain.ports import FoldState, Fork, Shred
from clew.domain.streams import digest
from clew.infrastructure.recorder_ports import RecordedConflictError, Recorder


def state(recorder: Recorder, stream: str, version: int, text: bytes = b"", name: str = "f") -> FoldState:
    """The state of a fold at a version. Its slot is the lowest bit of the version."""
    written = text or f"{stream} {version}".encode()
    return FoldState(stream, name, version, version & -version, written, recorder.shredded())


def fill_family(recorder: Recorder) -> None:
    """A stream of 12 events, a fork of it after 8, a fork of that after 10, and another after 2."""
    append(recorder, *[event("a", version) for version in range(1, 13)])
    append(recorder, *[event("b", version) for version in range(9, 13)], forks={"b": Fork("a", 8)})
    append(recorder, *[event("c", version) for version in range(11, 13)], forks={"c": Fork("b", 10)})
    append(recorder, *[event("d", version) for version in range(3, 13)], forks={"d": Fork("a", 2)})


class FoldContract:
    """States of folds, by stream, name and version."""

    def test_finds_the_newest_state_along_the_lineage(self, recorder: Recorder) -> None:
        fill_family(recorder)
        append(recorder, folds=[state(recorder, "a", 4), state(recorder, "a", 10), state(recorder, "b", 9)])
        append(recorder, folds=[state(recorder, "a", 6, name="other")])
        assert recorder.fold_state("a", "f", 12) == (10, b"a 10")
        assert recorder.fold_state("a", "f", 9) == (4, b"a 4")
        assert recorder.fold_state("a", "f", 3) is None
        assert recorder.fold_state("a", "other", 12) == (6, b"a 6")
        assert recorder.fold_state("c", "f", 12) == (9, b"b 9")
        assert recorder.fold_state("c", "f", 8) == (4, b"a 4")
        assert recorder.fold_state("d", "f", 12) is None
        assert recorder.fold_state("missing", "f", 12) is None

    def test_a_state_replaces_the_one_in_its_slot(self, recorder: Recorder) -> None:
        fill_family(recorder)
        for version in (2, 4, 6, 12):
            append(recorder, folds=[state(recorder, "a", version)])
        assert recorder.fold_state("a", "f", 12) == (12, b"a 12")
        assert recorder.fold_state("a", "f", 11) == (6, b"a 6")
        assert recorder.fold_state("a", "f", 5) is None

    def test_a_state_of_an_earlier_version_does_not_replace_the_one_in_its_slot(self, recorder: Recorder) -> None:
        fill_family(recorder)
        for version in (6, 2, 10, 6):
            append(recorder, folds=[state(recorder, "a", version)])
        assert recorder.fold_state("a", "f", 12) == (10, b"a 10")
        assert recorder.fold_state("a", "f", 9) is None
        append(recorder, folds=[state(recorder, "a", 10, b"again"), state(recorder, "a", 2, name="other")])
        assert recorder.fold_state("a", "f", 12) == (10, b"again")
        assert recorder.fold_state("a", "other", 12) == (2, b"a 2")

    def test_shredding_a_row_drops_the_states_that_may_hold_it(self, recorder: Recorder) -> None:
        fill_family(recorder)
        stored = [("a", 4), ("a", 6), ("a", 11), ("b", 9), ("c", 12), ("d", 3)]
        append(recorder, folds=[state(recorder, *each) for each in stored])
        append(recorder, event("a", 13), shreds=[Shred("a", 5, digest(b"a 5"), b"stub")])
        assert recorder.fold_state("a", "f", 13) == recorder.fold_state("c", "f", 12) == (4, b"a 4")
        assert recorder.fold_state("d", "f", 12) == (3, b"d 3")
        append(recorder, folds=[state(recorder, "b", 9), state(recorder, "a", 9)])
        append(recorder, event("b", 13), shreds=[Shred("b", 9, digest(b"b 9"), b"stub")])
        assert recorder.fold_state("b", "f", 13) == (4, b"a 4")
        assert recorder.fold_state("a", "f", 13) == (9, b"a 9")

    def test_a_state_from_before_a_row_was_shredded_is_not_stored(self, recorder: Recorder) -> None:
        fill_family(recorder)
        before = state(recorder, "a", 6)
        append(recorder, event("a", 13), shreds=[Shred("a", 5, digest(b"a 5"), b"stub")])
        append(recorder, folds=[before])
        assert recorder.fold_state("a", "f", 13) is None
        append(recorder, folds=[state(recorder, "a", 6)])
        assert recorder.fold_state("a", "f", 13) == (6, b"a 6")

    def test_refuses_a_state_of_a_version_that_does_not_exist(self, recorder: Recorder) -> None:
        append(recorder, event("a", 1))
        for stream, version in (("a", 2), ("b", 1)):
            assert isinstance(failure(recorder, folds=[state(recorder, stream, version)]), RecordedConflictError)
        assert recorder.fold_state("a", "f", 9) is None

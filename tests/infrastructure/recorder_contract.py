"""The contract of every event store. Each store subclasses the suite, with a fixture that opens the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from eventsourcing.persistence import StoredEvent
from tests.infrastructure.append_contract import AppendContract, KeyContract
from tests.infrastructure.fold_contract import FoldContract
from tests.infrastructure.index_contract import IndexContract
from tests.infrastructure.lineage_contract import ForkContract, RestoreContract, ShredContract
from tests.infrastructure.recorder_steps import PATIENCE, Opener, append, event, fill, run_threads
from tests.infrastructure.side_tables_contract import BlobContract, DraftContract, LeaseContract, RecordBlobContract
from tests.infrastructure.waiting_contract import FutureContract, WakeContract

from clew.domain.ports import Fork, Row
from clew.infrastructure import recorder_ports as recorder_port
from clew.infrastructure.postgres import recorder as postgres_recorder
from clew.infrastructure.recorder_ports import Recorder, Snapshot


class ReadContract:
    """The behaviour of reads: rows, streams and positions."""

    def test_a_new_store_is_empty(self, recorder: Recorder) -> None:
        assert recorder.last_position() == 0
        assert recorder.rows(after=0, limit=10) == []
        assert recorder.streams(limit=10) == []
        assert recorder.stream("a") is None
        assert recorder.lineage("a") == recorder.own_rows("a", limit=10) == []
        assert recorder.orphans(10) == []
        assert recorder.shredded() == 0

    def test_pages_through_all_rows_in_position_order(self, recorder: Recorder) -> None:
        for version in range(1, 11):
            append(recorder, event("a", version), event("b", version))
        rows: list[Row] = []
        while page := recorder.rows(after=rows[-1].position if rows else 0, limit=3):
            assert len(page) <= 3
            rows.extend(page)
        assert len(rows) == 20
        assert all(one.position < two.position for one, two in pairwise(rows))
        assert recorder.last_position() == rows[-1].position

    def test_reads_rows_up_to_a_position(self, recorder: Recorder) -> None:
        for version in range(1, 11):
            append(recorder, event("x/a", version), event("b", version))
        rows = recorder.rows(after=0, limit=99)
        for first, last in (0, 5), (5, 6), (3, 19), (7, 7), (9, 2):
            after, upto = rows[first].position, rows[last].position
            between = rows[first + 1 : last + 1]
            assert recorder.rows(after=after, limit=99, upto=upto) == between
            assert recorder.rows(after=after, limit=2, upto=upto) == between[:2]
            of_stream = [row for row in between if row.stream == "x/a"]
            assert recorder.rows(after=after, limit=99, upto=upto, prefix="x/") == of_stream
        assert recorder.rows(after=0, limit=99, upto=0) == recorder.rows(after=0, limit=99, upto=-1) == []
        assert recorder.rows(after=0, limit=99, upto=2**70) == rows

    def test_reads_the_rows_at_given_positions_in_order(self, recorder: Recorder) -> None:
        for version in range(1, 601):
            append(recorder, event("a", version), event("b", version))
        rows = recorder.rows(after=0, limit=2_000)
        assert recorder.rows_at([]) == []
        assert recorder.rows_at([rows[7].position, 0, -1, 2**70, rows[2].position, rows[7].position]) == [
            rows[2],
            rows[7],
        ]
        assert recorder.rows_at([row.position for row in reversed(rows)]) == rows

    def test_counts_the_rows_after_a_position_up_to_a_limit(self, recorder: Recorder) -> None:
        assert recorder.count_after(0, 10) == 0
        for version in range(1, 6):
            append(recorder, event("a", version), event("b", version))
        rows = recorder.rows(after=0, limit=10)
        assert [recorder.count_after(row.position, 100) for row in rows] == [*range(9, -1, -1)]
        assert [recorder.count_after(0, limit) for limit in (0, 1, 9, 10, 11, 2**70)] == [0, 1, 9, 10, 10, 10]
        assert recorder.count_after(-1, 100) == 10
        assert recorder.count_after(2**62, 100) == recorder.count_after(2**70, 100) == 0

    def test_pages_through_the_own_rows_of_a_stream(self, recorder: Recorder) -> None:
        fill(recorder, "a", 10)
        rows: list[Row] = []
        while page := recorder.own_rows("a", after=rows[-1].version if rows else -1, limit=4):
            assert len(page) <= 4
            rows.extend(page)
        assert rows == recorder.lineage("a")

    def test_a_page_ends_early_if_its_rows_are_large(self, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in recorder_port, postgres_recorder:
            monkeypatch.setattr(module, "PAGE_BYTES", 5_000)
        sizes = [10, 4_000, 999, 1, 9_000, 20, 4_980, 30, 40]
        for version, size in enumerate(sizes, 1):
            append(recorder, StoredEvent("x/a", version, "noted", b"x" * size), event("y", version))
        pages: dict[str, list[list[int]]] = {"own": [], "prefix": [], "all": []}
        after = -1
        while page := recorder.own_rows("x/a", after=after, limit=100):
            pages["own"].append([len(row.state) for row in page])
            after = page[-1].version
        after = 0
        while page := recorder.rows(after=after, limit=100, prefix="x/"):
            pages["prefix"].append([len(row.state) for row in page])
            after = page[-1].position
        assert pages["own"] == pages["prefix"] == [[10, 4_000, 999], [1, 9_000], [20, 4_980], [30, 40]]
        after = 0
        while page := recorder.rows(after=after, limit=100):
            pages["all"].append([len(row.state) for row in page if row.stream == "x/a"])
            assert sum(len(row.state) for row in page[:-1]) < 5_000
            after = page[-1].position
        assert [size for page in pages["all"] for size in page] == sizes

    @pytest.mark.parametrize("far", [2**63, 2**70])
    def test_accepts_integers_of_any_size(self, recorder: Any, far: int) -> None:
        fill(recorder, "a", 3)
        append(recorder, event("b", 3), forks={"b": Fork("a", 2)}, snapshots=[Snapshot("a", 1, b"a1")])
        infos = recorder.streams(limit=10)
        assert recorder.lineage("b", upto=far) == recorder.lineage("b", after=-far) == recorder.lineage("b") != []
        assert recorder.lineage("b", after=far) == recorder.lineage("b", upto=-far) == []
        assert recorder.own_rows("a", after=-far, limit=far) == recorder.lineage("a")
        assert recorder.own_rows("a", after=far, limit=far) == []
        assert recorder.snapshot("b", far) == Snapshot("a", 1, b"a1")
        assert recorder.snapshot("b", -far) is None
        assert recorder.orphans(far) == []
        for prefix in ("", "a"):
            assert recorder.rows(after=-far, limit=far, prefix=prefix) == recorder.rows(after=0, limit=9, prefix=prefix)
            assert recorder.rows(after=far, limit=far, prefix=prefix) == []
            streams = recorder.streams(after=-far, limit=far, prefix=prefix)
            assert streams == [info for info in infos if info.name.startswith(prefix)] != []
            assert recorder.streams(after=far, limit=far, prefix=prefix) == []
        assert len(recorder.select_events("a", gt=-far, lte=far, limit=far)) == 3
        assert recorder.select_events("a", gt=far) == []
        assert len(recorder.select_notifications(-far, far, far)) == 4
        assert recorder.select_notifications(far, far) == []

    NAMES: ClassVar[list[str]] = [
        "default/thread/a", "default/thread/b", "default/memory/a", "default/threads", "Default/thread/a", "default",
        "default%", "default_x", "d\U0010ffff", "d\U0010ffffz", "d\ud7ff", "d\ue000", "é", "e", "日本語", "日本",
    ]  # fmt: skip

    @pytest.mark.parametrize(
        "prefix", ["", "default/thread/", "default/thread", "default", "default%", "default_", "d", "d\U0010ffff",
                   "d\ud7ff", "\U0010ffff", "日", "D", "e", "nothing", "default/thread/a"],
    )  # fmt: skip
    def test_filters_by_the_exact_prefix_of_a_name(self, recorder: Recorder, prefix: str) -> None:
        for name in self.NAMES:
            append(recorder, event(name, 1))
        for name in self.NAMES:
            append(recorder, event(name, 2))
        expected = [name for name in self.NAMES if name.startswith(prefix)]
        assert [info.name for info in recorder.streams(prefix=prefix, limit=100)] == expected
        assert [row.stream for row in recorder.rows(after=0, limit=100, prefix=prefix)] == expected * 2

    def test_pages_through_streams_and_rows_with_a_prefix(self, recorder: Recorder) -> None:
        for number in range(20):
            append(recorder, event(f"{'x' if number % 3 else 'y'}/{number}", 1))
        expected = [f"x/{number}" for number in range(20) if number % 3]
        names: list[str] = []
        after = 0
        while page := recorder.streams(prefix="x/", after=after, limit=4):
            names.extend(info.name for info in page)
            after = page[-1].key
        assert names == expected
        names = []
        after = 0
        while rows := recorder.rows(prefix="x/", after=after, limit=4):
            names.extend(row.stream for row in rows)
            after = rows[-1].position
        assert names == expected

    def test_finds_which_of_many_streams_exist(self, recorder: Recorder) -> None:
        assert recorder.existing(["a"]) == recorder.existing([]) == set()
        for number in range(0, 1_200, 300):
            append(recorder, event(f"default/thread/{number}", 1))
        names = [f"default/thread/{number}" for number in range(1_201)]
        assert recorder.existing(names) == {f"default/thread/{number}" for number in range(0, 1_200, 300)}
        assert recorder.existing(["default/thread", "DEFAULT/THREAD/0", "default/thread/0", "default/thread/0"]) == {
            "default/thread/0"
        }

    def test_a_tailing_reader_sees_increasing_positions(self, recorder: Recorder) -> None:
        done = threading.Event()
        seen: list[int] = []

        def tail() -> None:
            is_ending = False
            while True:
                is_ending = done.is_set()
                page = recorder.rows(after=seen[-1] if seen else 0, limit=50)
                seen.extend(row.position for row in page)
                if is_ending and not page:
                    return

        def write(number: int) -> None:
            for version in range(1, 41):
                append(recorder, event(f"s{number}", version))

        reader = threading.Thread(target=tail)
        reader.start()
        try:
            run_threads([lambda number=number: write(number) for number in range(6)])  # type: ignore[misc] # as above
        finally:
            done.set()
            reader.join(PATIENCE)
        assert seen == [row.position for row in recorder.rows(after=0, limit=1000)]
        assert len(seen) == 240


class RecorderContract(
    AppendContract,
    KeyContract,
    ForkContract,
    ShredContract,
    RestoreContract,
    ReadContract,
    FoldContract,
    IndexContract,
    BlobContract,
    RecordBlobContract,
    LeaseContract,
    DraftContract,
    FutureContract,
    WakeContract,
):
    """The complete contract. A subclass provides the fixture ``opener``."""

    @pytest.fixture
    def recorder(self, opener: Opener) -> Iterator[Recorder]:
        recorder = opener()
        yield recorder
        recorder.close()

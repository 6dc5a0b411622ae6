"""Vectors in a PostgreSQL database, with and without the extension pgvector, compared by Clew or by the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.infrastructure.recorder_steps import in_forked_child, run_threads
from tests.infrastructure.vector_contract import SPACE, Vector, VectorIndexContract, digest, entries, put, vectors
from tests.servers.postgres_server import GUARDED, PASSWORD, PostgresServer, ask, end_sessions
from tests.servers.row_level_security import isolate_tenants

from clew.domain.errors import StoreUnavailableError
from clew.domain.memory.ports import VectorIndex
from clew.domain.runs.errors import MissingExtraError
from clew.infrastructure import vector_matrices
from clew.infrastructure.inmemory.vectors import InMemoryVectors
from clew.infrastructure.postgres import vectors as postgres_vectors
from clew.infrastructure.postgres.vectors import PostgresVectors
from clew.infrastructure.stores import store_at

_tenants = count()
STORED = {1: (1.0, 0.0)}
TYPE = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'clew_vector'::regclass AND attnum = 4"


def without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres_vectors._SQL, "can have the extension", "SELECT false")


def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        message = "numpy"
        raise MissingExtraError(message, "numpy", "vectors")

    monkeypatch.setattr(postgres_vectors, "find_spec", lambda _: None)
    monkeypatch.setattr(vector_matrices, "_numpy", missing)


SETUPS: dict[str, Callable[[pytest.MonkeyPatch], None] | None] = {
    "vector": None,
    "bytea": without_the_extension,
    "server": without_numpy,
}


class TestPostgresVectors(VectorIndexContract):
    @pytest.fixture(autouse=True, params=SETUPS)
    def setup(self, request: pytest.FixtureRequest, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
        store_at(postgres).migrate()
        self.url = postgres
        change = SETUPS[request.param]
        if change is not None:
            change(monkeypatch)

    def make(self) -> VectorIndex:
        return PostgresVectors(self.url, tenant=f"t{next(_tenants)}")


@pytest.fixture
def database(postgres: str) -> str:
    store_at(postgres).migrate()
    return postgres


def test_creates_no_table_before_the_first_vector(database: str) -> None:
    with closing(store_at(database).open_vectors()) as index:
        assert index.missing(SPACE, [b"x"]) == {b"x"}
        assert index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        index.drop()
        assert ask(database, "SELECT to_regclass('clew_vector')") == [(None,)]
        put(index, (1, 0))
        assert ask(database, TYPE) == [("vector",)]


def test_uses_the_extension_in_any_schema(database: str) -> None:
    ask(database, "CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
    try:
        with closing(PostgresVectors(database)) as index:
            put(index, (1, 0))
            assert ask(database, TYPE) == [("extensions.vector",)]
            assert dict(index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)) == pytest.approx({1: 1})
            assert dict(index._nearest_there(SPACE, entries(STORED), (1, 0), 1)) == pytest.approx({1: 1})
    finally:
        ask(database, "DROP SCHEMA extensions CASCADE")


def test_reports_a_name_that_is_too_long(database: str) -> None:
    with closing(PostgresVectors(database)) as index, pytest.raises(StoreUnavailableError, match="use shorter names"):
        index.put(token_hex(9_000), {digest((1, 0)): (1, 0)})


def test_stores_bytes_if_the_user_may_not_create_the_extension(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as url:
        store_at(url).migrate()
        ask(url, f"GRANT CREATE, USAGE ON SCHEMA public TO {GUARDED}")
        ask(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
        name = url.rpartition("/")[2]
        with closing(store_at(postgres_server.url(name, GUARDED, PASSWORD)).open_vectors()) as index:
            put(index, (1, 0))
            assert ask(url, TYPE) == [("bytea",)]
            assert dict(index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)) == pytest.approx({1: 1})
            assert PASSWORD not in repr(vars(index)["_address"].shown)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.integers(0, 9), vectors, max_size=8), vectors, st.integers(1, 9))
def test_finds_the_same_vectors_as_an_in_memory_index(
    database: str, stored: dict[int, Vector], query: Vector, top: int
) -> None:
    with closing(PostgresVectors(database, tenant=f"t{next(_tenants)}")) as index, closing(InMemoryVectors()) as other:
        for each in (index, other):
            put(each, *stored.values())
        on_server = index._nearest_there(SPACE, entries(stored), query, top)
        in_memory = other.nearest(SPACE, "c", entries(stored), 1, query, top)
        assert [near for _, near in on_server] == pytest.approx([near for _, near in in_memory], abs=1e-6)
        assert index.nearest(SPACE, "c", entries(stored), 1, query, top) == in_memory


def test_other_processes_but_not_other_tenants_find_a_vector(database: str) -> None:
    with closing(store_at(database).open_vectors()) as one, closing(store_at(database).open_vectors()) as other:
        assert other.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        put(one, (1, 0))
        assert other.missing(SPACE, [digest((1, 0))]) == set()
        assert dict(other.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)) == pytest.approx({1: 1})
    with (
        closing(store_at(database).open_vectors(tenant="a")) as mine,
        closing(store_at(database).open_vectors(tenant="b")) as yours,
    ):
        put(mine, (1, 0))
        put(yours, (1, 0))
        yours.drop()
        assert yours.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
        assert mine.missing(SPACE, [digest((1, 0))]) == set()


def test_row_level_security_separates_the_vectors_of_tenants(postgres: str) -> None:
    app = isolate_tenants(postgres).app
    assert ask(postgres, TYPE) == [("vector",)]
    with (
        closing(store_at(app).open_vectors(tenant="a")) as mine,
        closing(store_at(app).open_vectors(tenant="b")) as yours,
    ):
        put(mine, (1, 0))
        assert yours.missing(SPACE, [digest((1, 0))]) == {digest((1, 0))}
        yours.drop()
        assert dict(mine.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)) == pytest.approx({1: 1})
        # The database checks the tenant in the key, also for a forged tenant in the query.
        yours._tenant = mine._tenant  # type: ignore[attr-defined] # of this index
        assert yours.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1) == []
        with pytest.raises(StoreUnavailableError, match="row-level security"):
            put(yours, (0, 1))


def test_concurrent_indexes_create_the_table_once(database: str) -> None:
    def work(number: int) -> None:
        with closing(store_at(database).open_vectors()) as index:
            put(index, (1, number))

    run_threads([lambda number=number: work(number) for number in range(6)])  # type: ignore[misc] # a bound loop
    assert ask(database, "SELECT count(*) FROM clew_vector") == [(6,)]


def test_works_after_its_connections_were_closed_and_in_a_forked_child(database: str) -> None:
    with closing(store_at(database).open_vectors()) as index:
        put(index, (1, 0))

        def search() -> None:
            assert index.missing(SPACE, [digest((1, 0))]) == set()
            assert [number for number, _ in index.nearest(SPACE, "c", entries(STORED), 1, (1, 0), 1)] == [1]

        assert in_forked_child(search) == 0
        search()
        end_sessions(database)
        search()


def test_reports_a_missing_database(postgres: str) -> None:
    index = store_at(postgres.replace(postgres.rpartition("/")[2], "missing")).open_vectors()
    with closing(index), pytest.raises(StoreUnavailableError, match="this database does not exist"):
        put(index, (1, 0))


def test_asks_for_numpy_if_it_and_the_extension_are_missing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_extension(monkeypatch)
    without_numpy(monkeypatch)
    with closing(store_at(database).open_vectors()) as index, pytest.raises(MissingExtraError, match="numpy"):
        index.missing(SPACE, [])

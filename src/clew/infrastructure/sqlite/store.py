"""The store of ``sqlite:`` URLs: a file, a second one named ``….projections``, and a third one ``….vectors``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from clew.domain.errors import StoreUrlError
from clew.infrastructure.sqlite.file_access import resolved
from clew.infrastructure.stores import FORMS, Schemas, Store, without_secrets

if TYPE_CHECKING:
    from clew.domain.diagnostics import Finding
    from clew.infrastructure.event_log import ConversationLog
    from clew.infrastructure.sqlite.completion_names import SQLiteNames
    from clew.infrastructure.sqlite.projection_store import SQLiteProjections
    from clew.infrastructure.sqlite.vectors import SQLiteVectors


class SQLiteStore(Store):
    """The SQLite file that a URL names; ``name`` is its path."""

    has_own_read_models = True

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:  # brackets that hold no address
            raise _no_file(url) from None
        path = unquote(parts.path, errors="surrogateescape")
        if parts.netloc or not path.startswith("/") or path in {"/", "//"} or "\0" in path or parts.fragment:
            raise _no_file(url)
        settings = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._synchronous = settings.pop("synchronous", "FULL").upper()
        mode = settings.pop("mode", "rw")
        if settings or self._synchronous not in {"FULL", "NORMAL", "OFF"} or mode not in {"ro", "rw"}:
            raise StoreUrlError(
                f"{without_secrets(url)!r}: the only settings are synchronous=FULL, NORMAL or OFF, and mode=ro or rw."
            )
        self.read_only = mode == "ro"
        # More slashes before the first folder name the same file, not a host.
        self.name = resolved(path[1:] if not path.startswith("//") else "/" + path.lstrip("/"))

    def open_log(self, *, create: bool = True, tenant: str | None = None) -> ConversationLog:
        """Open the log. Without ``create`` a missing database or an empty file is a StoreUnavailableError."""
        del tenant
        from clew.infrastructure.event_log import ConversationLog

        return ConversationLog(
            {
                "PERSISTENCE_MODULE": "clew.infrastructure.sqlite.factory:SQLiteFactory",
                "SQLITE_DBNAME": self.name,
                "SQLITE_SYNCHRONOUS": self._synchronous,
                "SQLITE_CREATE": "yes" if create else "no",
                "SQLITE_READ_ONLY": "yes" if self.read_only else "no",
                "ORIGINATOR_ID_TYPE": "text",
            }
        )

    def open_projections(self, *, tenant: str | None = None) -> SQLiteProjections:
        """The tables of projections, in a file next to the log."""
        del tenant
        if self.read_only:
            from clew.infrastructure.sqlite.read_only import ReadOnlyProjections

            return ReadOnlyProjections(self.name + ".projections")
        from clew.infrastructure.sqlite.projection_store import SQLiteProjections

        return SQLiteProjections(self.name + ".projections", self.name)

    def open_vectors(self, *, tenant: str | None = None) -> SQLiteVectors:
        """The index of vectors, in a file next to the log."""
        del tenant
        from clew.infrastructure.sqlite.vectors import SQLiteVectors

        return SQLiteVectors(self.name + ".vectors", self.name, read_only=self.read_only)

    def list_names(self, tenant: str) -> SQLiteNames:
        """Names of streams, read without opening, making or locking anything."""
        del tenant
        from clew.infrastructure.sqlite.completion_names import SQLiteNames

        return SQLiteNames(self.name)

    def can_be_written(self) -> bool:
        """Whether this user may write to the file and make files next to it; True if it does not exist."""
        from clew.infrastructure.sqlite.schema import may_be_written

        return may_be_written(self.name)

    def schemas(self) -> Schemas:
        """The schema of the file and the schema that this Clew knows."""
        from clew.infrastructure.sqlite import migrations

        return migrations.schemas(self.name)

    def migrate(
        self, *, backup: str | None = None, partitions: int | None = None, row_level_security: bool = False
    ) -> Schemas:
        """Bring the file to the schema that this Clew knows; returns what its schema was."""
        if partitions is not None:
            raise StoreUrlError("Only a PostgreSQL database has partitions: a SQLite database is one file.")
        if row_level_security:
            raise StoreUrlError(
                "Only a PostgreSQL database separates tenants itself: a reader of a SQLite file can read all of it."
            )
        from clew.infrastructure.sqlite import migrations

        return migrations.migrate(self.name, backup=backup)

    def check_environment(self) -> Iterator[Finding]:
        """The SQLite library of this Python."""
        from clew.infrastructure.sqlite import doctor

        return doctor.of_library()

    def check_files(self) -> Iterator[Finding]:
        """Permissions, free space, and the length of the write-ahead logs."""
        from clew.infrastructure.sqlite import doctor

        return doctor.of_file(self.name)

    def check_tables(self, tenant: str, now: int) -> Iterator[Finding]:
        """The data that runs store next to the events, and redactions that are not complete."""
        del tenant
        from clew.infrastructure.sqlite import doctor

        yield doctor.of_runs(self.name, now)
        yield doctor.of_redactions(self.name)

    def check_pages(self) -> Iterator[Finding]:
        """The pages of the log and of the projections."""
        from clew.infrastructure.sqlite import doctor

        yield from doctor.of_pages("pages", self.name)
        yield from doctor.of_pages("projections-pages", self.name + ".projections")


def _no_file(url: str) -> StoreUrlError:
    return StoreUrlError(f"{without_secrets(url)!r} does not name a SQLite file. {FORMS}")

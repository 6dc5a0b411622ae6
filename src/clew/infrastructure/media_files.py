"""Images, audio and files as contents of messages, from bytes, files and URLs.

A string is always a URL: a file is read only for a path object, so that text from elsewhere never names a file.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TypeAlias

from clew.domain.errors import InvalidContentError
from clew.domain.media_types import media_of_bytes, media_of_url
from clew.domain.messages import Media

MediaSource: TypeAlias = bytes | PathLike[str] | str
"""Bytes, the path of a file, or a URL."""


def Image(source: MediaSource, *, media_type: str | None = None) -> Media:  # noqa: N802 - it reads like the other contents
    """An image for a message: bytes, a ``Path``, or a URL (``https:``, ``http:``, ``gs:``, ``s3:`` or ``data:``).

    A file is read at once. The media type is found in the first bytes or the file's extension, unless it is given. A
    string is always a URL, never a path. Raises InvalidContentError for anything that is not an image, for a file that
    cannot be read, and for more than 16 MiB.
    """
    return _media("Image", source, media_type, None)


def Audio(source: MediaSource, *, media_type: str | None = None) -> Media:  # noqa: N802 - as above
    """Audio for a message, like ``Image``."""
    return _media("Audio", source, media_type, None)


def File(source: MediaSource, *, media_type: str | None = None, name: str | None = None) -> Media:  # noqa: N802 - as above
    """A file of any type for a message, like ``Image``. ``name`` is that of the file, by default the name in its path.

    Services that take file names get it.
    """
    return _media("File", source, media_type, name)


def _media(kind: str, source: object, media_type: str | None, name: str | None) -> Media:
    if isinstance(source, str):
        return media_of_url(kind, source, media_type=media_type, name=name)
    if isinstance(source, bytes):
        return media_of_bytes(kind, source, media_type=media_type, name=name, named=name)
    if not isinstance(source, PathLike):
        what = type(source).__name__
        raise InvalidContentError(f"{kind}: {what} is neither bytes, nor a path, nor a URL. Give one of them.")
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidContentError(f"{kind}: the file {str(path)!r} cannot be read: {error.strerror}.") from error
    name = path.name if kind == "File" and name is None else name
    return media_of_bytes(kind, data, media_type=media_type, name=name, named=path.name)

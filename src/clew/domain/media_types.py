"""The media type of bytes, of a file name and of a ``data:`` URI, and media made of them."""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import a2b_base64
from urllib.parse import unquote_to_bytes, urlsplit

from clew.domain.errors import InvalidContentError
from clew.domain.json_values import MAX_BYTES
from clew.domain.messages import Media

SCHEMES = ("https", "http", "gs", "s3", "data")
"""The schemes of URLs that media may have: services load the first four, and ``data`` contains the bytes."""

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),  # MPEG-1, MPEG-2 and MPEG-2.5, layer III, without and with a checksum
    (b"\xff\xfa", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\xff\xe3", "audio/mpeg"),
    (b"\xff\xe2", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}

# A table of its own, because the module mimetypes reads files of the machine, and differs between versions of Python.
_OFFICE = "application/vnd.openxmlformats-officedocument"
_EXTENSIONS = {
    "aac": "audio/aac",
    "csv": "text/csv",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "flac": "audio/flac",
    "gif": "image/gif",
    "htm": "text/html",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "m4a": "audio/mp4",
    "md": "text/markdown",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "opus": "audio/opus",
    "pdf": "application/pdf",
    "png": "image/png",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "xml": "application/xml",
}


def type_of_bytes(data: bytes) -> str | None:
    """The media type that the first bytes of PNG, JPEG, GIF, WebP, PDF, MP3, WAV, FLAC and Ogg files tell."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    return next((type_ for beginning, type_ in _BEGINNINGS if data.startswith(beginning)), None)


def type_of_name(name: str) -> str | None:
    """The media type that the extension of a file name tells."""
    return _EXTENSIONS.get(name.rpartition(".")[2].lower())


def media_of_bytes(
    kind: str, data: bytes, *, media_type: str | None = None, name: str | None = None, named: str | None = None
) -> Media:
    """Media that contain bytes. ``kind`` is ``Image``, ``Audio`` or ``File``; ``named`` is a name that tells the type.

    Raises InvalidContentError if the type is not found, or is not one of the kind.
    """
    if len(data) > MAX_BYTES:
        raise InvalidContentError(
            f"{kind}: {len(data):,} bytes, but one content has at most {MAX_BYTES:,}. "
            "Store large content elsewhere and give its URL."
        )
    found = media_type or type_of_bytes(data) or (None if named is None else type_of_name(named))
    checked = _checked(kind, found)
    return Media(uri=f"data:{checked};base64,{b64encode(data).decode()}", media_type=checked, name=name)


def media_of_url(kind: str, url: str, *, media_type: str | None = None, name: str | None = None) -> Media:
    """Media at a URL, or in a ``data:`` URI. The URL is not loaded. Raises InvalidContentError as media_of_bytes does.

    An image at http or https needs no type: its service finds it.
    """
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme not in SCHEMES:
        raise InvalidContentError(
            f"{kind}: the string is not a URL of {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}. "
            f"For a file give a path, {kind}(Path(…)); for content give bytes."
        )
    if scheme == "data":
        given, data = _parsed(kind, url)
        return media_of_bytes(kind, data, media_type=media_type or given, name=name, named=name)
    found = media_type or type_of_name(urlsplit(url).path)
    if found is None and kind == "Image" and scheme in {"http", "https"}:
        return Media(uri=url, name=name)
    return Media(uri=url, media_type=_checked(kind, found), name=name)


def address_of(media: Media, longest: int) -> str:
    """What media are, in a line for people: their name and the number of their bytes, or their address."""
    data = media.data
    address = f"{len(data):,} bytes" if data is not None else media.uri
    if len(address) > longest:
        address = f"{address[:40]}… ({len(address):,} characters)"
    return address if media.name is None else f"{media.name}, {address}"


def _parsed(kind: str, uri: str) -> tuple[str | None, bytes]:
    """The media type of a ``data:`` URI, None if it has none, and its bytes."""
    head, comma, data = uri.partition(",")
    media_type, *parameters = head[len("data:") :].split(";")
    try:
        content = a2b_base64(data, strict_mode=True) if "base64" in parameters else unquote_to_bytes(data)
    except ValueError:
        comma = ""
    if not comma:
        raise InvalidContentError(
            f"{kind}: this data: URI cannot be read. Write data:image/png;base64,… or give bytes."
        )
    return media_type or None, content


def _checked(kind: str, media_type: str | None) -> str:
    """A media type, which must be one of the kind. Raises InvalidContentError."""
    if media_type is None:
        raise InvalidContentError(f"{kind}: its media type is not known. Give it, as in media_type='application/pdf'.")
    lower = media_type.lower()
    if not _MEDIA_TYPE.fullmatch(lower):
        raise InvalidContentError(f"{kind}: media_type={media_type!r} is not a media type, such as 'image/png'.")
    wanted = {"Image": "image/", "Audio": "audio/"}.get(kind, "")
    if not lower.startswith(wanted):
        other = {"image": "Image", "audio": "Audio"}.get(lower.partition("/")[0], "File")
        raise InvalidContentError(f"{kind}: its media type is {lower}. Write {other}(…).")
    return lower

"""Images, audio and files for messages: where their bytes and their media types come from."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Audio, File, Image, Media, Message
from clew.domain.json_values import MAX_BYTES
from clew.errors import ImportFormatError, InvalidContentError

BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\x01\x02\x03\x04WEBPVP8 ",
    "audio/wav": b"RIFF\x01\x02\x03\x04WAVEfmt ",
    "audio/mpeg": b"ID3\x04",
    "application/pdf": b"%PDF-1.7",
}


@pytest.mark.parametrize(("media_type", "data"), [*BEGINNINGS.items(), ("audio/mpeg", b"\xff\xfb\x90\x00")])
def test_the_first_bytes_tell_the_media_type(media_type: str, data: bytes) -> None:
    make = {"image": Image, "audio": Audio}.get(media_type.partition("/")[0], File)
    media = make(data)
    assert media == Media(uri=f"data:{media_type};base64,{b64encode(data).decode()}", media_type=media_type)
    assert media.data == data
    assert File(data) == media


@given(st.binary(max_size=200))
def test_any_bytes_are_read_back(data: bytes) -> None:
    media = File(data, media_type="application/x-any", name="any")
    assert (media.data, media.media_type, media.name) == (data, "application/x-any", "any")
    assert File(media.uri, name="any") == media


def test_a_path_is_read_at_once_and_its_extension_tells_the_type(tmp_path: Path) -> None:
    sheet, picture = tmp_path / "Sales 2026.CSV", tmp_path / "picture.png"
    sheet.write_bytes(b"a,b")
    picture.write_bytes(BEGINNINGS["image/jpeg"])
    of_sheet = File(sheet)
    sheet.write_bytes(b"changed")
    assert (of_sheet.data, of_sheet.media_type, of_sheet.name) == (b"a,b", "text/csv", "Sales 2026.CSV")
    assert File(sheet, name="x.csv", media_type="TEXT/plain").model_dump(exclude={"uri", "type"}) == {
        "media_type": "text/plain",
        "name": "x.csv",
    }
    assert Image(picture) == Image(BEGINNINGS["image/jpeg"]), "the content counts more than the name"


def test_a_string_is_a_url_and_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(BEGINNINGS["image/png"])
    for text in ("a.png", f"{tmp_path}/a.png", f"file://{tmp_path}/a.png", "C:\\a.png", "javascript:1", ""):
        with pytest.raises(InvalidContentError, match=r"is not a URL .* For a file give a path, Image\(Path\(…\)\)"):
            Image(text)


@pytest.mark.parametrize(
    ("make", "url", "media_type"),
    [
        (Image, "https://example.com/a.webp?size=2", "image/webp"),
        (Image, "https://example.com/picture", None),
        (Audio, "http://example.com/a.mp3", "audio/mpeg"),
        (File, "gs://bucket/report.pdf", "application/pdf"),
        (File, "s3://bucket/clip.mp4", "video/mp4"),
    ],
)
def test_a_url_is_kept_and_not_loaded(make: Callable[..., Media], url: str, media_type: str | None) -> None:
    assert make(url) == Media(uri=url, media_type=media_type)
    assert make(url).data is None


def test_a_data_uri_is_written_as_base64() -> None:
    assert Image("data:image/svg+xml,%3Csvg/%3E") == Image(b"<svg/>", media_type="image/svg+xml")
    assert File("data:;base64,JVBERi0=") == File(b"%PDF-")
    assert File("data:text/plain;charset=utf-8;base64,aGk=") == File(b"hi", media_type="text/plain")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Image(BEGINNINGS["application/pdf"]), r"Image: its media type is application/pdf. Write File\(…\)"),
        (lambda: Audio(BEGINNINGS["image/png"]), r"Audio: its media type is image/png. Write Image\(…\)"),
        (lambda: Image("https://example.com/a.wav"), r"Image: its media type is audio/wav. Write Audio\(…\)"),
        (lambda: File(b"hello"), "File: its media type is not known. Give it"),
        (lambda: Audio("https://example.com/a"), "Audio: its media type is not known"),
        (lambda: Image("gs://bucket/a"), "Image: its media type is not known"),
        (lambda: File(b"RIFF"), "File: its media type is not known"),
        (lambda: File(b"x", media_type="text"), "media_type='text' is not a media type"),
        (lambda: File(b"x", media_type="a/b;base64,x"), "is not a media type"),
        (lambda: Image("data:image/png;base64,!"), "this data: URI cannot be read"),
        (lambda: Image("data:image/png"), "Image: this data: URI cannot be read"),
        (lambda: File(7), "File: int is neither bytes, nor a path, nor a URL"),  # type: ignore[arg-type]  # that is the point
        (lambda: File(bytearray(b"x")), "File: bytearray is neither bytes"),  # type: ignore[arg-type]  # as above
        (lambda: File(Path("/nowhere/a.pdf")), "File: the file '/nowhere/a.pdf' cannot be read: No such file"),
        (lambda: File(bytes(MAX_BYTES + 1)), "File: 16,777,217 bytes, but one content has at most 16,777,216"),
    ],
)
def test_what_cannot_be_media_is_refused_with_a_reason(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidContentError, match=words):
        make()


def test_the_message_of_a_user_takes_contents_after_the_text() -> None:
    picture, sound = Image(BEGINNINGS["image/png"]), Audio(BEGINNINGS["audio/wav"])
    message = Message.user("Look and listen:", picture, sound, author="ann", metadata={"n": 1})
    assert message.contents[1:] == (picture, sound)
    assert (message.text, message.author, message.metadata) == ("Look and listen:", "ann", {"n": 1})
    with pytest.raises(InvalidContentError, match="neither a text nor a content"):
        Message.user("Look:", b"bytes")  # type: ignore[arg-type]  # that is the point


def test_a_message_is_made_of_an_openai_message() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    value: Any = {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Look:"}, part]}
    made = Message.from_openai(value)
    assert made == Message.user("Look:", Media(uri="https://example.com/a.png"), author="ann")
    for wrong, words in (
        ("hello", "message: str is not an object with a role"),
        ({"content": "x"}, "message: it has no role"),
        ({"role": "user", "content": 7}, "message: its content is int"),
    ):
        with pytest.raises(ImportFormatError, match=words):
            Message.from_openai(wrong)  # type: ignore[arg-type]  # that is the point


def test_a_message_with_content_instead_of_contents_says_how_to_write_it() -> None:
    with pytest.raises(InvalidContentError, match=r'write Message.user\("hi"\), or Message\(role="user", contents='):
        Message(role="user", content="hi")  # type: ignore[call-arg]  # that is the point

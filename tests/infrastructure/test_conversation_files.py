from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from clew.domain.errors import ImportFormatError
from clew.domain.formats.conversation_import import ImportFailure, Item
from clew.infrastructure.conversation_files import (
    find_files,
    read_conversations,
    read_file,
)

ONE = [{"role": "user", "content": "Grüße\u2028🧶"}]
TWO = {"id": "two", "messages": [{"role": "user", "content": "two"}], "n": 10**299}
THREE = {"id": "three", "messages": []}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*values: object) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def read(*paths: Path) -> list[Any]:
    """The contents of the files: the value of each item, and each failure."""
    return [each.value if isinstance(each, Item) else each for each in read_conversations(paths)]


def refusal(*paths: Path) -> str:
    with pytest.raises(ImportFormatError) as caught:
        list(read_conversations(paths))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt", "a"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "values"),
    [(ONE, [ONE]), (TWO, [TWO]), ([TWO, THREE], [TWO, THREE]), ([ONE, ONE], [ONE, ONE]), ([TWO, ONE], [TWO, ONE])],
    ids=["a list of messages", "an object", "a list of objects", "a list of lists", "a list of both"],
)
def test_reads_one_document_with_any_file_name(
    tmp_path: Path, name: str, indent: int | None, document: object, values: list[object]
) -> None:
    assert read(write(tmp_path / name, json.dumps(document, indent=indent))) == values


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  \n"])
def test_reads_json_lines_with_any_file_name_and_counts_every_line(tmp_path: Path, name: str, end: str) -> None:
    path = write(tmp_path / name, end.join([lines(TWO).strip(), lines(ONE).strip(), lines(THREE).strip()]))
    step = end.count("\n")
    assert [item[:4] for item in read_conversations([path])] == [
        (str(path), 1, TWO, None),
        (str(path), 1 + step, ONE, None),
        (str(path), 1 + 2 * step, THREE, None),
    ]


def test_items_have_about_the_size_of_their_text(tmp_path: Path) -> None:
    text = json.dumps(TWO)
    path = write(tmp_path / "a.jsonl", f"{text}\n{text}\n")
    assert [item.size for item in read_conversations([path]) if isinstance(item, Item)] == [len(text) + 1] * 2
    path = write(tmp_path / "a.json", f"[{text},{text}]")
    assert [item.size for item in read_conversations([path]) if isinstance(item, Item)] == [len(text) + 1] * 2


def test_a_single_line_has_a_number_only_in_a_file_of_json_lines(tmp_path: Path) -> None:
    for name, line in [("a.jsonl", 1), ("a.json", None)]:
        path = write(tmp_path / name, lines(TWO))
        assert [item[:4] for item in read_conversations([path])] == [(str(path), line, TWO, None)]


def test_numbers_the_conversations_of_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([THREE, "no conversation", TWO]))
    assert [each.number for each in read_conversations([path]) if isinstance(each, Item)] == [1, 2, 3]


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("text", ["not json", '{"messages": [', '{"messages": []} x', "\x00"])
def test_reports_a_bad_line_with_its_number_and_reads_the_others(tmp_path: Path, bad: int, text: str) -> None:
    if bad == 0 and text == "\x00":
        text = "nul"  # a NUL in the first line would indicate another encoding
    all_lines = [lines(TWO), lines(THREE)]
    all_lines.insert(bad, text + "\n")
    path = write(tmp_path / "a.jsonl", "".join(all_lines))
    items = read(path)
    failed = items.pop(bad)
    assert items == [TWO, THREE]
    assert isinstance(failed, ImportFailure)
    assert (failed.file, failed.line) == (str(path), bad + 1)
    assert failed.error.startswith("It is not valid JSON: ")


def test_reads_json_lines_after_two_bad_ones_in_a_jsonl_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "bad\nworse\n" + lines(TWO))
    items = read(path)
    assert [failed.line for failed in items[:2]] == [1, 2]
    assert items[2:] == [TWO]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'"\xff"', "It is not UTF-8, at byte 2."),
        (b"1" * 5000, "An integer of more than 4,200 digits"),
        (b"[" * 100_000 + b"]" * 100_000, "Nested deeper than 100 levels"),
    ],
    ids=["bytes that are not text", "a huge integer", "very deep"],
)
def test_reports_a_line_that_python_cannot_read(tmp_path: Path, text: bytes, words: str) -> None:
    for before, after in [(lines(TWO), ""), ("", lines(TWO)), (lines(TWO), lines(TWO))]:
        path = write(tmp_path / "a.jsonl", before.encode() + text + b"\n" + after.encode())
        failed = [each for each in read(path) if isinstance(each, ImportFailure)]
        assert len(failed) == 1
        assert failed[0].error.startswith(words)
        assert TWO in read(path)


def test_reports_a_document_with_a_huge_integer_or_many_levels(tmp_path: Path) -> None:
    for text in ["1" * 5000, "[" * 100_000 + "]" * 100_000]:
        (failed,) = read(write(tmp_path / "a.json", f'{{"messages":\n [{text}]}}'))
        assert isinstance(failed, ImportFailure)


def test_distinguishes_integers_of_any_size_from_floats(tmp_path: Path) -> None:
    text = '{"messages": [], "big": %s, "float": 1.0, "one": 1}' % ("9" * 4200)
    (value,) = read(write(tmp_path / "a.json", text))
    assert value["big"] == 10**4200 - 1
    assert [type(value["float"]), type(value["one"])] == [float, int]


def test_the_last_of_two_equal_keys_wins(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.json", '{"id": 1, "messages": [], "id": 2}')) == [{"id": 2, "messages": []}]


@pytest.mark.parametrize("text", [lines(TWO), lines(TWO, THREE), json.dumps(TWO, indent=1)])
def test_ignores_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    assert read(write(tmp_path / "a.json", b"\xef\xbb\xbf" + text.encode()))[0] == TWO


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_refuses_another_encoding_and_explains_what_to_do(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.jsonl", lines(TWO, THREE).encode(encoding))
    assert refusal(path) == f"{path}: it is not UTF-8, perhaps UTF-16. Convert it to UTF-8 first."


def test_refuses_a_document_in_latin_1(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps(ONE, ensure_ascii=False, indent=1).replace("🧶", "").encode("utf-8"))
    assert read(path)
    write(path, '[\n{"role": "user", "content": "Grüße"}\n]'.encode("latin-1"))
    assert "It is not UTF-8, at byte 34" in refusal(path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "", "the file is empty"),
        ("a.jsonl", "", "the file is empty"),
        ("a.json", " \n\n\t", "the file is empty"),
        ("a.json", b"\xef\xbb\xbf", "the file is empty"),
        ("a.json", "not json", "It is not valid JSON: Expecting value, at column 1."),
        ("a.jsonl", "not json", "It is not valid JSON: Expecting value, at column 1."),
        ("a.md", "# Notes\n\nnot json\n", "It is not valid JSON: Expecting value, at column 1."),
        ("a.json", '{"messages": [', "It is not valid JSON: Expecting value, at column 15."),
        ("a.json", '[\n{"role": "user",\n', "It is not valid JSON: Expecting property name"),
        ("a.json", "[]", "an empty list contains no conversation"),
        ("a.json", "[\n]", "an empty list contains no conversation"),
    ],
)
def test_refuses_a_file_without_conversations(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    path = write(tmp_path / name, text)
    message = refusal(path)
    assert message.startswith(f"{path}: {words}")
    assert message.endswith("Give a JSON or JSON lines file of conversations.")


def test_reports_bad_files_and_reads_the_others(tmp_path: Path) -> None:
    good = write(tmp_path / "b.json", lines(TWO))
    bad = write(tmp_path / "a.json", "{")
    empty = write(tmp_path / "c.json", "")
    items = read(bad, good, empty)
    assert items[1] == TWO
    assert [(failed.file, failed.line) for failed in (items[0], items[2])] == [(str(bad), None), (str(empty), None)]
    assert items[2].error.startswith("the file is empty")


def test_reads_a_directory_sorted_by_path(tmp_path: Path) -> None:
    inner = tmp_path / "b"
    inner.mkdir()
    (tmp_path / "z.json").mkdir()
    for path in [tmp_path / "c.json", inner / "x.jsonl", tmp_path / "a.JSON", inner / "notes.txt"]:
        write(path, lines({"id": path.name, "messages": []}))
    assert [value["id"] for value in read(tmp_path)] == ["a.JSON", "x.jsonl", "c.json"]


def test_refuses_a_path_without_files_before_it_reads_any(tmp_path: Path) -> None:
    good = write(tmp_path / "a.json", lines(TWO))
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in [
        (empty, "no *.json or *.jsonl file"),
        (tmp_path / "missing", "this file or directory does not exist"),
        (tmp_path / ("x" * 10_000), "it cannot be accessed"),
        (tmp_path / "nul\0", "this file or directory does not exist"),
    ]:
        with pytest.raises(ImportFormatError, match=words.replace("*", r"\*")) as caught:
            find_files([good, path])
        assert len(str(caught.value)) < 300
        with pytest.raises(ImportFormatError):
            next(read_conversations([good, path]))


def test_reports_a_file_that_the_system_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ImportFormatError, match="it cannot be read: Is a directory"):
        list(read_file(tmp_path))


def test_reports_file_names_in_valid_unicode(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.json")
    (item,) = read_conversations([write(path, lines(TWO))])
    assert item.file == f"{tmp_path}/\ufffd.json"


def test_shows_a_name_with_a_line_feed_on_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "two\nlines").startswith(f"{tmp_path}/two?lines: this file or directory")


def test_reads_lines_lazily(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(TWO, THREE, TWO, THREE) * 20_000)
    reader = read_conversations([path])
    assert len(list(islice(reader, 2))) == 2
    path.write_bytes(b"")  # only the buffered lines remain
    assert len(list(reader)) < 70_000

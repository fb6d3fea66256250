"""Lines of text files, compressed or not."""

import codecs
import gzip
from functools import partial

import pytest

from dotformer.data.corpora import parallel
from dotformer.data.text import decompressed, text_lines


def written(folder, name, content):
    """A file of these bytes."""
    path = folder / name
    path.write_bytes(content)
    return path


LINES = ["Ein Hund.", "ä, \u2028 ö \x85 and \x0c ü", "", "Die Katze"]


@pytest.mark.parametrize(
    ("between", "end", "pack"),
    [
        ("\n", "", bytes),
        ("\r\n", "\r\n", gzip.compress),
        (" \t\n  ", "\n", lambda b: gzip.compress(b[:9]) + gzip.compress(b[9:])),
    ],
    ids=["LF", "CRLF, gzip", "space, two pieces"],
)
def test_lines_end_with_a_line_feed_alone_and_are_stripped(tmp_path, between, end, pack):
    content = pack((between.join(LINES) + end).encode())
    path = written(tmp_path, "text.txt" if pack is bytes else "text.txt.gz", content)
    assert text_lines(path) == text_lines(str(path)) == LINES
    assert path.read_bytes() == content


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    content = codecs.BOM_UTF8 + "Ein\ufeff\n\ufeffHund\n".encode()
    assert text_lines(written(tmp_path, "text", content)) == ["Ein\ufeff", "\ufeffHund"]
    assert text_lines(written(tmp_path, "text.gz", gzip.compress(codecs.BOM_UTF8))) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a\nb\xff\nc\n", "line 2, is not UTF-8: invalid start byte"),
        ("\xe4".encode("latin-1"), "line 1, is not UTF-8: unexpected end of data"),
    ],
)
def test_a_line_that_is_not_utf_8_is_named(tmp_path, content, says):
    good = written(tmp_path, "good", b"a\nb\nc\n")
    path = written(tmp_path, "text", content)
    for read in (text_lines, partial(parallel, good), lambda path: parallel(path, good)):
        with pytest.raises(ValueError, match=f"^{path}, {says}$"):
            read(path)


PACKED = gzip.compress(b"Ein Hund bellt.\n" * 9, mtime=0)


def test_a_damaged_file_is_named_or_still_says_the_same(tmp_path):
    whole, named = gzip.decompress(PACKED), 0
    for place, byte in enumerate(PACKED):
        damaged = PACKED[:place] + bytes([byte ^ 0x10]) + PACKED[place + 1 :]
        try:
            assert decompressed("a/file.gz", damaged) == whole  # when it was packed, and where
        except ValueError as error:
            assert str(error).startswith("a/file.gz is not a whole gzip file: ")
            named += 1
    assert named > len(PACKED) - 10
    for end in (1, len(PACKED) // 2, len(PACKED) - 1):
        path = written(tmp_path, "text.gz", PACKED[:end])
        with pytest.raises(ValueError, match=f"^{path} is not a whole gzip file: "):
            text_lines(path)

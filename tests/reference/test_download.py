"""Files that are downloaded, here from a server of the test's own, checked and kept; and the corpus made of them."""

import gzip
import hashlib
import re
import threading
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest

from dotformer.data import corpora, download
from dotformer.data.corpora import Pair


def parts(corpus):
    """The three parts of a corpus."""
    return corpus.train, corpus.validation, corpus.test


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
    monkeypatch.setattr(download, "user_cache_path", lambda name: tmp_path / "cache" / name)
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in CAPTIONS.items()}
    monkeypatch.setattr(corpora, "MULTI30K_SHA256", sums)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.enough, server.files = [], threading.Event(), {}
        for name, text in CAPTIONS.items():
            data = gzip.compress(text)
            server.files[f"{name}.gz"] = 200, {"Content-Length": len(data)}, data
        monkeypatch.setattr(corpora, "MULTI30K", f"http://127.0.0.1:{server.server_port}/{{}}.gz")
        threading.Thread(target=partial(server.serve_forever, poll_interval=0.01), daemon=True).start()
        yield server
        server.enough.set()
        server.shutdown()


def cached(name):
    """Where a file of captions lies."""
    return download.cached("multi30k", name, corpora.MULTI30K.format(name), corpora.MULTI30K_SHA256[name])


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
    assert cached("val.fr") == folder / "val.fr.gz"
    assert list(map(len, parts(corpora.multi30k("fr", "en")))) == [4, 3, 2]
    assert not server.asked
    assert files(tmp_path) == sorted(f"{name}.gz" for name in CAPTIONS)
    monkeypatch.setenv("DOTFORMER_DATA", "")
    assert cached("val.fr") == tmp_path / "cache" / "dotformer" / "multi30k" / "val.fr.gz"


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
    path = folder / "val.en.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} {says}"):
        cached("val.en")
    assert path.read_bytes() == content
    assert not server.asked


def test_what_is_downloaded_instead_is_not_kept(server, tmp_path):
    right, content = server.files["val.en.gz"], gzip.compress(CAPTIONS["val.de"])
    server.files["val.en.gz"] = 200, {"Content-Length": len(content)}, content
    with pytest.raises(ValueError, match=r"val\.en\.gz is not (the file it should be|a whole gzip file)"):
        cached("val.en")
    assert not files(tmp_path)
    server.files["val.en.gz"] = right
    assert cached("val.en").read_bytes() == right[2]
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
    address = re.escape(corpora.MULTI30K.format("val.en"))
    says = (
        rf"(?s)^val\.en could not be downloaded \(.+\)\. Where .+ put {address} into a folder and .+ in DOTFORMER_DATA$"
    )
    with pytest.raises(OSError, match=says):
        cached("val.en")
    assert server.asked
    assert not files(tmp_path)
    with pytest.raises((OSError, HTTPException), match=r"\S"):
        download.download(corpora.MULTI30K.format("val.en"), tmp_path / "file")


def test_a_server_that_falls_silent_is_given_up(server, tmp_path, monkeypatch):
    waits = []

    def impatient(address, timeout):
        waits.append(timeout)
        return urlopen(address, timeout=0.2)

    monkeypatch.setattr(download.urllib.request, "urlopen", impatient)
    _, headers, data = server.files["val.en.gz"]
    server.files["val.en.gz"] = 202, headers, data[:20]
    with pytest.raises(OSError, match=r"^val\.en could not be downloaded \(.*timed out\)"):
        cached("val.en")
    assert waits == [30]
    assert not files(tmp_path)


def test_every_byte_is_downloaded(server, tmp_path, capfd):
    content = bytes(range(256)) * 1000 + b"end"
    server.files |= {"large": (200, {}, content), "moved": (301, {"Location": "/large"}, b"")}
    download.download(f"http://127.0.0.1:{server.server_port}/moved", tmp_path / "moved")
    assert (tmp_path / "moved").read_bytes() == content
    assert capfd.readouterr() == ("", "")


def test_the_address_is_that_of_the_first_task_and_each_file_has_a_sum():
    folder = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    assert corpora.MULTI30K.format("train.en") == f"{folder}/train.en.gz"
    assert corpora.MULTI30K_SHA256.keys() == CAPTIONS.keys()
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in corpora.MULTI30K_SHA256.values())
    assert len({*corpora.MULTI30K_SHA256.values()}) == 9

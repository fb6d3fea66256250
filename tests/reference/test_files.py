"""Files are written whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from dotformer.support.files import replacing


@pytest.fixture(params=["Ältere Datei.txt", ".hidden"])
def path(request, tmp_path):
    """A file that is there already."""
    path = tmp_path / request.param
    path.write_text("before", encoding="utf-8")
    return path


def test_success_takes_the_place_of_the_old_file(path):
    with replacing(path) as draft:
        draft.write_text("after", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "before"
    assert path.read_text(encoding="utf-8") == "after"
    assert list(path.parent.iterdir()) == [path]


def test_there_need_not_be_an_old_file_nor_a_folder_in_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with replacing("new.bin") as draft:
        draft.write_bytes(b"\r\n\x00")
    assert (tmp_path / "new.bin").read_bytes() == b"\r\n\x00"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(path, error):
    with pytest.raises(error, match=r"^in the middle$"), replacing(path) as draft:
        draft.write_text("af", encoding="utf-8")
        raise error("in the middle")
    assert path.read_text(encoding="utf-8") == "before"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_before_there_was_a_file_leaves_nothing(tmp_path):
    for write in (True, False):
        with pytest.raises(ZeroDivisionError), replacing(tmp_path / "new.txt") as draft:
            if write:
                draft.write_text("a", encoding="utf-8")
            1 / 0  # noqa: B018
    assert not list(tmp_path.iterdir())


def test_what_was_not_written_replaces_nothing(path):
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text(encoding="utf-8") == "before"


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_a_disk_that_fails_leaves_the_old_file(path, monkeypatch, call):
    def fail(*_):
        raise OSError("Input/output error")

    monkeypatch.setattr(call, fail)
    with pytest.raises(OSError, match=r"^Input/output error$"), replacing(path) as draft:
        draft.write_text("after", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "before"
    assert list(path.parent.iterdir()) == [path]


def test_the_draft_lies_beside_the_file_and_is_named_for_the_process(path):
    with replacing(path) as draft:
        assert draft.parent == path.parent
        assert draft != path
        assert path.name in draft.name
        assert str(os.getpid()) in draft.name
        draft.touch()


def test_data_are_on_the_disk_before_they_replace_anything(path, monkeypatch):
    calls, fsync, replace = [], os.fsync, Path.replace

    def watched_fsync(file):
        calls.append(("fsync", os.fstat(file).st_ino, path.read_text(encoding="utf-8")))
        fsync(file)

    def watched_replace(self, target):
        calls.append(("replace", self.stat().st_ino, str(target)))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    with replacing(path) as draft:
        draft.write_text("after", encoding="utf-8")
        inode = draft.stat().st_ino
        assert not calls
    assert calls == [("fsync", inode, "before"), ("replace", inode, str(path))]


def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(OSError, match="No space left on device") as caught, replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")

"""Published files: downloaded once, checked at each use."""

import hashlib
import os
import shutil
import urllib.request
from http.client import HTTPException
from pathlib import Path

from platformdirs import user_cache_path
from tqdm import tqdm

from dotformer.data.text import decompressed
from dotformer.support.files import replacing


def cached(corpus: str, name: str, address: str, sha256: str) -> Path:
    """Where a file of a corpus lies, called as in its `address`; downloaded from there if need be.

    Looked for in the folder that DOTFORMER_DATA names, if it is set, else in the user's cache. `sha256` is that of the
    file, decompressed if it ends with .gz. Raises ValueError for a file that is another, and OSError, with what to do,
    when it is not there and cannot be had.
    """
    given = os.environ.get("DOTFORMER_DATA")
    folder = Path(given) if given else user_cache_path("dotformer") / corpus
    path = folder / address.rpartition("/")[2]
    if given and not path.exists():
        raise FileNotFoundError(f"DOTFORMER_DATA is set, but {path} is not there")
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                download(address, draft)
                check(path, draft.read_bytes(), sha256)
        except (OSError, HTTPException) as error:
            raise OSError(
                f"{name} could not be downloaded ({error}). Where there is no network, put {address} into a folder and"
                " name that in DOTFORMER_DATA"
            ) from error
    check(path, path.read_bytes(), sha256)
    return path


def check(path: Path, data: bytes, sha256: str) -> None:
    """Raise ValueError, with the `path`, when `data`, or what gzip packed into it, has another SHA-256."""
    whole = decompressed(path, data) if path.name.endswith(".gz") else data
    if hashlib.sha256(whole).hexdigest() != sha256:
        raise ValueError(f"{path} is not the file it should be: delete it")


def download(address: str, path: Path) -> None:
    """Fetch a file, with a progress bar. Raises OSError or HTTPException."""
    name = address.rpartition("/")[2]
    with urllib.request.urlopen(address, timeout=30) as answer, path.open("wb") as file:
        size = int(answer.headers.get("Content-Length", 0)) or None
        with tqdm.wrapattr(file, "write", total=size, desc=name, disable=None) as shown:
            shutil.copyfileobj(answer, shown)
        if size and file.tell() < size:
            raise OSError(f"{address} ended after {file.tell()} of {size} bytes")

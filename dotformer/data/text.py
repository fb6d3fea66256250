"""Text files, which may be compressed with gzip."""

import codecs
import gzip
import zlib
from pathlib import Path


def decompressed(path: str | Path, data: bytes) -> bytes:
    """What gzip packed into `data`. Raises ValueError, with the `path`, when it is damaged."""
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def text_lines(path: str | Path) -> list[str]:
    """The lines of a text file, stripped; it may be compressed with gzip.

    Raises ValueError for a line that is not UTF-8, OSError when the file cannot be read.
    """
    data = Path(path).read_bytes()
    if Path(path).suffix == ".gz":
        data = decompressed(path, data)
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = []
    for n, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), 1):
        try:
            lines.append(line.decode().strip())
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {n}, is not UTF-8: {error.reason}") from error
    return lines

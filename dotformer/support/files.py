"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a path beside `path` to write to. Only when that has succeeded, and is on the disk, does it take the place of
    `path`; after an error, `path` is as before.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno and not error.filename:  # a full disk names none
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)

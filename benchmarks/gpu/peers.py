"""The book's models beside those of other libraries: the measurements of benchmarks/peers.py, row by row."""

from collections.abc import Iterator

from benchmarks import peers
from benchmarks.gpu.run import Row, Run


def rows(run: Run) -> Iterator[Row]:
    """Training steps, encoding, generation, attention and recurrent layers."""
    for name, measure in peers.rows(run.device, quick=run.sizes == "quick"):
        yield Row(name, measure, 12.0)

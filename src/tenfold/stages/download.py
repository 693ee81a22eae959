"""Stage download: bring the files of `data.dataset` to `data/raw/`, each verified by checksum."""

from tenfold import paths
from tenfold.data import sources
from tenfold.params import Params


def run(params: Params) -> None:
    """Write `data/raw/`, whole or not at all.

    Raises:
        TenfoldError: a file cannot be had from any source.
    """
    with paths.writing(paths.RAW) as folder:
        folder.mkdir()
        sources.obtain(params.data.dataset, folder)

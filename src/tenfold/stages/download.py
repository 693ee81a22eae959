"""Stage download: bring the data set to `data/raw/`: verified files, or the images of a folder as arrays."""

from tenfold import paths
from tenfold.data import folders, sources
from tenfold.datasets import FOLDER
from tenfold.params import Params


def run(params: Params) -> None:
    """Write `data/raw/`, whole or not at all.

    Raises:
        TenfoldError: a file cannot be had from any source, or the folder of images is not as it should be.
    """
    with paths.writing(paths.RAW) as folder:
        folder.mkdir()
        if params.data.dataset == FOLDER:
            folders.obtain(params.data, folder)
        else:
            sources.obtain(params.data.dataset, folder)

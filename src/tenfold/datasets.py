"""The named data sets, one entry each in `DATASETS`: their classes, files, checksums and mirrors.

Each is made of IDX files, in the manner of MNIST's. To add a data set, add an entry. Mirrors and checksums are those
that torchvision names.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

FOLDER = "folder"
"""The data set that is a folder of the user's own: one folder of image files per class."""


@dataclass(frozen=True)
class File:
    """A file by name, with the MD5 of the file itself and, of a `.gz` file, of its unpacked content (None: unknown)."""

    name: str
    md5: str | None
    md5_unpacked: str | None = None

    @property
    def kept(self) -> str:
        """Its name in `data/raw`, where it lies unpacked: the same bytes, however it was packed."""
        return self.name.removesuffix(".gz")


@dataclass(frozen=True)
class Handwriting:
    """How characters lie in a data set's images, light on dark.

    Attributes:
        box: pixels of the longer side of a character.
        by_mass: whether the centre of the image is the character's centre of mass; otherwise that of its box.
    """

    box: int
    by_mass: bool


@dataclass(frozen=True)
class Dataset:
    """A data set of IDX files."""

    classes: tuple[str, ...]
    """Names, in the order of the labels."""
    train: tuple[File, File]
    """Images, labels."""
    test: tuple[File, File] | None = None
    """The official test set, if there is one."""
    mirrors: tuple[str, ...] = ()
    """URLs of folders that hold the files; none for a data set that a package brings along."""
    archive: File | None = None
    """A zip file that the mirrors hold instead of the single files."""
    first_label: int = 0
    """What the files call the first class."""
    transposed: bool = False
    """Whether the files hold images column by column."""
    handwriting: Handwriting | None = None
    """For characters: how they lie in the images, so that a picture of one can be made like them."""

    @property
    def files(self) -> tuple[File, ...]:
        """All files."""
        return self.train + (self.test or ())


def _like_mnist(
    classes: tuple[str, ...],
    mirrors: tuple[str, ...],
    *md5: tuple[str, str | None],
    handwriting: Handwriting | None = None,
) -> Dataset:
    """MNIST, or a data set that takes its place: the four files have MNIST's names.

    Args:
        classes: names of the labels.
        mirrors: URLs.
        md5: of the files in the order below, packed and unpacked.
        handwriting: of characters.
    """
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = [File(f"{name}-ubyte.gz", *sums) for name, sums in zip(names, md5, strict=True)]
    return Dataset(
        classes, train=(files[0], files[1]), test=(files[2], files[3]), mirrors=mirrors, handwriting=handwriting
    )


def _emnist(split: str, classes: str, first_label: int = 0) -> Dataset:
    """A split of EMNIST (Cohen et al. 2017, https://arxiv.org/abs/1702.05373). Only its archive has a checksum."""
    files = [
        File(f"emnist-{split}-{part}-{kind}-ubyte.gz", md5=None)
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return Dataset(
        tuple(classes),
        train=(files[0], files[1]),
        test=(files[2], files[3]),
        mirrors=("https://biometrics.nist.gov/cs_links/EMNIST/",),
        archive=File("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
        first_label=first_label,
        transposed=True,
        handwriting=Handwriting(box=24, by_mass=False),  # "a 2 pixel border", section II of the paper
    )


DIGITS = tuple(string.digits)
UNMERGED = "abdefghnqrt"
"""Small letters that EMNIST tells from their capitals in its merged splits."""

DATASETS = {
    "mnist": _like_mnist(
        DIGITS,
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        handwriting=Handwriting(box=20, by_mass=True),
    ),
    "fashion-mnist": _like_mnist(
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
    "kmnist": _like_mnist(
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        ("bdb82020997e1d708af4cf47b453dcf7", None),
        ("e144d726b3acfaa3e44228e80efcd344", None),
        ("5c965bf0a639b31b8f53240b1b52f4d7", None),
        ("7320c461ea6c1c855c0b718fb2a4b134", None),
        handwriting=Handwriting(box=28, by_mass=False),
    ),
    "emnist-balanced": _emnist("balanced", string.digits + string.ascii_uppercase + UNMERGED),
    "emnist-bymerge": _emnist("bymerge", string.digits + string.ascii_uppercase + UNMERGED),
    "emnist-byclass": _emnist("byclass", string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "emnist-letters": _emnist("letters", string.ascii_lowercase, first_label=1),
    "emnist-digits": _emnist("digits", string.digits),
    "emnist-mnist": _emnist("mnist", string.digits),
    "digits": Dataset(  # made from scikit-learn's
        DIGITS,
        train=(
            File("digits-images-idx3-ubyte", "aa2ebf8317bf9c658b155e901cc4ea37"),
            File("digits-labels-idx1-ubyte", "497796a0698e25d3920a9422b635bf34"),
        ),
        handwriting=Handwriting(box=28, by_mass=False),  # they fill the image
    ),
}

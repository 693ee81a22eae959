"""The summary of a split: what later stages need to know of the images without reading them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tenfold import paths
from tenfold.errors import TenfoldError

PARTS = ("train", "val", "test")
FILES = "files.json"
"""Beside the arrays of a part: the file that each image comes from, where it comes from one of its own."""


class Duplicates(BaseModel):
    """Images that are there more than once, pixel by pixel."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    copies: int
    """Images that equal an earlier one."""
    contradicting: int
    """Of these, those with another label."""
    val_in_train: int
    """Images of val that are in train as well."""
    test_in_train: int
    test_in_val: int
    removed: int
    """Images that `split.deduplicate` left out."""


class Summary(BaseModel):
    """What a split holds: `data/split/summary.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """C, H, W."""
    counts: dict[str, int]
    """Images of each part."""
    per_class: dict[str, tuple[int, ...]]
    """Images of each part, by class."""
    imbalance: float
    """How many times as many training images the largest class has as the smallest."""
    mean: tuple[float, ...]
    """Of the training pixels, per channel, on a scale of 0…1."""
    std: tuple[float, ...]
    duplicates: Duplicates
    skipped: dict[str, str]
    """Files that could not be read and were left out, and why."""
    sha256: dict[str, str]
    """Of each part: the bytes of its images, then of its labels as little-endian int64."""

    @classmethod
    def load(cls, path: Path = paths.SUMMARY) -> Summary:
        """Read a summary.

        Raises:
            TenfoldError: the file cannot be read, or is no summary.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            found = f"cannot be read ({error.strerror})"
        except UnicodeDecodeError as error:
            found = f"is no summary of a split ({error.reason})"
        except ValidationError as error:
            first = error.errors()[0]
            found = f"is no summary of a split ({'.'.join(map(str, first['loc']))} {first['msg']})"
        raise TenfoldError(f"{path}: {found}. Make it: dvc repro split")

    def save(self, path: Path) -> None:
        """Write as JSON."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")

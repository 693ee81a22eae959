"""What a registered model says of image files."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageOps

from tenfold import servers
from tenfold.errors import TenfoldError

STDIN = "-"
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".npy"}
"""What is taken of a folder."""
TILE, CAPTION, COLUMNS, MOST = 140, 34, 4, 100
"""Of the picture that explains, in pixels; pairs of tiles side by side, and in all."""
ADVICE = ". Send the base64"
"""What the classifier says next is for programs."""


@dataclass(frozen=True)
class Prediction:
    """An image and the answer, or why there is none."""

    name: str
    answer: dict[str, Any] | None = None
    error: str = ""
    content: bytes = b""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without pictures."""
        answer = self.answer or {"error": self.error}
        return {"file": self.name} | {key: value for key, value in answer.items() if key != "seen"}


def predict(names: list[str], where: Path, model_uri: str, top_k: int, as_json: bool, explain: Path | None) -> bool:
    """Print what a model says of images.

    Args:
        names: files, folders (with all that is in them), or `-` for the content of a file on standard input.
        where: the folder that names start from.
        model_uri: any MLflow model URI of this project, or a folder.
        top_k: probabilities that are shown; 0: all.
        as_json: print a list of objects instead of a table.
        explain: the picture to write of what the network saw.

    Returns:
        Whether there is an answer for each image; the reasons of the others are on standard error.

    Raises:
        TenfoldError: there is no such model, or nothing to look at.
    """
    if explain and (explain.is_dir() or not explain.parent.is_dir()):
        raise TenfoldError(f"--explain: {explain} cannot be written: it should be a file in a folder that is there")
    files = [found for name in names for found in _find(name, where)]
    classifier, _ = servers.load_model(model_uri)
    found: list[Prediction] = []
    for name in files:
        found += _ask(classifier, name, where, top_k, bool(explain) and len(found) < MOST)
    answered = [prediction for prediction in found if prediction.answer]
    if as_json:
        print(json.dumps([one.as_dict() for one in found], indent=2, ensure_ascii=False))
    elif answered:
        _print_table(answered)
    for one in found:
        if not one.answer:
            print(f"error: {one.name}: {one.error}", file=sys.stderr)
    if explain and answered:
        _picture(answered[:MOST]).save(explain, "PNG")
        some = f" of the first {MOST} of {len(answered)} images" if len(answered) > MOST else ""
        print(f"{explain}: what the network saw{some}", file=sys.stderr)
    return len(answered) == len(found)


def _find(name: str, where: Path) -> list[str]:
    """The files that a name stands for; of a folder that has none, the folder."""
    if name in {STDIN, ""} or not (where / name).is_dir():
        return [name]
    files = (Path(name) / file.relative_to(where / name) for file in (where / name).rglob("*") if file.is_file())
    return sorted(str(file) for file in files if file.suffix.lower() in SUFFIXES) or [name]


def _ask(classifier: Any, name: str, where: Path, top_k: int, with_pictures: bool) -> Iterator[Prediction]:
    if name and (where / name).is_dir():
        yield Prediction(name, error=f"no images in this folder ({', '.join(sorted(SUFFIXES))})")
        return
    try:
        content = sys.stdin.buffer.read() if name == STDIN else (where / name).read_bytes() if name else b""
    except OSError as error:
        yield Prediction(name, error=error.strerror or str(error))
        return
    try:
        text = base64.b64encode(content).decode()
        params = {"top_k": min(top_k, len(classifier.classes)), "return": "seen" if with_pictures else "full"}
        answers = classifier.answer([text], params)
    except Exception as error:
        if type(error).__name__ != "Refused":  # of the model's own code
            raise
        yield Prediction(name, error=str(error).removeprefix("inputs[0] ").partition(ADVICE)[0])
        return
    kept = content if with_pictures else b""
    for number, answer in enumerate(answers):
        yield Prediction(name if len(answers) == 1 else f"{name}[{number}]", answer, content=kept)


def _print_table(answered: list[Prediction]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("image", "class", "probability", "most probable", box=None, pad_edge=False)
    for one in answered:
        assert one.answer
        others = sorted(one.answer["probabilities"].items(), key=lambda item: -item[1])
        table.add_row(
            Text(one.name, overflow="fold"),
            Text(one.answer["name"], style="bold"),
            f"{one.answer['probability']:.2%}",
            Text(", ".join(f"{name} {share:.1%}" for name, share in others)),
        )
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)


def _picture(answered: list[Prediction]) -> Image.Image:
    """Each image beside what the network saw of it."""
    columns = min(COLUMNS, len(answered))
    rows = -(-len(answered) // columns)
    sheet = Image.new("RGB", (columns * 2 * TILE, rows * (TILE + CAPTION)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, one in enumerate(answered):
        assert one.answer
        left, top = number % columns * 2 * TILE, number // columns * (TILE + CAPTION)
        seen = Image.open(io.BytesIO(base64.b64decode(one.answer["seen"]))).convert("RGB")
        try:
            original = ImageOps.exif_transpose(Image.open(io.BytesIO(one.content))).convert("RGBA")
        except OSError:  # numbers, not a picture
            original = seen.convert("RGBA")
        original.thumbnail((TILE - 8, TILE - 8))
        sheet.paste(original, (left + 4, top + 4), original)
        sheet.paste(seen.resize((TILE - 8, TILE - 8), Image.Resampling.NEAREST), (left + TILE + 4, top + 4))
        pen.text((left + 6, top + TILE), f"{Path(one.name).name:.24}", "black")
        answer = f"{one.answer['name']:.14} ({one.answer['probability']:.1%})"
        pen.text((left + TILE + 6, top + TILE), answer, "black")
    return sheet

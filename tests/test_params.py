import re
from pathlib import Path
from typing import Any

import pytest

from tenfold.errors import TenfoldError
from tenfold.params import Params, describe

SHIPPED = Path(__file__).parents[1] / "params.yaml"


def edited(tmp_path: Path, pattern: str, replacement: str) -> Path:
    """A copy of the shipped settings with one change."""
    text, count = re.subn(pattern, replacement, SHIPPED.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    assert count == 1, f"{pattern} is not in params.yaml"
    path = tmp_path / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_settings_are_valid_and_use_both_finders() -> None:
    params = Params.load(SHIPPED)
    assert params.train.learning_rate == "auto"
    assert params.train.batch_size == "auto"
    assert params.data.dataset == "mnist"


def test_every_key_is_described() -> None:
    assert list(describe()) == list(Params.load(SHIPPED).flat())
    assert all(len(text) > 10 for text in describe().values())


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    params = Params.load(edited(tmp_path, r"^  learning_rate: auto", "  learning_rate: 1e-3"))
    assert params.train.learning_rate == 0.001


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^seed: \d+\n", "", "seed: missing; add it. It means"),
        (r"^seed: \d+", "seed: '42'", "seed: should be a valid integer; found '42'"),
        (r"^seed: \d+", "seed: true", "seed: should be a valid integer; found True"),
        (r"^seed: \d+", "seeds: 1", "seeds: unknown key; did you mean seed?"),
        (r"max_epochs: \d+", "max_epoch: 3", "train.max_epoch: unknown key; did you mean train.max_epochs?"),
        (r"max_epochs: \d+", "max_epochs: 0", "train.max_epochs: should be greater than or equal to 1; found 0"),
        (r"^  learning_rate: auto", "  learning_rate: fast", "should be 'auto' or should be a valid number"),
        (r"^  learning_rate: auto", "  learning_rate: .nan", "train.learning_rate: should be 'auto' or should be"),
        (r"dataset: mnist", "dataset: minst", "data.dataset: should be one of mnist, fashion-.*; did you mean mnist"),
        (r"dataset: mnist", "dataset: emnist", "data.dataset: should be one of .* emnist-balanced,"),
        (r"image_size: auto", "image_size: 64", r"data: image_size \(64\) is for dataset: folder; mnist has its own"),
        (r"image_size: auto", "image_size: 7", "data.image_size: should be 'auto' or .*; found 7"),
        (r"channels: auto", "channels: 2", "data.channels: should be 'auto' or should be 1 or 3; found 2"),
        (r"fold: 0", "fold: 2", r"split: fold \(2\) needs folds"),
        (r"folds: null\n  fold: 0", "folds: 3\n  fold: 3", r"split: fold \(3\) must be less than folds \(3\)"),
        (r"folds: null", "folds: 1", "split.folds: .*greater than or equal to 2.*; found 1"),
        (r"monitor: val/acc", "monitor: val/f1", "train.monitor: should be 'val/acc' or 'val/loss'; found 'val/f1'"),
        (r"patience: null", "patience: 100", r"early_stopping.patience \(100\) is not less than the 4 validations"),
        (r"check_val_every_n_epoch: 1", "check_val_every_n_epoch: 3", r"train: check_val_every_n_epoch \(3\) does not"),
        (r"test_time_shift: 0", "test_time_shift: -1", r"model.test_time_shift: .*equal to 0.*; found -1"),
        (r"^    max: 1.0", "    max: 1.0e-5", r"tune.learning_rate: min \(.*\) must be less than max"),
        (r"accelerator: auto", "accelerator: cpu", None),
        (r"start: null", "start: 4", r"train: swa.start \(4\) leaves fewer than 2 of the 4 epochs"),
        (r"start: null", "start: 1.5", "train.swa.start: .*; found 1.5"),
        (r"ema_decay: null", "ema_decay: 1.0", "train.ema_decay: .*less than 1.*; found 1.0"),
        (r"start: null(\n.*){2}\n  ema_decay: null",
         "start: 1\n    learning_rate: null\n    anneal_epochs: 1\n  ema_decay: 0.9",
         r"train: ema_decay \(0.9\) and swa.start \(1\) are two averages"),
        (r"cycle_floor: 0.25", "cycle_floor: 4.0", "train.schedule.cycle_floor: .*less than 1; found 4.0"),
        (r"interval: step", "interval: epoch", "train.schedule: interval 'epoch' is for name: cyclic"),
        (r"strategy: auto", "strategy: dp", "train.strategy: 'dp' is gone from Lightning 2.*: use 'ddp'"),
        (r"strategy: auto", "strategy: sharded", "train: strategy 'sharded' divides a network among several devices"),
        (r"devices: 1(\n.*)\n  strategy: auto", r"devices: 2\1\n  strategy: sharded\n  #", None),
        (r"compile: false\n  activation_checkpointing: false", "compile: true\n  activation_checkpointing: true",
         "train: compile .* activation_checkpointing"),
        (r"start: null\n    learning_rate: null", "start: null\n    learning_rate: 0.1",
         r"train: swa.learning_rate \(0.1\) would have no effect with swa.start: null"),
        (r"max: 256", "max: 10000", "tune.batch_size.max: .*less than or equal to 8192; found 10000"),
        (r"devices: 1(\n.*)\n  strategy: auto\n  precision: auto",
         r"devices: 2\1\n  strategy: sharded\n  precision: 16-mixed",
         "train: strategy 'sharded' does not go with precision: 16-mixed"),
        (r"weight_decay: 0.05", "weight_decay: auto", "train.optimizer.weight_decay: auto needs a search"),
        (r"weight_decay: \[0.001", "weight_decay: [0.5", r"tune.search: weight_decay \(.*\) should be two"),
        (r"^train:", "training:", "train: missing"),
        (r"^seed: \d+", "seed: [1", "is not valid YAML"),
        (r"^seed: \d+", "seed: 1\nseed: 2", "duplicate key"),
    ],
)  # fmt: skip
def test_wrong_settings_name_key_value_and_what_is_allowed(
    tmp_path: Path, pattern: str, replacement: str, message: str | None
) -> None:
    path = edited(tmp_path, pattern, replacement)
    if message is None:
        assert Params.load(path).train != Params.load(SHIPPED).train
        return
    with pytest.raises(TenfoldError, match=message) as raised:
        Params.load(path)
    assert str(path) in str(raised.value)


def test_contradiction_of_accelerator_and_precision(tmp_path: Path) -> None:
    path = edited(tmp_path, "accelerator: auto", "accelerator: cpu")
    path.write_text(
        path.read_text(encoding="utf-8").replace("precision: auto", "precision: 16-mixed"), encoding="utf-8"
    )
    with pytest.raises(TenfoldError, match="precision '16-mixed' needs a GPU, and accelerator is 'cpu'"):
        Params.load(path)


def test_a_rate_of_swa_that_would_never_be_reached() -> None:
    document = Params.load(SHIPPED).model_dump(mode="json")
    document["train"]["schedule"] |= {"name": "cyclic", "interval": "epoch"}
    document["train"]["swa"] |= {"start": 1, "learning_rate": 0.01}
    with pytest.raises(TenfoldError, match=r"swa.learning_rate \(0.01\) would have no effect with schedule.interval"):
        Params.check(document, "this")


@pytest.mark.parametrize("content", ["", "- 1\n", "just text\n"])
def test_a_file_that_holds_no_settings(tmp_path: Path, content: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TenfoldError, match="the file: should be a valid dictionary"):
        Params.load(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TenfoldError, match=r"cannot be read.*git checkout"):
        Params.load(tmp_path / "params.yaml")


def test_settings_cannot_be_changed_by_code() -> None:
    params: Any = Params.load(SHIPPED)
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1

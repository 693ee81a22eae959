import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tenfold import paths
from tenfold.params import Params
from tenfold.tracking import journal, records, runs, store
from tenfold.tracking.logger import RunLogger
from tenfold.tracking.runs import Run
from tenfold.training.history import History


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(journal, "INTERVAL_S", 0.05)
    with runs.open_run("tenfold", "x") as run:
        yield run


def points(run: Run, key: str) -> list[tuple[int, float]]:
    assert run.journal is not None
    assert run.journal.flush()
    return [(point.step, point.value) for point in store.client().get_metric_history(run.id, key)]


def test_all_points_arrive(run: Run) -> None:
    writer = RunLogger(run)
    for step in range(2500):
        writer.log_metrics({"train/loss": step / 2, "epoch": 0}, step)
    assert points(run, "train/loss") == [(step, step / 2) for step in range(2500)]
    assert points(run, "epoch") == []
    writer.log_metrics({"time/fit_s": 3, "acc@5": 1})
    assert points(run, "time/fit_s") == [(0, 3)]
    assert points(run, "acc_5") == [(0, 1)]


def test_points_arrive_while_training_goes_on(run: Run) -> None:
    RunLogger(run).log_metrics({"lr": 0.1}, 1)
    while not store.client().get_metric_history(run.id, "lr"):
        pass


def test_nan_and_infinity_break_nothing(run: Run) -> None:
    writer = RunLogger(run)
    for step, value in enumerate([math.nan, math.inf, -math.inf, math.nan, 1.0]):
        writer.log_metrics({"train/loss": value}, step)
    values = dict(points(run, "train/loss"))
    assert len(values) == 5
    assert math.isnan(values[0])
    assert values[1] > 1e300
    assert values[4] == 1.0


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).mean()
        self.log_dict({"train/loss": loss, "train/acc": loss}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({"val/loss": self.layer(batch[0]).mean(), "val/acc": 1.0})

    def on_train_epoch_end(self) -> None:
        self.log("lr", 0.1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore")
def test_replay_of_the_history_doubles_no_point_of_a_live_training(run: Run, params: Params) -> None:
    data = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
    history = History()
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=RunLogger(run),
        callbacks=[history],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), data, data)
    names = ("train/loss", "train/acc", "val/loss", "val/acc", "lr")
    live = {name: points(run, name) for name in names}
    assert [step for step, _ in live["val/loss"]] == [3, 7, 11]

    history.write(paths.HISTORY)
    records.record_training(run, Path(), params)
    assert {name: points(run, name) for name in names} == live


def test_other_ranks_send_nothing(project: Path) -> None:
    writer = RunLogger(Run(""))
    writer.log_metrics({"lr": 0.1}, 1)
    assert writer.name == runs.TRAINING

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tenfold import paths
from tenfold.tracking import logger, records, runs, store
from tenfold.tracking.logger import RunLogger
from tenfold.training.history import History


@pytest.fixture
def run_id(project: Path) -> str:
    return str(store.client().create_run(store.experiment("tenfold")).info.run_id)


def points(run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in store.client().get_metric_history(run_id, key)]


def test_all_points_arrive(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "INTERVAL_S", 0.05)
    writer = RunLogger(run_id)
    for step in range(2500):
        writer.log_metrics({"train/loss": step / 2, "epoch": 0}, step)
    writer.finalize("success")
    assert points(run_id, "train/loss") == [(step, step / 2) for step in range(2500)]
    assert points(run_id, "epoch") == []
    writer.log_metrics({"time/fit_s": 3})
    writer.close()
    assert points(run_id, "time/fit_s") == [(0, 3)]


def test_points_arrive_while_training_goes_on(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "INTERVAL_S", 0.05)
    writer = RunLogger(run_id)
    writer.log_metrics({"lr": 0.1}, 1)
    while not points(run_id, "lr"):
        pass
    writer.close()
    assert points(run_id, "lr") == [(1, 0.1)]


def test_nan_and_infinity_break_nothing(run_id: str) -> None:
    writer = RunLogger(run_id)
    for step, value in enumerate([math.nan, math.inf, -math.inf, math.nan, 1.0]):
        writer.log_metrics({"train/loss": value}, step)
    writer.close()
    values = dict(points(run_id, "train/loss"))
    assert len(values) == 5
    assert math.isnan(values[0])
    assert values[1] > 1e300
    assert values[4] == 1.0


def test_store_that_comes_back_gets_everything_once(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "INTERVAL_S", 60)
    writer = RunLogger(run_id)
    store.client().delete_run(run_id)
    writer.log_metrics({"lr": 0.1}, 1)
    with pytest.warns(UserWarning, match="MLflow takes no metrics"):
        writer.finalize("success")
    store.client().restore_run(run_id)
    writer.log_metrics({"lr": 0.2}, 2)
    writer.close()
    assert points(run_id, "lr") == [(1, 0.1), (2, 0.2)]


def test_what_could_not_be_sent_is_told(run_id: str) -> None:
    writer = RunLogger(run_id)
    store.client().delete_run(run_id)
    writer.log_metrics({"lr": 0.1, "train/loss": 1}, 1)
    with pytest.warns(UserWarning, match="2 points of curves could not be sent"):
        writer.close()


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
def test_replay_of_the_history_doubles_no_point_of_a_live_training(run_id: str) -> None:
    data = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
    history, writer = History(), RunLogger(run_id)
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=writer,
        callbacks=[history],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), data, data)
    writer.close()
    names = ("train/loss", "train/acc", "val/loss", "val/acc", "lr")
    live = {name: points(run_id, name) for name in names}
    assert [step for step, _ in live["val/loss"]] == [3, 7, 11]

    history.write(paths.HISTORY)
    records.record_training(run_id, Path())
    assert {name: points(run_id, name) for name in names} == live


def test_other_ranks_send_nothing(project: Path) -> None:
    writer = RunLogger("")
    writer.log_metrics({"lr": 0.1}, 1)
    writer.close()
    assert writer.name == runs.TRAINING

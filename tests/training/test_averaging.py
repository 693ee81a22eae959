"""SWA and EMA: the average is what is validated, kept and exported, and its BatchNorm statistics are its own."""

from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from tenfold import paths
from tenfold.data.summary import Summary
from tenfold.modeling import checkpoint
from tenfold.modeling.module import Classifier
from tenfold.training import outs, tricks
from tests.training.test_training import SHIPPED, fit, no_augmentation, settings, weights


class Watch(Callback):
    """Collects the weights in training after each step, and what is validated."""

    def __init__(self) -> None:
        self.after_step: list[Tensor] = []
        self.validated: list[Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        self.after_step.append(weights(pl_module))

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        self.validated.append(weights(pl_module))


def statistics(module: torch.nn.Module) -> list[Tensor]:
    return [
        statistic.clone()
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        for statistic in (layer.running_mean, layer.running_var)
        if statistic is not None
    ]


def swa(**changes: object) -> object:
    return SHIPPED.train.swa.model_copy(update={"start": 0.5} | changes)


def saved(folder: Path, name: str) -> dict[str, Tensor]:
    (file,) = folder.glob(name)
    content: dict[str, Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return content


def vector(state: dict[str, Tensor], module: Classifier) -> Tensor:
    return torch.cat([state[name].flatten() for name, _ in module.named_parameters()])


def test_swa_is_the_mean_of_the_weights_at_the_ends_of_epochs(stripes: Summary, tmp_path: Path) -> None:
    watch = Watch()
    module, history = fit(settings(max_epochs=4, swa=swa()), stripes, tmp_path / "kept", None, watch)
    ends = [watch.after_step[step] for step in (9, 19, 29, 39)]
    torch.testing.assert_close(watch.validated[0], ends[0], rtol=0, atol=0)
    torch.testing.assert_close(watch.validated[1], ends[1], rtol=0, atol=0)
    torch.testing.assert_close(watch.validated[2], ends[2], rtol=0, atol=0)
    mean = (ends[2] + ends[3]) / 2
    torch.testing.assert_close(watch.validated[3], mean)
    torch.testing.assert_close(weights(module), mean)
    torch.testing.assert_close(vector(saved(tmp_path / "kept", "00003-last.ckpt"), module), mean)
    (best,) = (tmp_path / "kept").glob("*-best.ckpt")
    assert best.name >= "00002"  # an epoch before is no average, however good
    assert len(history.rows) == 4


def test_swa_leaves_the_training_itself_alone(stripes: Summary, tmp_path: Path) -> None:
    plain, averaged = Watch(), Watch()
    fit(settings(max_epochs=4), stripes, tmp_path / "plain", None, plain)
    fit(settings(max_epochs=4, swa=swa()), stripes, tmp_path / "swa", None, averaged)
    assert torch.equal(torch.stack(plain.after_step), torch.stack(averaged.after_step))


def test_swa_counts_optimizer_steps_under_accumulation(stripes: Summary, tmp_path: Path) -> None:
    """10 batches in threes: 4 steps an epoch, the last of a single batch."""
    watch = Watch()
    params = settings(max_epochs=3, swa=swa(start=1), accumulate_grad_batches=3)
    module, history = fit(params, stripes, tmp_path, None, watch)
    assert [row["step"] for row in history.rows] == [4, 8, 12]
    torch.testing.assert_close(weights(module), (watch.after_step[19] + watch.after_step[29]) / 2)


def test_ema_is_what_its_formula_says(stripes: Summary, tmp_path: Path) -> None:
    watch = Watch()
    module, _ = fit(settings(max_epochs=2, ema_decay=0.8), stripes, tmp_path / "kept", None, watch)
    expected = watch.after_step[0]
    for step in watch.after_step[1:]:
        expected = 0.8 * expected + 0.2 * step
    torch.testing.assert_close(weights(module), expected)
    torch.testing.assert_close(watch.validated[-1], expected)
    torch.testing.assert_close(vector(saved(tmp_path / "kept", "00001-last.ckpt"), module), expected)


@pytest.mark.parametrize("changes", [{"swa": swa()}, {"ema_decay": 0.8}])
def test_batch_norm_is_measured_anew_on_the_average(
    stripes: Summary, tmp_path: Path, changes: dict[str, object]
) -> None:
    params = settings(max_epochs=4, augment=no_augmentation(), **changes)
    module, _ = fit(params, stripes, tmp_path / "kept")
    state = saved(tmp_path / "kept", "00003-last.ckpt")
    norms = [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
    measured = [state[f"{name}.{kind}"] for name in norms for kind in ("running_mean", "running_var")]
    for kept, exported in zip(measured, statistics(module), strict=True):
        assert torch.equal(kept, exported)
    data = tricks.build_data(params, 20)  # by hand: the plain mean over the batches of that epoch
    data.first_epoch = 3
    torch.optim.swa_utils.update_bn((images for images, _ in data.train_dataloader()), module.network)
    for kept, by_hand in zip(measured, statistics(module), strict=True):
        torch.testing.assert_close(kept, by_hand)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
@pytest.mark.parametrize("changes", [{"swa": swa()}, {"ema_decay": 0.8}])
def test_averages_in_other_precisions(
    stripes: Summary, tmp_path: Path, changes: dict[str, object], precision: str
) -> None:
    _, history = fit(settings(max_epochs=4, precision=precision, **changes), stripes, tmp_path)
    assert max(row["val/acc"] for row in history.rows) > 0.9


@pytest.mark.parametrize("changes", [{"swa": swa()}, {"ema_decay": 0.8}])
def test_what_is_written_is_the_average_and_its_metrics_are_its_own(
    stripes: Summary, tmp_path: Path, changes: dict[str, object]
) -> None:
    params = settings(max_epochs=4, monitor="val/loss", **changes)
    module, history = fit(params, stripes, tmp_path / "kept")
    (best,) = (tmp_path / "kept").glob("*-best.ckpt")
    outs.write(module.spec, best, history, params)
    network, _ = checkpoint.load_network(paths.BEST_CHECKPOINT)
    kept = saved(tmp_path / "kept", "*-best.ckpt")
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, kept[f"network.{name}"]), name
    images, labels = tricks.build_data(params, 20).val_set[torch.arange(40)]
    with torch.inference_mode():
        loss = torch.nn.functional.cross_entropy(network.eval()(images), labels)
    row = history.rows[int(best.name[:5])]
    assert float(loss) == pytest.approx(row["val/loss"], abs=2e-6)


@pytest.mark.parametrize("changes", [{"swa": swa()}, {"swa": swa(learning_rate=0.01)}, {"ema_decay": 0.8}])
def test_an_interrupted_averaging_goes_on_bit_for_bit(
    stripes: Summary, tmp_path: Path, changes: dict[str, object]
) -> None:
    class Interrupt(Callback):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 3:
                raise KeyboardInterrupt

    params = settings(max_epochs=4, **changes)
    whole, expected = fit(params, stripes, tmp_path / "whole")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(params, stripes, tmp_path / "kept", None, Interrupt())
    resumed, found = fit(params, stripes, tmp_path / "kept")
    assert torch.equal(weights(resumed), weights(whole))
    for one, other in zip(statistics(resumed), statistics(whole), strict=True):
        assert torch.equal(one, other)
    assert found.rows == expected.rows


def test_early_stopping_looks_at_averages_only(stripes: Summary, tmp_path: Path) -> None:
    stop = SHIPPED.train.early_stopping.model_copy(update={"patience": 1, "min_delta": 0.9})
    _, history = fit(settings(max_epochs=8, swa=swa(start=3), early_stopping=stop), stripes, tmp_path)
    assert len(history.rows) == 5  # epochs 4 and 5 are the first two that count

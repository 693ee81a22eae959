"""The module, the tricks, the callbacks and the finders, on a real Trainer and data that is easy to learn."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback, seed_everything

from tenfold.data.datamodule import ImageData
from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.modeling.module import Classifier
from tenfold.modeling.optimizers import build_optimizer, build_schedule
from tenfold.params import EarlyStopping, Optimizer, Params, Schedule, TuneBatchSize, TuneLearningRate
from tenfold.training import finders, resume, tricks
from tenfold.training.averaging import averaging
from tenfold.training.callbacks import EpochSeed, SpeedMonitor
from tenfold.training.factory import build_classifier
from tenfold.training.history import History, read

SHIPPED = Params.load(Path(__file__).parents[2] / "params.yaml")


def settings(**changes: object) -> Params:
    """The shipped settings in full precision, with a small network and changes to `train`."""
    model = SHIPPED.model.model_copy(update={"width": 4})
    train = SHIPPED.train.model_copy(update={"precision": "32-true", "max_epochs": 3} | changes)
    return SHIPPED.model_copy(update={"model": model, "train": train})


def parts(params: Params, summary: Summary, scheduled: bool = True) -> tuple[Classifier, ImageData]:
    """A module with seeded weights, and its data."""
    seed_everything(params.seed, verbose=False)
    return build_classifier(params, summary, 0.02, scheduled), tricks.build_data(params, 20)


def fit(
    params: Params,
    summary: Summary,
    folder: Path,
    history: History | None = None,
    *watchers: Callback,
    learning_rate: float = 0.02,
) -> tuple[Classifier, History]:
    """Train as the train stage does, going on with what is in `folder`."""
    module, data = parts(params, summary)
    module.learning_rate = learning_rate
    history = history or History()
    checkpoint, data.first_epoch = resume.newest_checkpoint(folder)
    trainer = tricks.build_trainer(
        params.train,
        logger=False,
        plugins=[resume.CheckpointFiles()],
        callbacks=[
            EpochSeed(params.seed),
            *averaging(params.train),
            *tricks.stopping(params.train),
            resume.StayStopped(),
            SpeedMonitor(),
            *watchers,
            history,
            *tricks.checkpointing(params.train, folder),
        ],
        **tricks.training_flags(params.train),
    )
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    return module, history


def weights(module: torch.nn.Module) -> torch.Tensor:
    """All parameters, in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_it_learns_and_keeps_best_and_last(stripes: Summary, tmp_path: Path) -> None:
    _, history = fit(settings(save_top_k=2), stripes, tmp_path / "kept")
    assert [row["epoch"] for row in history.rows] == [0, 1, 2]
    assert [row["step"] for row in history.rows] == [10, 20, 30]
    assert history.rows[-1]["val/acc"] >= 0.95
    assert history.rows[-1]["train/loss"] < history.rows[0]["train/loss"]
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert [name for name in kept if "last" in name] == ["00001-last.ckpt", "00002-last.ckpt"]
    assert len([name for name in kept if "best" in name]) == 2


def test_training_is_the_same_bit_for_bit_whatever_was_drawn_before(stripes: Summary, tmp_path: Path) -> None:
    results = []
    for noise in (1, 2):
        params = settings()
        module, data = parts(params, stripes)
        torch.manual_seed(noise)  # between building and training, something else draws
        flags = tricks.training_flags(params.train)
        trainer = tricks.build_trainer(
            params.train, logger=False, enable_checkpointing=False, callbacks=[EpochSeed(params.seed)], **flags
        )
        trainer.fit(module, datamodule=data)
        results.append(weights(module))
    assert torch.equal(results[0], results[1])


def test_early_stopping_ends_the_training(stripes: Summary, tmp_path: Path) -> None:
    stop = EarlyStopping(patience=1, min_delta=0.9)  # nothing improves by so much a second time
    _, history = fit(settings(max_epochs=6, early_stopping=stop), stripes, tmp_path)
    assert len(history.rows) == 2


def test_validating_less_often_keeps_what_was_validated(stripes: Summary, tmp_path: Path) -> None:
    params = settings(max_epochs=6, check_val_every_n_epoch=3)
    module, history = fit(params, stripes, tmp_path / "kept")
    assert ["val/acc" in row for row in history.rows] == [False, False, True, False, False, True]
    assert all("train/loss" in row for row in history.rows)
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert [name for name in kept if "last" in name] == ["00002-last.ckpt", "00005-last.ckpt"]
    (best,) = (name for name in kept if "best" in name)
    assert best[:5] in ("00002", "00005")
    often, _ = fit(settings(max_epochs=6), stripes, tmp_path / "often")
    assert torch.equal(weights(module), weights(often))
    history.write(tmp_path / "history.csv")
    assert ["val/acc" in row for row in read(tmp_path / "history.csv")] == [False, False, True, False, False, True]


def test_accumulated_batches_equal_one_larger_batch(stripes: Summary) -> None:
    """Two batches of 20 make the step of one batch of 40: no BatchNorm and no dropout, which differ by batch."""
    after = []
    for batch_size, accumulate in ((20, 2), (40, 1)):
        params = settings(accumulate_grad_batches=accumulate, max_epochs=1, augment=no_augmentation())
        model = SHIPPED.model.model_copy(update={"network": "article", "width": 4, "dropout": 0.0})
        params = params.model_copy(update={"model": model})
        module, data = parts(params, stripes)
        data.batch_size = batch_size
        flags = tricks.training_flags(params.train)
        tricks.build_trainer(params.train, logger=False, enable_checkpointing=False, **flags).fit(module, data)
        after.append(weights(module))
    torch.testing.assert_close(after[0], after[1], rtol=1e-3, atol=1e-5)


def no_augmentation() -> object:
    return SHIPPED.train.augment.model_copy(update={"shift": 0.0, "rotate": 0.0, "scale": 0.0, "shear": 0.0})


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradient_clipping_bounds_the_gradient(stripes: Summary, precision: str) -> None:
    params = settings(gradient_clip_val=1e-3, max_epochs=1, precision=precision)
    module, data = parts(params, stripes)
    norms: list[float] = []
    module.on_before_zero_grad = lambda optimizer: norms.append(  # type: ignore[method-assign]
        float(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]).norm())
        if any(p.grad is not None for p in module.parameters())
        else 0.0
    )
    flags = tricks.training_flags(params.train)
    tricks.build_trainer(params.train, logger=False, enable_checkpointing=False, **flags).fit(module, data)
    assert max(norms) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_training_that_diverges_fails(stripes: Summary, tmp_path: Path, epochs: int) -> None:
    params = settings(max_epochs=epochs, optimizer=SHIPPED.train.optimizer.model_copy(update={"name": "sgd"}))
    with pytest.raises(TenfoldError, match=r"the training diverged: train/loss is .* Lower train\.learning_rate"):
        fit(params, stripes, tmp_path, learning_rate=1e30)


@pytest.mark.parametrize(
    ("changes", "batch_size", "message"),
    [
        ({}, 201, "train.batch_size: 201 is over the 200 training images"),
        ({"accumulate_grad_batches": 11}, 20, "train.accumulate_grad_batches: 11 is over the 10 batches of an epoch"),
        ({"devices": 11}, 20, "train.batch_size: 20 for each of 11 devices is over the 200 training images"),
        ({"devices": 2, "accumulate_grad_batches": 6}, 20, "train.accumulate_grad_batches: 6 is over the 5 batches"),
        ({"devices": 41}, 2, "train.devices: 41 in all are over the 40 validation images"),
        ({"num_nodes": 2}, 20, "train.num_nodes: 2 hosts, but nothing says where the first is"),
    ],
)
def test_trainings_that_would_not_be_what_was_asked_for(
    stripes: Summary, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], batch_size: int, message: str
) -> None:
    for variable in ("MASTER_ADDR", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    train = settings(**changes).train

    def prepare() -> None:
        tricks.check_steps(train, tricks.build_data(SHIPPED, batch_size))
        tricks.build_trainer(train, **tricks.training_flags(train))

    with pytest.raises(TenfoldError) as raised:
        prepare()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_optimizers(name: str) -> None:
    chosen = Optimizer(name=name, weight_decay=0.1, betas=[0.8, 0.9], momentum=0.7)  # type: ignore[arg-type]
    matrix, bias = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3))
    optimizer = build_optimizer([matrix, bias], 0.01, chosen)
    group = optimizer.param_groups[0]
    assert type(optimizer).__name__.lower() == name
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.1)
    assert group["params"] == [matrix]
    assert (optimizer.param_groups[1]["weight_decay"], optimizer.param_groups[1]["params"]) == (0, [bias])
    if name.startswith("adam"):
        assert group["betas"] == (0.8, 0.9)
    else:
        assert group["momentum"] == 0.7
    if name == "sgd":
        assert group["nesterov"]
    (matrix.sum() + bias.sum()).backward()
    optimizer.step()
    assert (matrix < 1).all()
    assert (bias < 1).all()


def rates(steps: int, **changes: object) -> list[float]:
    """The learning rate of each step of 4 epochs of 10 steps, 0.1 at most."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    schedule = build_schedule(optimizer, 0.1, settings(max_epochs=4, **changes).train, 10)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def schedule(name: str, **changes: object) -> Schedule:
    return SHIPPED.train.schedule.model_copy(update={"name": name} | changes)


def test_schedules() -> None:
    assert rates(40, schedule=schedule("constant")) == [0.1] * 40
    cosine = rates(40, schedule=schedule("cosine"))
    assert cosine[0] == 0.1
    assert cosine[20] == pytest.approx(0.05)
    one_cycle = rates(40, schedule=schedule("one_cycle"))
    assert max(one_cycle) == pytest.approx(0.1)
    assert one_cycle.index(max(one_cycle)) == 9
    assert one_cycle[0] < 0.01
    assert one_cycle[-1] < 1e-4


def test_the_cyclic_schedule_rises_and_falls_in_a_line_step_by_step() -> None:
    found = rates(41, schedule=schedule("cyclic", cycle_floor=0.2, cycle_epochs=1.0))
    up = np.linspace(0.02, 0.1, 11)
    assert found == pytest.approx([*up, *up[-2::-1], *up[1:], *up[-2::-1]])


def test_swa_takes_the_rate_over_from_the_schedule() -> None:
    swa = SHIPPED.train.swa.model_copy(update={"start": 0.5, "learning_rate": 0.03, "anneal_epochs": 1})
    found = rates(40, schedule=schedule("constant"), swa=swa)
    assert found[:20] == [0.1] * 20
    middle = found[20:30]
    assert middle == sorted(middle, reverse=True)
    assert found[31:] == pytest.approx([0.03] * 9)
    found = rates(40, schedule=schedule("one_cycle"), swa=swa)
    assert max(found[:20]) == pytest.approx(0.1)
    assert found[19] < 1e-4
    assert found[31:] == pytest.approx([0.03] * 9)


def test_effective_precision() -> None:
    assert tricks.effective_precision(SHIPPED.train.model_copy(update={"precision": "64-true"})) == "64-true"
    flags = torch.cpu.get_capabilities()
    promised = any(flags.get(flag) for flag in ("avx512_bf16", "amx_bf16", "arm_bf16"))
    on_cpu = SHIPPED.train.model_copy(update={"accelerator": "cpu"})
    assert tricks.effective_precision(on_cpu) == ("bf16-mixed" if promised else "32-true")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="says what a machine without accelerator answers")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "16-mixed"}, "train.precision: '16-mixed' needs a GPU"),
        ({"accelerator": "gpu"}, "train.accelerator: 'gpu' with train.devices: 1 is not to be had on this machine"),
        ({"accelerator": "tpu"}, "train.accelerator: 'tpu' with train.devices: 1 is not to be had on this machine"),
    ],
)
def test_hardware_that_is_not_there(changes: dict[str, object], message: str) -> None:
    train = SHIPPED.train.model_copy(update=changes)
    with pytest.raises(TenfoldError) as raised:
        tricks.build_trainer(train, **tricks.training_flags(train))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("method", "least", "most", "expected"),
    [
        ("power", 2, 8, 8),
        ("power", 2, 7, 4),  # the largest doubling within the bound
        ("power", 2, 64, 8),  # 200 images in 16 steps: at most 12 a batch
        ("power", 64, 64, 12),
        ("binsearch", 2, 64, 12),
    ],
)
def test_batch_size_finder_ends_at_the_bound(
    stripes: Summary, method: str, least: int, most: int, expected: int
) -> None:
    params = settings()
    module, data = parts(params, stripes, scheduled=False)
    before = weights(module)
    tune = TuneBatchSize(method=method, min=least, max=most)  # type: ignore[arg-type]
    found, rows = finders.find_batch_size(params.train, tune, module, data)
    assert found == expected
    assert [row["batch_size"] for row in rows] == sorted({row["batch_size"] for row in rows})
    assert rows[-1] == {"batch_size": expected, "fits": True}
    assert torch.equal(weights(module), before)


def test_the_bound_of_a_bisection_has_been_tried(stripes: Summary) -> None:
    """Or more than it, which then fits as well."""
    module, data = parts(settings(), stripes, scheduled=False)
    tune = TuneBatchSize(method="binsearch", min=2, max=64)
    found, _ = finders.find_batch_size(settings().train, tune, module, data)
    assert found == 12
    assert max(data.sizes_tried) >= 12


def test_memory_that_runs_out_ends_the_search_below(stripes: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
            if len(batch[0]) > 6:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return step(batch, batch_idx)

        return run

    for method, expected in {"power": 4, "binsearch": 6}.items():
        module, data = parts(settings(), stripes, scheduled=False)
        module.training_step = limited(module.training_step)  # type: ignore[method-assign]
        tune = TuneBatchSize(method=method, min=2, max=64)  # type: ignore[arg-type]
        assert finders.find_batch_size(settings().train, tune, module, data)[0] == expected


def test_the_finders_take_the_steps_that_training_takes(stripes: Summary) -> None:
    train = settings(accumulate_grad_batches=3, gradient_clip_val=0.5).train
    trainer = finders._trainer(train)
    assert (trainer.accumulate_grad_batches, trainer.gradient_clip_val) == (3, 0.5)


def test_throughput_doubles_until_it_stops_paying(stripes: Summary) -> None:
    params = settings()
    module, data = parts(params, stripes, scheduled=False)
    before = weights(module)
    tune = TuneBatchSize(method="throughput", min=2, max=64)
    found, rows = finders.find_batch_size(params.train, tune, module, data)
    sizes = [row["batch_size"] for row in rows]
    assert sizes == [2, 4, 8][: len(sizes)]
    assert found in sizes
    assert all(row["samples_per_s"] > 0 for row in rows)
    assert torch.equal(weights(module), before)


def test_learning_rate_finder_tries_the_range_and_leaves_the_module_as_it_was(stripes: Summary) -> None:
    params = settings()
    module, data = parts(params, stripes, scheduled=False)
    before, rate = weights(module), module.learning_rate
    tune = TuneLearningRate(min=1e-4, max=1.0, steps=60, fallback=0.5)
    test = finders.find_learning_rate(params.train, tune, module, data)
    assert test.learning_rates[0] == pytest.approx(1e-4, rel=0.2)
    assert test.learning_rates == sorted(test.learning_rates)
    assert len(test.losses) == len(test.learning_rates)
    assert test.suggestion is not None
    assert 1e-3 < test.suggestion < 0.3
    assert torch.equal(weights(module), before)
    assert module.learning_rate == rate
    again = finders.find_learning_rate(params.train, tune, *parts(params, stripes, scheduled=False))
    assert again.suggestion == test.suggestion


def test_the_suggestion_lies_between_the_steepest_fall_and_a_tenth_of_the_lowest_loss() -> None:
    rates = np.logspace(-5, 0, 101)
    losses = 2 - np.tanh(2 * (np.log10(rates) + 3)) + np.where(rates > 0.1, 10 * (rates - 0.1), 0)
    lowest = rates[losses.argmin()]
    assert finders.suggest(rates.tolist(), losses.tolist()) == pytest.approx(math.sqrt(1e-3 * lowest / 10), rel=0.1)


@pytest.mark.parametrize("losses", [[1.0] * 50, list(np.linspace(1, 2, 50)), [math.nan] * 50, [1.0, 0.5], []])
def test_a_curve_that_does_not_fall_gives_no_suggestion(losses: list[float]) -> None:
    assert finders.suggest(list(np.logspace(-4, 0, len(losses))), losses) is None


def test_no_suggestion_means_the_fallback_and_a_warning(
    stripes: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenfold.stages import tune

    monkeypatch.setattr(Summary, "load", lambda: stripes)
    rates = TuneLearningRate(min=1e20, max=1e30, steps=20, fallback=0.25)  # diverges at once
    params = settings(batch_size=20)
    params = params.model_copy(update={"tune": params.tune.model_copy(update={"learning_rate": rates})})
    tune.find(params, tmp_path)
    found = json.loads((tmp_path / "tune.json").read_text())
    assert found["learning_rate"] == {"value": 0.25, "source": "fallback"}
    assert found["batch_size"] == {"value": 20, "source": "params"}
    assert "tune.learning_rate.fallback is used: 0.25" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loader", "backend"),
    [
        ({"num_workers": 1}, "memory"),
        ({"num_workers": 4, "prefetch_factor": 3}, "memory"),
        ({"num_workers": 2, "persistent_workers": False}, "mmap"),
        ({}, "mmap"),
    ],
)
def test_the_loader_shapes_no_weights(
    stripes: Summary, tmp_path: Path, loader: dict[str, object], backend: str
) -> None:
    expected, _ = fit(settings(max_epochs=2), stripes, tmp_path / "plain")
    params = settings(max_epochs=2, **loader)
    params = params.model_copy(update={"data": params.data.model_copy(update={"backend": backend})})
    found, _ = fit(params, stripes, tmp_path / "other")
    assert torch.equal(weights(found), weights(expected))


@pytest.mark.parametrize(
    ("loader", "resolved", "said"),
    [
        ({}, {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None}, ""),
        ({"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": None}, ""),
        ({"num_workers": 2, "persistent_workers": False, "prefetch_factor": 4}, {"prefetch_factor": 4}, ""),
        ({"pin_memory": True}, {"pin_memory": False}, "train.pin_memory: True has no effect: there is no GPU"),
        ({"persistent_workers": True}, {"persistent_workers": False}, "train.persistent_workers: True has no effect"),
        ({"prefetch_factor": 8}, {"prefetch_factor": None}, "train.prefetch_factor: 8 has no effect: there are no"),
    ],
)
def test_loader_settings_that_cannot_work_are_adapted_with_one_line(
    capsys: pytest.CaptureFixture[str], loader: dict[str, object], resolved: dict[str, object], said: str
) -> None:
    found = tricks.loader_settings(settings(accelerator="cpu", **loader).train)
    assert resolved.items() <= found.items()
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert printed.count("\n") == (1 if said else 0)

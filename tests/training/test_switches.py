"""Tricks that change speed or memory, and not what is learned; and those that need others."""

from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from tenfold.data.summary import Summary
from tenfold.errors import TenfoldError
from tenfold.modeling.networks import NetworkSpec, PixelNetwork, build
from tenfold.params import TuneBatchSize
from tenfold.training import finders, tricks
from tests.training.test_training import SHIPPED, fit, parts, schedule, settings, weights

SPEC = NetworkSpec("compact", 8, 0.5, 1, (28, 28), ("a", "b", "c"), (0.1,), (0.3,))


class Rates(Callback):
    """The learning rate of each batch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


def step(network: PixelNetwork) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients and running statistics of one step of training on fixed images."""
    torch.manual_seed(1)
    images = torch.randint(0, 256, (16, 1, 28, 28), dtype=torch.uint8)
    network.train()
    network.zero_grad()
    network(images).square().sum().backward()
    gradients = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
    return torch.cat(gradients), torch.cat([buffer.flatten().float() for buffer in network.buffers()])


def test_activation_checkpointing_changes_nothing_but_memory() -> None:
    torch.manual_seed(0)
    network = build(SPEC)
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    expected = step(network)
    network.load_state_dict(state)
    network.checkpoint_activations = True
    computed: list[int] = []
    network.layers[0].register_forward_pre_hook(lambda *_: computed.append(1))
    found = step(network)
    assert len(computed) == 2  # forward, and again for the backward pass
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_activation_checkpointing_keeps_fewer_feature_maps() -> None:
    def kept(on: bool) -> int:
        network = build(SPEC).train()
        network.checkpoint_activations = on
        sizes: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            network(torch.zeros(16, 1, 28, 28, dtype=torch.uint8))
        return sum(sizes)

    assert kept(on=True) < kept(on=False) / 2


def test_a_compiled_network_learns_the_same(stripes: Summary, tmp_path: Path) -> None:
    plain, _ = fit(settings(max_epochs=1), stripes, tmp_path / "plain")
    compiled, history = fit(settings(max_epochs=1, compile=True), stripes, tmp_path / "compiled")
    assert compiled.network.layers._compiled_call_impl is not None
    torch.testing.assert_close(weights(compiled), weights(plain), rtol=0.02, atol=0.02)
    assert compiled.network.state_dict().keys() == plain.network.state_dict().keys()
    assert len(history.rows) == 1


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(TenfoldError, match=r"train\.compile: there is no C\+\+ compiler .* or set it to false"):
        tricks.prepare_network(settings(compile=True).train, build(SPEC))


def test_the_cyclic_schedule_moves_with_optimizer_steps_under_accumulation(stripes: Summary, tmp_path: Path) -> None:
    cyclic = schedule("cyclic", cycle_floor=0.25, cycle_epochs=1.0)
    rates = Rates()
    fit(settings(max_epochs=2, accumulate_grad_batches=2, schedule=cyclic), stripes, tmp_path / "a", None, rates)
    floor, peak = 0.005, 0.02
    steps = [floor + (peak - floor) * position / 5 for position in (0, 1, 2, 3, 4, 5, 4, 3, 2, 1)]
    assert rates.seen == pytest.approx([rate for rate in steps for _ in range(2)])


def test_the_cyclic_schedule_hardly_moves_with_epochs(stripes: Summary, tmp_path: Path) -> None:
    rates = Rates()
    cyclic = schedule("cyclic", cycle_floor=0.25, cycle_epochs=1.0, interval="epoch")
    fit(settings(max_epochs=2, schedule=cyclic), stripes, tmp_path, None, rates)
    assert rates.seen == pytest.approx([0.005] * 10 + [0.0065] * 10)


def test_deepspeed_that_is_not_installed() -> None:
    train = settings(strategy="deepspeed", devices=2).train
    with pytest.raises(TenfoldError, match=r"train\.strategy: 'deepspeed' needs the package of that name"):
        tricks.training_flags(train)


def test_tuning_leaves_everything_as_it_was(stripes: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, BatchNorm statistics, limits, settings and the folder of temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    params = settings()
    module, data = parts(params, stripes, scheduled=False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    batch_size = TuneBatchSize(method="binsearch", min=4, max=8)
    finders.find_batch_size(params.train, batch_size, module, data)
    data.batch_size = 20
    finders.find_learning_rate(params.train, SHIPPED.tune.learning_rate, module, data)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert module.learning_rate == 0.02
    assert data.batch_size == 20
    assert list(temporary.iterdir()) == []
    tuned, expected = Rates(), Rates()
    trainer = tricks.build_trainer(
        params.train, logger=False, enable_checkpointing=False, callbacks=[tuned], **tricks.training_flags(params.train)
    )
    trainer.fit(module, datamodule=data)
    assert len(tuned.seen) == 30  # three whole epochs
    fit(params, stripes, tmp_path / "untuned", None, expected)
    assert tuned.seen == [0.02] * 30  # the module was built for tuning: without a schedule
    assert expected.seen[0] < 0.02

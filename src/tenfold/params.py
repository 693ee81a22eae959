"""The schema of `params.yaml`: every key, what is allowed, and why the shipped value is what it is.

No key has a default here: `params.yaml` is the only place where a value is set. Unknown keys, missing keys, wrong
types and contradictions are refused before any stage does anything.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tenfold import paths
from tenfold.datasets import DATASETS, FOLDER
from tenfold.errors import TenfoldError

Auto = Literal["auto"]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=8, le=4096)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A group of settings: frozen, typed strictly (`"3"` is not 3), unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Section):
    """Where the images come from."""

    dataset: str = Field(
        description="`mnist`, `fashion-mnist`, `kmnist`, `digits` (1,797 real digits that scikit-learn ships, brought "
        "to 28×28; needs no network), `emnist-balanced`, `-byclass`, `-bymerge`, `-letters`, `-digits`, `-mnist`, or "
        "`folder`: images of your own."
    )
    folder: str = Field(
        description="For `folder`: where the images lie, in one folder per class; or in `train/` and `test/`, each "
        "with one folder per class. Shipped is a small example."
    )
    image_size: Auto | Side | Annotated[list[Side], Field(min_length=2, max_length=2)] = Field(
        description="For `folder`: side of the square that images are brought to, or [height, width]; `auto`: their "
        "median shorter side, at most 64."
    )
    channels: Auto | Literal[1, 3] = Field(
        description="For `folder`: 1 (grey) or 3 (colour); `auto`: 3 if any image has colour."
    )
    on_bad_file: Literal["fail", "skip"] = Field(
        description="For `folder`: what to do with a file that is no readable image: stop, or leave it out and list it."
    )
    backend: Auto | Literal["memory", "mmap"] = Field(
        description="Whether training reads the images into memory or maps them from the file; the weights are the "
        "same. `auto`: into memory up to 1 GiB."
    )

    @field_validator("dataset")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (allowed := [*DATASETS, FOLDER]):
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"should be one of {', '.join(allowed)}{hint}")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Data:
        for key in ("image_size", "channels"):
            if self.dataset != FOLDER and (found := getattr(self, key)) != "auto":
                raise ValueError(f"{key} ({found}) is for dataset: folder; {self.dataset} has its own: set it to auto")
        return self


class Split(Section):
    """How the images are divided into train, val and test; always stratified by class and seeded."""

    train_size: Literal["all"] | PositiveInt = Field(
        description="Number of training images: `all` that are not validation or test, or a stratified subset."
    )
    val_size: Auto | PositiveInt = Field(
        description="Number of validation images; `auto` is a twelfth of what is not test: 5,000 of MNIST's 60,000."
    )
    test_size: Auto | PositiveInt = Field(
        description="Number of test images; `auto` is the official test set, or a seventh of a data set that has none."
    )
    folds: Annotated[int, Field(ge=2)] | None = Field(
        description="For cross-validation: in how many parts the images that are not test are divided; null: not."
    )
    fold: Annotated[int, Field(ge=0)] = Field(description="Which of these parts, from 0, is validation.")
    deduplicate: bool = Field(
        description="Remove images that are there before: test keeps its own, and of the others the first is kept; "
        "none if their labels differ."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Split:
        if self.folds is None and self.fold:
            raise ValueError(f"fold ({self.fold}) needs folds: set folds to a number, or fold to 0")
        if self.folds is not None and self.fold >= self.folds:
            raise ValueError(f"fold ({self.fold}) must be less than folds ({self.folds}): they count from 0")
        if self.folds is not None and self.val_size != "auto":
            raise ValueError(f"val_size ({self.val_size}) must be auto with folds ({self.folds}), which set it")
        return self


class Model(Section):
    """The network."""

    network: Literal["compact", "article"] = Field(
        description="`compact`: this project's own. `article`: the 54 K network of the articles it grew from."
    )
    width: PositiveInt = Field(description="Channels of the first convolution; later layers are multiples of it.")
    dropout: Fraction = Field(description="Share of feature maps dropped while training.")
    test_time_shift: Annotated[int, Field(ge=0, le=8)] = Field(
        description="Pixels. Validation, evaluation and the exported model then average what the network says to an "
        "image and to its four shifts by so much, which takes five times the work. 0: off."
    )


class TuneLearningRate(Section):
    """The learning-rate finder: an exponential range test (Smith 2017, https://arxiv.org/abs/1506.01186)."""

    min: PositiveFloat = Field(description="First learning rate tried.")
    max: PositiveFloat = Field(description="Last learning rate tried.")
    steps: Annotated[int, Field(ge=20)] = Field(description="Number of optimizer steps from `min` to `max`.")
    fallback: PositiveFloat = Field(description="Used, with a warning, when the curve gives no suggestion.")

    @model_validator(mode="after")
    def _ordered(self) -> TuneLearningRate:
        if self.min >= self.max:
            raise ValueError(f"min ({self.min}) must be less than max ({self.max})")
        return self


class TuneBatchSize(Section):
    """The batch-size finder."""

    method: Literal["power", "binsearch", "throughput"] = Field(
        description="`power` doubles and `binsearch` bisects until memory runs out or `max` is reached, the same "
        "answer on every machine with memory enough. `throughput` doubles until samples per second stop growing: "
        "a timing, so not reproducible."
    )
    min: PositiveInt = Field(description="First batch size tried.")
    max: Annotated[int, Field(gt=0, le=8192)] = Field(  # Lightning's finder goes no further
        description="Largest batch size; an epoch keeps at least 16 steps too. 256: larger ones learn less per epoch."
    )

    @model_validator(mode="after")
    def _ordered(self) -> TuneBatchSize:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be over max ({self.max})")
        return self


Range = Annotated[list[NonNegative], Field(min_length=2, max_length=2)]


class TuneSearch(Section):
    """A search by Optuna for every setting that is `auto`, in place of the finders."""

    trials: Annotated[int, Field(ge=0)] = Field(description="Settings to try; 0: no search, but the finders.")
    epochs: PositiveInt = Field(description="Epochs of each trial, each with the whole schedule.")
    prune: bool = Field(description="Give up a trial whose validation accuracy lags behind the others' median.")
    weight_decay: Range = Field(description="Lowest and highest that is tried, for `train.optimizer.weight_decay`.")
    augment_strength: Range = Field(description="Lowest and highest that is tried, for `train.augment.strength`.")
    storage: str | None = Field(
        description="Database URL of the study, such as `postgresql://user@host/name`, for several hosts to share; "
        "null: `.tenfold/studies.db`."
    )

    @model_validator(mode="after")
    def _ordered(self) -> TuneSearch:
        if not 0 < self.weight_decay[0] < self.weight_decay[1]:
            raise ValueError(f"weight_decay ({self.weight_decay}) should be two numbers over 0, the lower first")
        if not self.augment_strength[0] < self.augment_strength[1]:
            raise ValueError(f"augment_strength ({self.augment_strength}) should be two numbers, the lower first")
        return self


class Tune(Section):
    """What finds the settings that are `auto`."""

    learning_rate: TuneLearningRate
    batch_size: TuneBatchSize
    search: TuneSearch


class EarlyStopping(Section):
    """Ends training when the monitored metric stops improving."""

    patience: PositiveInt | None = Field(
        description="Validations without improvement before training ends; null: never. Off, since a one-cycle "
        "schedule earns most in its last epochs."
    )
    min_delta: NonNegative = Field(description="Smallest change that counts as an improvement.")


class Optimizer(Section):
    """The optimizer."""

    name: Literal["adam", "adamw", "rmsprop", "sgd"] = Field(description="`sgd` is with Nesterov momentum.")
    weight_decay: Auto | NonNegative = Field(
        description="Decoupled for adamw, L2 for the others. `auto`: what `tune.search` found."
    )
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        description="Decay of Adam's and AdamW's two moments."
    )
    momentum: Fraction = Field(description="Momentum of SGD and RMSprop.")


class Schedule(Section):
    """The learning rate over the training; `train.learning_rate` is its highest value."""

    name: Literal["constant", "one_cycle", "cosine", "cyclic"] = Field(
        description="`one_cycle`: linear up, cosine down to nothing (Smith 2018, https://arxiv.org/abs/1708.07120). "
        "`cyclic`: linear up and down, again and again (Smith 2017, https://arxiv.org/abs/1506.01186)."
    )
    warmup: Fraction = Field(description="Share of the steps during which `one_cycle` rises.")
    cycle_floor: Fraction = Field(description="Lowest rate of `cyclic`, as a share of `train.learning_rate`.")
    cycle_epochs: PositiveFloat = Field(description="Epochs during which `cyclic` rises, and then as many to fall.")
    interval: Literal["step", "epoch"] = Field(
        description="When the schedule moves: with each optimizer step. `epoch`, for `cyclic`: one step's worth per "
        "epoch, which is Lightning's default and hardly moves at all; here to compare with."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Schedule:
        if self.interval == "epoch" and self.name != "cyclic":
            raise ValueError(f"interval 'epoch' is for name: cyclic; {self.name} moves with each step: use 'step'")
        return self


class Swa(Section):
    """Stochastic weight averaging (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407)."""

    start: PositiveInt | Annotated[float, Field(gt=0, lt=1)] | None = Field(
        description="Epochs before the mean begins, as a number or as a share of `max_epochs`; null: no averaging. "
        "Off, since at the end of a one-cycle schedule the weights hardly move."
    )
    learning_rate: PositiveFloat | None = Field(
        description="From then on the rate goes to this and stays; null: the schedule goes on as it is."
    )
    anneal_epochs: PositiveInt = Field(description="Epochs that the rate takes to get there.")


class Augment(Section):
    """Random change of whole training batches; all zeros: none."""

    shift: NonNegative = Field(description="Largest shift, in pixels.")
    rotate: NonNegative = Field(description="Largest rotation, in degrees.")
    scale: Fraction = Field(description="Largest change of size, as a share.")
    shear: Fraction = Field(description="Largest sideways slant, as a share of the height.")
    elastic: NonNegative = Field(
        description="Standard deviation of a smooth random displacement of the pixels, in pixels. Off: it pays in "
        "long trainings and on few images."
    )
    strength: Auto | NonNegative = Field(description="Factor of all these. `auto`: what `tune.search` found.")

    def amounts(self) -> dict[str, float]:
        """Of each change, as `distort` takes them."""
        assert self.strength != "auto"
        return {name: value * self.strength for name, value in self.model_dump(exclude={"strength"}).items()}


class Train(Section):
    """How the network is trained."""

    learning_rate: Auto | PositiveFloat = Field(description="`auto`: what the tune stage found.")
    batch_size: Auto | PositiveInt = Field(description="Per device. `auto`: what the tune stage found.")
    max_epochs: PositiveInt = Field(description="Passes over the training images.")
    check_val_every_n_epoch: PositiveInt = Field(
        description="Epochs from one validation, and one checkpoint, to the next; divides `max_epochs`."
    )
    monitor: Literal["val/acc", "val/loss"] = Field(
        description="What chooses the best checkpoint and ends training early."
    )
    save_top_k: PositiveInt = Field(description="Number of best checkpoints kept while training runs.")
    early_stopping: EarlyStopping
    optimizer: Optimizer
    schedule: Schedule
    swa: Swa
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        description="Exponential moving average: what is left of an earlier step's weights with each step; null: none. "
        "What is validated and kept is then the average."
    )
    label_smoothing: Fraction = Field(description="Share of the target spread over all classes.")
    augment: Augment
    accelerator: Literal["auto", "cpu", "gpu", "tpu", "mps"] = Field(description="As Lightning's.")
    devices: Auto | PositiveInt = Field(description="Number of devices, or of processes on a CPU.")
    num_nodes: PositiveInt = Field(description="Number of hosts.")
    strategy: Literal["auto", "ddp", "sharded", "fsdp", "deepspeed"] = Field(
        description="How several devices work together. `ddp`: each has the whole network. `sharded`: each has a part "
        "of weights, gradients and optimizer (FSDP2; CPU or GPU). `fsdp`: the same the classic way, on GPUs. "
        "`deepspeed`: on GPUs, with the package of that name."
    )
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = Field(
        description="`auto`: bf16-mixed where the processor's flags (or the GPU) promise fast bf16, else 32-true."
    )
    channels_last: bool = Field(description="Memory layout of images and weights; faster for convolutions.")
    compile: bool = Field(
        description="Compile the network (`torch.compile`), which takes up to a minute and needs a C++ compiler. Off: "
        "it pays in long trainings and on GPUs."
    )
    activation_checkpointing: bool = Field(
        description="Keep no feature maps for the backward pass but compute them again: less memory, more time."
    )
    deterministic: bool = Field(description="Only kernels that give the same bits each time.")
    accumulate_grad_batches: PositiveInt = Field(description="Batches per optimizer step.")
    gradient_clip_val: PositiveFloat | None = Field(description="Bound of the gradient; null: none.")
    gradient_clip_algorithm: Literal["norm", "value"] = Field(description="What the bound is applied to.")
    num_workers: Auto | Annotated[int, Field(ge=0)] = Field(
        description="Loader processes, which shape no weights; `auto`: none, since a batch is one cut from an array."
    )
    pin_memory: Auto | bool = Field(description="Page-locked batches; `auto`: only with a GPU.")
    persistent_workers: Auto | bool = Field(
        description="Keep loader processes from epoch to epoch; `auto`: if there are any."
    )
    prefetch_factor: Auto | PositiveInt = Field(description="Batches that each loader process is ahead; `auto`: 2.")
    eval_batch_size: Auto | PositiveInt = Field(
        description="Batch size of validation: no gradients, so larger. `auto`: 1,000, or fewer of large images."
    )
    profiler: Literal["simple", "advanced", "pytorch"] | None = Field(
        description="Lightning profiler; its report goes to MLflow."
    )

    @property
    def first_averaged_epoch(self) -> int | None:
        """The first epoch, from 0, whose weights SWA averages; None without SWA."""
        start = self.swa.start
        return int(start * self.max_epochs) if isinstance(start, float) else start

    @field_validator("strategy", mode="before")
    @classmethod
    def _no_dp(cls, name: Any) -> Any:
        if name == "dp":
            raise ValueError("'dp' is gone from Lightning 2, since one process was slower than several: use 'ddp'")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> Train:
        every = self.check_val_every_n_epoch
        if self.max_epochs % every:
            raise ValueError(
                f"check_val_every_n_epoch ({every}) does not divide max_epochs ({self.max_epochs}), so the last epochs "
                "would never be validated: change one of them"
            )
        first = self.first_averaged_epoch
        if first is not None and self.max_epochs - first < 2:
            raise ValueError(
                f"swa.start ({self.swa.start}) leaves fewer than 2 of the {self.max_epochs} epochs (max_epochs) to "
                "average: lower it, train longer, or set it to null"
            )
        if self.swa.learning_rate is not None and (first is None or self.schedule.interval == "epoch"):
            other = "swa.start: null" if first is None else "schedule.interval: epoch"
            raise ValueError(
                f"swa.learning_rate ({self.swa.learning_rate}) would have no effect with {other}: change one of them"
            )
        if first is not None and self.ema_decay is not None:
            raise ValueError(
                f"ema_decay ({self.ema_decay}) and swa.start ({self.swa.start}) are two averages of the same weights: "
                "set one of them to null"
            )
        patience = self.early_stopping.patience
        validations = self.max_epochs // every - (first or 0) // every
        if patience is not None and patience >= validations:
            raise ValueError(
                f"early_stopping.patience ({patience}) is not less than the {validations} validations that count "
                f"(max_epochs {self.max_epochs}, one every {every}{', from swa.start on' if first else ''}), so it "
                "could never end the training: lower it, or set it to null"
            )
        if self.accelerator == "cpu" and self.precision == "16-mixed":
            raise ValueError(
                "precision '16-mixed' needs a GPU, and accelerator is 'cpu': use 'bf16-mixed', '32-true' or 'auto'"
            )
        if self.compile and self.activation_checkpointing:
            raise ValueError(
                "compile already chooses what to compute again, and does not go with activation_checkpointing: set one "
                "of them to false"
            )
        self._check_strategy()
        return self

    def _check_strategy(self) -> None:
        if self.strategy in ("auto", "ddp"):
            return
        if self.devices == 1 and self.num_nodes == 1:
            raise ValueError(
                f"strategy {self.strategy!r} divides a network among several devices, and devices is 1: raise devices, "
                "or use 'auto'"
            )
        if self.strategy in ("fsdp", "deepspeed") and self.accelerator == "cpu":
            raise ValueError(f"strategy {self.strategy!r} needs GPUs, and accelerator is 'cpu': use 'sharded' or 'ddp'")
        for key, is_on in {
            "swa.start": self.swa.start is not None,
            "ema_decay": self.ema_decay is not None,
            "gradient_clip_val": self.gradient_clip_val is not None and self.strategy in ("sharded", "fsdp"),
            "precision: 64-true": self.precision == "64-true",
            "precision: 16-mixed": self.precision == "16-mixed" and self.strategy == "sharded",
        }.items():
            if is_on:
                raise ValueError(f"strategy {self.strategy!r} does not go with {key}: leave one of them out")


class Evaluate(Section):
    """How the best checkpoint is measured."""

    batch_size: Auto | PositiveInt = Field(description="Images at a time. `auto`: 1,000, or fewer of large ones.")
    inference_mode: bool = Field(description="Leave out all that gradients would need; false: gradients alone.")
    calibration_bins: PositiveInt = Field(description="Bins of the expected calibration error; 15 is customary.")
    mistakes: Annotated[int, Field(ge=1, le=100)] = Field(description="Number of worst mistakes in the picture.")


class Export(Section):
    """How the model leaves the pipeline."""

    opset: Annotated[int, Field(ge=18, le=23)] = Field(description="ONNX operator set.")
    promote: Literal["if_better", "if_not_worse", "always", "never"] = Field(
        description="When the alias `champion` moves to the new version, by an exact test on the same test images: "
        "if it is significantly better (p < 0.05), if it is not significantly worse, always or never."
    )
    min_test_acc: Fraction = Field(description="A model under this test accuracy is never promoted.")


class Params(Section):
    """All settings."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        description="The split, first weights, order, augmentation and dropout follow from it."
    )
    data: Data
    split: Split
    model: Model
    tune: Tune
    train: Train
    evaluate: Evaluate
    export: Export

    @classmethod
    def load(cls, path: Path = paths.PARAMS) -> Params:
        """Read and check `params.yaml`, as YAML 1.2, the way DVC reads it (`1e-3` is a number).

        Raises:
            TenfoldError: the file is missing, is no YAML, or does not fit the schema; one line per problem.
        """
        try:
            document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TenfoldError(f"{path}: cannot be read ({error.strerror}). Restore it: git checkout {path}") from None
        except (YAMLError, UnicodeDecodeError) as error:
            raise TenfoldError(f"{path}: is not valid YAML: {error}") from None
        return cls.check(document, str(path))

    @classmethod
    def check(cls, document: Any, source: str) -> Params:
        """Settings from plain values; `source` says in errors where they stand."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise TenfoldError(_explain(source, error)) from None

    @model_validator(mode="after")
    def _searched(self) -> Params:
        searched = {
            "train.optimizer.weight_decay": self.train.optimizer.weight_decay,
            "train.augment.strength": self.train.augment.strength,
        }
        if not self.tune.search.trials and (keys := [key for key, value in searched.items() if value == "auto"]):
            raise ValueError(f"{' and '.join(keys)}: auto needs a search: set tune.search.trials, or a number here")
        return self

    def with_tuned(self, found: dict[str, Any]) -> Params:
        """These settings with what the tune stage found, by its names, in place of `auto`."""
        train = self.train
        optimizer, augment = train.optimizer, train.augment
        if "weight_decay" in found:
            optimizer = optimizer.model_copy(update={"weight_decay": found["weight_decay"]})
        if "augment_strength" in found:
            augment = augment.model_copy(update={"strength": found["augment_strength"]})
        changes = {name: found[name] for name in ("learning_rate", "batch_size") if name in found}
        train = train.model_copy(update={"optimizer": optimizer, "augment": augment} | changes)
        return self.model_copy(update={"train": train})

    def flat(self) -> dict[str, Any]:
        """Every setting under its dotted name: `{"train.optimizer.name": "adamw", …}`."""
        return dict(flatten(self.model_dump(mode="json")))


def flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested groups of settings as pairs of dotted name and value, in their order."""
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        pairs += flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


def describe() -> dict[str, str]:
    """What each key means, by dotted name, in the order of the schema."""
    return dict(_describe(Params))


def _describe(section: type[BaseModel], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            rows += _describe(field.annotation, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, field.description or ""))
    return rows


def _explain(source: str, error: ValidationError) -> str:
    """One line per wrong key: where, what was found, what is allowed."""
    problems: dict[str, list[str]] = {}
    found: dict[str, Any] = {}
    for detail in error.errors():
        key = _dotted(detail["loc"])
        problems.setdefault(key, []).append(_problem(key, detail["type"], detail["msg"]))
        found[key] = detail["input"]
    lines = [
        f"{source}: {key or 'the file'}: "
        + (reasons[0] if len(reasons) == 1 else " or ".join(dict.fromkeys(reasons)))
        + ("" if isinstance(found[key], dict) or "unknown key" in reasons[0] else f"; found {found[key]!r}")
        for key, reasons in problems.items()
    ]
    return "\n".join(lines)


def _dotted(location: tuple[int | str, ...]) -> str:
    """The dotted key of an error's location, without the members of a union that pydantic appends to it."""
    names: list[str] = []
    section: Any = Params
    for part in location:
        names.append(str(part))
        fields = section.model_fields
        section = fields[part].annotation if part in fields else None
        if not (isinstance(section, type) and issubclass(section, Section)):
            break
    return ".".join(names)


def _problem(key: str, kind: str, message: str) -> str:
    if kind == "missing":
        return f"missing; add it. It means: {describe().get(key, 'a group of settings')}"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, describe(), n=1, cutoff=0.6)
        return f"unknown key; {f'did you mean {near[0]}?' if near else 'remove it'}"
    return message.removeprefix("Value error, ").replace("Input should be", "should be")

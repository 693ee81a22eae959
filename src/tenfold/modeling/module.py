"""The LightningModule that trains: how a network learns and is watched while it does."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from tenfold import params as settings
from tenfold.data.augment import distort
from tenfold.modeling.networks import NetworkSpec, PixelNetwork
from tenfold.modeling.optimizers import build_optimizer, build_schedule
from tenfold.modeling.predictor import Batch, Predictor


class Classifier(Predictor):
    """Trains a network with cross entropy on whole batches of uint8 images.

    Logs `train/loss`, `train/acc`, `val/loss` and `val/acc` once per epoch, each over all images of the epoch. The
    training loss includes label smoothing and is measured on augmented images; the validation loss is plain.

    Args:
        network: takes pixels [N, C, H, W], gives logits [N, K].
        spec: what the network was built from.
        learning_rate: the peak of the schedule; Lightning's learning-rate finder changes it.
        train: optimizer, schedule, augmentation and label smoothing (https://arxiv.org/abs/1512.00567) to train with.
        scheduled: whether the learning rate follows `train.schedule`; the finders want it as they set it.
    """

    def __init__(
        self,
        network: PixelNetwork,
        spec: NetworkSpec,
        *,
        learning_rate: float,
        train: settings.Train,
        scheduled: bool = False,
    ) -> None:
        super().__init__(network, spec)
        self.learning_rate = learning_rate
        self.settings = train
        self._is_weight = [parameter.ndim > 1 for parameter in network.parameters()]  # FSDP will flatten them
        self.scheduled = scheduled
        # A loss that is no number stays one in the mean; by default it would be left out.
        self.train_loss, self.train_acc = MeanMetric(nan_strategy=math.nan), MeanMetric()
        self.val_loss = MeanMetric(nan_strategy=math.nan)
        self.val_acc = MulticlassAccuracy(len(spec.classes), average="micro")
        # Loss and accuracy of each step: a metric's update would cost as much as a layer.
        self._steps: list[Tensor] = []

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Augment training batches: here, since autocast would round the pixels' coordinates in `training_step`."""
        images, labels = batch
        return (self.augment(images) if self.trainer.training else images), labels

    def augment(self, images: Tensor) -> Tensor:
        """Training images as `train.augment` changes them."""
        return distort(images, **self.settings.augment.amounts())

    def on_train_epoch_start(self) -> None:
        """Begin the epoch's means anew: the finders stop in mid-epoch."""
        self._steps.clear()

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Loss of one augmented batch."""
        images, labels = batch
        logits = self(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing)
        self._steps.append(torch.stack([loss.detach(), (logits.detach().argmax(1) == labels).float().mean()]))
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the epoch's means, over all ranks; all batches are of one size."""
        losses, accuracies = torch.stack(self._steps).T
        self.train_loss.update(losses)
        self.train_acc.update(accuracies)
        self._log_epoch("train", self.train_loss, self.train_acc)

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Measure one batch as it is."""
        images, labels = batch
        logits = self(images)
        self.val_loss.update(F.cross_entropy(logits, labels), len(labels))
        self.val_acc.update(logits, labels)

    def on_validation_start(self) -> None:
        """Give all ranks the first one's BatchNorm statistics, which are those that are saved."""
        if self.trainer.world_size > 1:
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, 0)

    def on_validation_epoch_end(self) -> None:
        """Log the means of the whole validation set, over all ranks."""
        self._log_epoch("val", self.val_loss, self.val_acc)

    def configure_optimizers(self) -> Any:  # Lightning's own return type is a union of ten
        """The configured optimizer; the schedule moves once per optimizer step."""
        optimizer = build_optimizer(
            self.network.parameters(),
            self.learning_rate,
            self.settings.optimizer,
            fused=not self.trainer.gradient_clip_val,
            is_weight=self._is_weight,
        )
        if not self.scheduled:
            return optimizer
        assert self.trainer.max_epochs
        steps_per_epoch = int(self.trainer.estimated_stepping_batches) // self.trainer.max_epochs
        schedule = build_schedule(optimizer, self.learning_rate, self.settings, steps_per_epoch)
        interval = self.settings.schedule.interval
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}

    def _log_epoch(self, part: str, loss: MeanMetric, acc: MeanMetric | MulticlassAccuracy) -> None:
        # The curves of train are sent by `History`: Lightning would do so after the epoch's checkpoint, and a kill
        # between the two would lose a point.
        self.log_dict(
            {f"{part}/loss": loss.compute(), f"{part}/acc": acc.compute()}, logger=None if part == "val" else False
        )
        loss.reset()
        acc.reset()

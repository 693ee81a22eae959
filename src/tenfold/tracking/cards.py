"""What people read on MLflow's pages: the names of runs and the notes on them, descriptions of versions, model cards.

In Markdown, and made of what the store holds: `tenfold promote` writes them without any file at hand. The links are
those of MLflow's pages, whatever the server's address.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenfold.params import Params
from tenfold.tracking import provenance, runs

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

WRITTEN = "tenfold.written_sha256"
"""Tag: the hashes of the last two texts that were written here. A text with another is somebody's own."""
PICTURES = {
    "curves": "Loss, accuracy and learning rate by epoch",
    "confusion": "What is taken for what",
    "mistakes": "The worst mistakes",
    "per_class": "Precision and recall of each class",
    "calibration": "How far the probabilities can be trusted",
    "samples": "Some of the training images",
}
"""Those of `reports/evaluate/`, in the order in which they are to be looked at."""
LONGEST = 5000
"""Of a description, in characters: PostgreSQL takes no more."""
MOST_CLASSES = 30


def run_name(params: Params) -> str:
    """What is trained, in a line: `mnist compact 4 epochs lr 0.012 batch 64 seed 42`."""
    train, what = params.train, f"{params.data.dataset} {params.model.network}"
    rate = f"lr {float(train.learning_rate):.3g}"
    return f"{what} {_epochs(train.max_epochs)} {rate} batch {train.batch_size} seed {params.seed}"


def mark(text: str, there: str | None, tags: Mapping[str, str]) -> str | None:
    """The tag `WRITTEN` that goes with a text, if it may take the place of what is there: nothing, or one of ours.

    The tag names the old text too, so that a process killed between the two does not make it somebody's own.
    """
    before = _sha256(there or "")
    ours = not there or before in tags.get(WRITTEN, "").split()
    return f"{before} {_sha256(text)}" if ours and text != there else None


def note(run: Run) -> str:
    """The note on a training run: how good the model is, what was trained, the pictures, how to do it again."""
    tags, where = run.data.tags, _address(run)
    # Not the pictures themselves: MLflow shows them so wide that the column beside the note leaves the window.
    pictures = "\n".join(
        f"{place}. [{title}]({where}/artifacts/evaluate/{name}.png)"
        for place, (name, title) in enumerate(PICTURES.items(), 1)
    )
    replayed = f"\n\nThis run was {tags[runs.REPLAYED]}." if runs.REPLAYED in tags else ""
    return f"**{_result(run)}.** {_trained(run)}{replayed}\n\n{pictures}\n\n{_again(run)}\n"


def version(made: ModelVersion, run: Run | None, decision: str) -> str:
    """The description of a version: how good it is, what it is, how it compares with the champion."""
    if run is None:
        return f"Its run is gone. {decision}"[:LONGEST]
    decision = f"\n\n{decision[:1].upper()}{decision[1:]}." if decision else ""
    return f"{_result(run)}. {_trained(run)} Its run: [{run.info.run_name}]({_address(run)}).{decision}\n"[:LONGEST]


def card(champion: ModelVersion, run: Run | None) -> str:
    """The card of a registered model: intended use, data, metrics with intervals, limits, how to call it."""
    data, name = _data(run), champion.name
    of_test = data.get("test", {})
    classes = list(of_test.get("per_class", []))
    named = ", ".join(map(_code, classes[:MOST_CLASSES])) + ", …" * (len(classes) > MOST_CLASSES)
    channels, height, width = of_test.get("shape", (1, "H", "W"))
    rows = f"{height} rows of {width} pixels"
    kind, form = ("grey", rows) if channels == 1 else ("colour", f"three planes (red, green, blue) of {rows}")
    where = f"[{run.info.run_name}]({_address(run)})" if run else "gone"
    pictures = (
        f"[what it takes for what]({_address(run)}/artifacts/evaluate/confusion.png)" if run else "its evaluation"
    )
    about = (
        f"Tells what is on {kind} images of {height} × {width} pixels, one of {len(classes)} classes: {named}.\n\n"
        if classes
        else ""
    )
    measured = "\n".join(f"- {part}: {_measured(run, part)}" for part in data) or "Not known: the run is gone."
    return f"""\
{about}The champion is [version {champion.version}](#/models/{name}/versions/{champion.version}); its run is {where}.

### Intended use

Images like those of the data set {_code(of_test.get("name", name.removeprefix("tenfold-")))}: one thing on each, \
of one of these classes. {_trained(run)}

### Data and metrics

{measured}

The test images served neither training nor the choice of settings. The interval (Wilson's) says how far the \
accuracy may be off by the chance of which images are in the set. F1 is the mean over classes. The calibration error \
is the mean distance of probability and accuracy.

### Limits

- It answers with one of its classes whatever the image shows. A low probability is the only hint that none fits.
- On images that were made in another way (camera, scanner, hand, cut) it may be far worse than measured here.
- Before you act on a probability, choose a threshold on images of your own.
- Some classes are harder than others: {pictures}.

### How to call it

`mlflow models serve -m models:/{name}@champion --env-manager local --port 5001` (short: `tenfold serve`), then

```sh
curl -H 'Content-Type: application/json' -d '{{"inputs": [IMAGE, IMAGE]}}' http://127.0.0.1:5001/invocations
```

`IMAGE` is {form}, whole numbers from 0 to 255; or a string, the base64 of a PNG, JPEG or WebP file. The answer has \
for each the class (`label` and `name`), its `probability`, and the `probabilities` of all; with \
`"params": {{"top_k": 3}}` beside `"inputs"`, of the three likeliest.
"""[:LONGEST]


def _result(run: Run) -> str:
    """`99.66 % of the 10,000 test images classified correctly (95 % interval 99.53–99.76 %)`."""
    metrics, data = run.data.metrics, _data(run)
    if "test/acc" not in metrics:
        return "Not evaluated"
    images = f"{data['test']['images']:,} " if "test" in data else ""
    return (
        f"{_percent(metrics['test/acc'])} of the {images}test images classified correctly{_interval(metrics, 'test')}"
    )


def _trained(run: Run | None) -> str:
    params = run.data.params if run else {}
    if run is None or "train.learning_rate" not in params:
        return ""
    rate, batch = (params.get(f"tuned.{name}", params[f"train.{name}"]) for name in ("learning_rate", "batch_size"))
    images = f"{_data(run)['train']['images']:,} images of " if "train" in _data(run) else ""
    rate = rate if rate == "auto" else f"{float(rate):.3g}"
    return (
        f"Network {_code(params['model.network'])} (width {params['model.width']}), trained on {images}"
        f"{_code(params['data.dataset'])}: {_epochs(params['train.max_epochs'])}, learning rate {rate}, "
        f"batch size {batch}, seed {params['seed']}."
    )


def _epochs(number: object) -> str:
    return f"{number} epoch{'s' * (str(number) != '1')}"


def _again(run: Run) -> str:
    """How to get the same weights."""
    tags = run.data.tags
    commit = tags.get("mlflow.source.git.commit")
    lines = [f"git checkout {commit}"] if commit else []
    if tags.get(provenance.DIRTY) == "true":
        lines.append(f"mlflow artifacts download -r {run.info.run_id} -a source/changes.diff -d .tenfold")
        lines.append("git apply .tenfold/changes.diff")
    return "Once more:\n\n```sh\n" + "\n".join([*lines, "dvc repro"]) + "\n```"


def _measured(run: Run | None, part: str) -> str:
    metrics = run.data.metrics if run else {}
    names = {"loss": "loss", "f1": "F1", "ece": "calibration error"}
    others = [
        f"{title} {metrics[f'{part}/{name}']:.4f}" for name, title in names.items() if f"{part}/{name}" in metrics
    ]
    acc = f"{_percent(metrics[f'{part}/acc'])} right" if f"{part}/acc" in metrics else "not evaluated"
    return ", ".join([f"{_data(run)[part]['images']:,} images, {acc}{_interval(metrics, part)}", *others])


def _interval(metrics: Mapping[str, float], part: str) -> str:
    low, high = metrics.get(f"{part}/acc_low"), metrics.get(f"{part}/acc_high")
    return "" if low is None or high is None else f" (95 % interval {100 * low:.2f}–{_percent(high)})"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _data(run: Run | None) -> dict[str, dict[str, Any]]:
    """What a run says of train, val and test: name, number of images, classes, shape."""
    found = {}
    for entry in run.inputs.dataset_inputs if run and run.inputs else []:
        tensors = json.loads(str(entry.dataset.schema))["mlflow_tensorspec"]["features"]
        shape = json.loads(tensors)[0]["tensor-spec"]["shape"][1:]
        profile = json.loads(str(entry.dataset.profile))
        found[entry.tags[0].value] = profile | {"name": entry.dataset.name, "shape": shape}
    return found


def _address(run: Run) -> str:
    return f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def _code(text: str) -> str:
    """As it is, not as Markdown: the name of a class may hold anything."""
    plain = re.sub(r"[`|\s]+", " ", text)
    return f"`{plain if len(plain) <= 30 else plain[:29] + '…'}`"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

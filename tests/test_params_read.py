"""The params of each stage in dvc.yaml against the keys that the stage really reads: none missing, none idle."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.checkout import Checkout, Pipeline

STAGES = ("download", "split", "tune", "train", "evaluate", "export")
NAMES_RUNS_ONLY = {"data.dataset", "model.network", "train.max_epochs"}
"""Read by stages for titles of runs and names of models as well, which are no outs."""

WATCH = """
import json, sys
from tenfold import params as schema

prefixes, read, kept = {}, {}, []

def remember(section, prefix=""):
    prefixes[id(section)] = prefix
    kept.append(section)  # an id is given anew when its object is gone
    for name in type(section).model_fields:
        value = section.__dict__[name]
        if isinstance(value, schema.Section):
            remember(value, f"{prefix}{name}.")

settings = schema.Params.load()
own = settings.data.model_copy(update={"dataset": "folder", "on_bad_file": "skip"})
own_images = settings.model_copy(update={"data": own})
search = settings.tune.search.model_copy(update={"trials": 1, "epochs": 1})
searching = settings.model_copy(update={"tune": settings.tune.model_copy(update={"search": search})})
for variant in (settings, own_images, searching):
    remember(variant)
with_tuned = schema.Params.with_tuned

def remembered(self, found):
    result = with_tuned(self, found)
    remember(result)
    return result

schema.Params.with_tuned = remembered
plain = schema.Section.__getattribute__

def watched(self, name):
    value = plain(self, name)
    prefix = prefixes.get(id(self))
    if prefix is not None and name in type(self).model_fields:
        (passed if isinstance(value, schema.Section) else seen).add(prefix + name)
    return value

schema.Section.__getattribute__ = watched
from importlib import import_module
for stage in sys.argv[2:]:
    seen, passed = set(), set()
    read[stage] = [seen, passed]
    if stage == "download":
        import_module(f"tenfold.stages.{stage}").run(own_images)
    if stage == "tune":
        import_module(f"tenfold.stages.{stage}").run(searching)
    import_module(f"tenfold.stages.{stage}").run(settings)
with open(sys.argv[1], "w") as file:
    json.dump({stage: [sorted(keys) for keys in found] for stage, found in read.items()}, file)
"""


@pytest.fixture(scope="module")
def keys_read(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[set[str]]]:
    """Of each stage the keys that it reads, and the groups of keys, in a copy of the pipeline with its own store."""
    root = tmp_path_factory.mktemp("read") / "copy"
    shutil.copytree(pipeline.checkout.root, root, ignore=shutil.ignore_patterns("mlflow.db*", "mlruns", "cache"))
    shutil.rmtree(root / "data/split")
    (root / "data/example/circle/bad.txt").write_text("no image")
    found = root / "read.json"
    Checkout(root).run(sys.executable, "-c", WATCH, str(found), *STAGES)
    return {stage: [set(keys) for keys in pair] for stage, pair in json.loads(found.read_text()).items()}


@pytest.mark.parametrize("stage", STAGES)
def test_params_deps_are_the_keys_that_the_stage_reads(stage: str, keys_read: dict[str, list[set[str]]]) -> None:
    stages = YAML(typ="safe").load(Path(__file__).parents[1] / "dvc.yaml")["stages"]
    declared, (read, passed_on) = stages[stage].get("params", []), keys_read[stage]

    def covers(entry: str, key: str) -> bool:
        return key == entry or key.startswith(f"{entry}.")

    missing = {key for key in read - NAMES_RUNS_ONLY if not any(covers(entry, key) for entry in declared)}
    assert not missing, "a change of these would not run the stage again"
    idle = {entry for entry in declared if not any(covers(entry, key) for key in read | passed_on)}
    assert not idle, "a change of these would run the stage again for nothing"

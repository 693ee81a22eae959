"""What must agree with something else: dvc.yaml with the code, MLproject with the schema, the layout with DESIGN."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tenfold.params import Params, describe
from tenfold.reproduce import flat_names
from tenfold.serving import packaging

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src"
STAGES = ("download", "split", "tune", "train", "evaluate", "export")
SHAPES_NO_OUT = (
    "tenfold",
    "tenfold.params",
    "tenfold.paths",
    "tenfold.errors",
    "tenfold.processes",
    "tenfold.tracking",
)


def pipeline() -> dict[str, dict[str, list[str]]]:
    stages: dict[str, dict[str, list[str]]] = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"]
    return stages


def module_file(module: str) -> Path | None:
    """The file of a module of the package; None for names that are no module."""
    file = PACKAGE / Path(*module.split(".")).with_suffix(".py")
    package = PACKAGE / Path(*module.split(".")) / "__init__.py"
    return file if file.is_file() else package if package.is_file() else None


def imported(module: str) -> set[str]:
    """Modules of the package that a module imports itself, anywhere in its text, functions included."""
    file = module_file(module)
    assert file is not None
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "tenfold" and module_file(name)}


def shapes_an_out(module: str) -> bool:
    file = module_file(module)
    return (
        not any(module == name or module.startswith(f"{name}.") for name in SHAPES_NO_OUT[1:])
        and module != "tenfold"
        and file is not None
        and file.name != "__init__.py"
    )


def closure(module: str) -> set[str]:
    """All modules that shape what a module does: those it imports, those that they import, and so on."""
    found, waiting = set(), {module}
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= {other for other in imported(name) if shapes_an_out(other)} - found
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_code_deps_are_the_modules_that_the_stage_imports(stage: str) -> None:
    files = {module_file(module) for module in closure(f"tenfold.stages.{stage}")}
    expected = {file.relative_to(PROJECT).as_posix() for file in files if file}
    declared = {dep for dep in pipeline()[stage]["deps"] if dep.startswith("src/")}
    assert declared - not_imported(stage) == expected


def not_imported(stage: str) -> set[str]:
    """Code that is not imported but copied into an out or a model."""
    return {file.relative_to(PROJECT).as_posix() for file in packaging.SOURCES} if stage == "export" else set()


def test_packages_have_no_code_in_their_init_files() -> None:
    for file in PACKAGE.rglob("__init__.py"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert len(lines) <= 2, f"{file} is no dep of any stage, so it must not hold code"


@pytest.mark.parametrize("stage", STAGES)
def test_params_deps_are_keys_of_the_schema(stage: str) -> None:
    keys = set(describe())
    for declared in pipeline()[stage]["params"]:
        assert any(key == declared or key.startswith(f"{declared}.") for key in keys), declared


def test_mlproject_has_an_entry_point_for_the_whole_and_one_per_stage() -> None:
    from mlflow.projects._project_spec import load_project

    project = load_project(str(PROJECT))
    assert set(project._entry_points) == {"main", *STAGES}
    for name in project._entry_points:
        entry = project.get_entry_point(name)
        assert not entry.parameters, "a declared default would be passed always, over an edited params.yaml"
        command = entry.compute_command(dict.fromkeys(flat_names(), "1"), storage_dir=None)
        assert all(f"--{flat} 1" in command for flat in flat_names())


def test_every_setting_can_be_given_to_mlflow_run() -> None:
    assert sorted(flat_names().values()) == sorted(Params.load(PROJECT / "params.yaml").flat())


def test_imports_run_downwards() -> None:
    """stages; then training, tracking, report; then modeling, data, serving; what imports nothing is on the ground."""
    height = {"stages": 3, "training": 2, "tracking": 2, "report": 2, "modeling": 1, "data": 1, "serving": 1}
    ground = {"params", "paths", "errors", "processes"}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if parts[1] not in height and parts[1] not in ground:
            continue
        for other in imported(".".join(parts).removesuffix(".__init__")):
            target = other.split(".")[1] if "." in other else ""
            upwards = height.get(target, 0) > height.get(parts[1], 0)
            assert not upwards, f"{'.'.join(parts)} imports {other}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_can_be_read_in_one_sitting(stage: str) -> None:
    lines = (PACKAGE / "tenfold" / "stages" / f"{stage}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120

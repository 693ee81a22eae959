"""Write docs/reference.md: every setting, from the schema in src/tenfold/params.py and the values in params.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from tenfold.params import Params, Section

PAGE = Path(__file__).with_name("reference.md")
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "over", "maximum": "at most", "exclusiveMaximum": "under"}
HEAD = """# Settings

Every key of `params.yaml`: what is shipped, what is allowed, what it means. Change one in the file, or for one
experiment with `dvc exp run -S KEY=VALUE`, or with `mlflow run . -P NAME=VALUE`, where the name is the key with `_` for
each dot, and without the first part for keys of `train` (`train.max_epochs` is `max_epochs`, `data.dataset` is
`data_dataset`). Unknown keys and values that contradict each other are refused before any work is done. Sets of values
with a name: `tenfold recipe`.

This page is written by `python docs/reference.py`; the words stand beside each key in `src/tenfold/params.py`.
"""


def render() -> str:
    """The page."""
    shipped = Params.load(Path(__file__).parents[1] / "params.yaml").flat()
    schema = Params.model_json_schema()
    definitions = schema["$defs"]

    def rows(model: type[Section], prefix: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            kind = field.annotation
            if _is_section(kind):
                found += rows(kind, f"{prefix}{name}.")
                continue
            key = prefix + name
            properties = definitions[model.__name__]["properties"] if prefix else schema["properties"]
            cells = (f"`{key}`", f"`{_yaml(shipped[key])}`", _allowed(properties[name], definitions), field.description)
            found.append(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |")
        return found

    parts = [HEAD]
    head = ["| Key | Shipped | Allowed | Meaning |", "|---|---|---|---|"]
    top = [name for name, field in Params.model_fields.items() if not _is_section(field.annotation)]
    parts.append("\n".join([*head, *(row for row in rows(Params, "") if row.split("`")[1] in top)]))
    for name, field in Params.model_fields.items():
        if _is_section(section := field.annotation):
            about = " ".join((section.__doc__ or "").split())
            parts.append("\n".join([f"## {name}", "", about, "", *head, *rows(section, f"{name}.")]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """What a part of the JSON schema allows, in words."""
    if "$ref" in schema:
        return _allowed(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return ", ".join(dict.fromkeys(_allowed(option, definitions) for option in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_yaml(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        items = schema.get("prefixItems") or [schema["items"]] * schema.get("minItems", 1)
        return f"[{', '.join(_allowed(item, definitions) for item in items)}]"
    words = {
        "boolean": "`true`, `false`",
        "null": "`null`",
        "string": "text",
        "integer": "whole number",
        "number": "number",
    }[schema["type"]]
    bounds = " and ".join(f"{word} {schema[bound]}" for bound, word in BOUNDS.items() if bound in schema)
    return f"{words} {bounds}".strip()


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"{PAGE} is written")

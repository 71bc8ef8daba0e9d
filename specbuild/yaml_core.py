"""YAML as people mean it: ``off`` is a word and ``1e6`` a number (YAML 1.2's core schema), and no key is given twice."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from specbuild.errors import RecipeError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# PyYAML reads YAML 1.1, where `method: off` is false and `eps: 1e-5` a string. Its tables are shared by all loaders, so
# they are copied without booleans and floats, which are then added as YAML 1.2 has them.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def parse(text: str, *, origin: str) -> Any:
    """The value of a YAML document; ``origin`` (a file, a flag, a variable) is named when it is refused.

    Raises:
        RecipeError: not YAML, or a key twice in one mapping; with the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{origin}:{mark.line + 1}" if mark else origin
        raise RecipeError(f"{where}: not valid YAML: {error.problem}; correct that line") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin}: not valid YAML: {error}") from error

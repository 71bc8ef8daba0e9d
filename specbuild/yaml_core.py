"""YAML as people mean it: ``off`` is a word, ``1e6`` a number and ``1:30`` none (YAML 1.2's core schema); no key is given twice,
and the whole is what JSON can say too."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

from specbuild.errors import RecipeError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping, not a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# PyYAML reads YAML 1.1, where `method: off` is false, `eps: 1e-5` a string and `1:30` ninety. Its tables are shared by all
# loaders, so they are copied without what YAML 1.2 lacks or writes otherwise, which is then added.
_OTHERWISE = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _OTHERWISE]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def parse(text: str, *, origin: str) -> Any:
    """The value of a YAML document; ``origin`` (a file, a flag, a variable) is named when it is refused.

    Raises:
        RecipeError: not YAML, or a key twice in one mapping; with the line. Or nothing that JSON could say: a date, a set,
            an infinite number, a value inside itself.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        json.dumps(value, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{origin}:{mark.line + 1}" if mark else origin
        raise RecipeError(f"{where}: not valid YAML: {error.problem}; correct that line") from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecipeError(f"{origin}: not valid YAML, or more than words, numbers, lists and mappings: {error}; correct it") from error
    return value

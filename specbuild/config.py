"""Where a recipe's values come from: ``--set`` and flags > ``SPECBUILD_*`` > the YAML file > defaults, and which of them won."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from specbuild import yaml_core
from specbuild.errors import RecipeError, UsageError, close_match
from specbuild.recipe import Recipe, Section

PREFIX = "SPECBUILD_"
NOT_OF_RECIPES = frozenset({"SPECBUILD_HOME", "SPECBUILD_DEBUG"})
"""Variables that steer the program, not a recipe."""
DEFAULT = "default"

Key = tuple[str, ...]


@dataclass(frozen=True)
class Assignment:
    """One value for one key, and who gave it."""

    path: Key
    value: Any
    origin: str


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe and, for each of its keys, the source that won."""

    recipe: Recipe
    origins: dict[Key, str]
    """Of the keys that some source gave; a key below one of them has the same origin, any other the default."""

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(dotted key, value, origin) of every key, in the schema's order."""
        for path, value in _leaves(self.recipe):
            yield ".".join(path), value, _origin(self.origins, path)


def from_sources(
    document: Mapping[str, Any], *, origin: str, environ: Mapping[str, str], assignments: Iterable[Assignment] = ()
) -> ResolvedRecipe:
    """The recipe that the sources give together; of two values for a key, the later of file, environment, assignments wins.

    Raises:
        RecipeError: naming the source that gave the impossible value or the unknown key.
    """
    data: dict[str, Any] = {}
    origins: dict[Key, str] = {}
    given = [Assignment((str(key),), value, origin) for key, value in document.items()]
    for assignment in [*given, *from_environment(environ), *assignments]:
        if assignment.origin != origin:
            _check_path(assignment)
        _merge(data, assignment.path, assignment.value, assignment.origin, origins)
    try:
        recipe = Recipe.from_mapping(data, origin=origin)
    except RecipeError as error:
        # Refused again in the name of the source that gave the value.
        recipe = Recipe.from_mapping(data, origin=_blame(origins, error, origin))
    return ResolvedRecipe(recipe, origins)


def from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    """``SPECBUILD_TARGET__PRECISION=int8`` → target.precision: int8 (a YAML scalar), for each such variable.

    Raises:
        RecipeError: a value that is not YAML.
    """
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in NOT_OF_RECIPES:
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield Assignment(path, yaml_core.parse(text, origin=name), name)


def from_option(text: str) -> Assignment:
    """``a.b=value`` of a ``--set`` option, the value a YAML scalar.

    Raises:
        UsageError: no ``=`` or an empty key.
        RecipeError: the value is not YAML.
    """
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise UsageError(f"--set {text}: not KEY=VALUE; write for example --set target.precision=int4")
    return Assignment(path, yaml_core.parse(value, origin=f"--set {key}"), f"--set {key.strip()}")


def load(reference: str, *, settings: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> ResolvedRecipe:
    """The recipe of ``-c reference`` (a YAML file, or a shipped recipe's name) with ``--set`` settings and the environment.

    Raises:
        UsageError: there is no such recipe.
        RecipeError: it is refused.
    """
    text, origin = _read(reference)
    document = yaml_core.parse(text, origin=origin)
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise RecipeError(f"{origin}: a recipe is a mapping of keys, this is {kind}; start with `name:` and `checkpoint:`")
    assignments = [from_option(text) for text in settings]
    return from_sources(document, origin=origin, environ=os.environ if environ is None else environ, assignments=assignments)


def shipped() -> dict[str, str]:
    """Name → text of each recipe that comes with specbuild."""
    folder = resources.files("specbuild.configs")
    files = (entry for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return dict(sorted((file.name.removesuffix(".yaml"), file.read_text(encoding="utf-8")) for file in files))


def _read(reference: str) -> tuple[str, str]:
    recipes = shipped()
    if reference in recipes:
        return recipes[reference], f"{reference}.yaml"
    file = Path(reference)
    try:
        return file.read_text(encoding="utf-8"), reference
    except FileNotFoundError:
        raise UsageError(f"{reference}: neither a recipe file nor a shipped recipe.{close_match(reference, recipes)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{reference}: cannot be read as a recipe ({error}); give a YAML file or one of: {', '.join(recipes)}") from error


def _check_path(assignment: Assignment) -> None:
    """Refuse a path that the schema does not have, in the name of its own source."""
    section: type[Section] | None = Recipe
    keys = iter(enumerate(assignment.path))
    for depth, key in keys:
        if section is None:
            return
        if key not in section.model_fields:
            parent = ".".join(assignment.path[:depth])
            where = f"{assignment.origin}: {parent}" if parent else assignment.origin
            raise RecipeError(f"{where}: unknown key {key!r}.{close_match(key, section.model_fields)}")
        annotation = section.model_fields[key].annotation
        if get_origin(annotation) is dict and next(keys, None) is None:  # the key below is a name
            return
        section = _section_of(annotation)


def _section_of(annotation: Any) -> type[Section] | None:
    """The section class of a field's annotation (``X``, ``X | None`` or ``dict[name, X]``), None for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _merge(data: dict[str, Any], path: Key, value: Any, origin: str, origins: dict[Key, str]) -> None:
    """Put ``value`` at ``path``: mappings are merged key by key, anything else replaces what was there."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _merge(data, (*path, str(key)), item, origin, origins)
        return
    place = data
    for key in path[:-1]:
        inner = place.get(key)
        if not isinstance(inner, dict):
            inner = place[key] = {}
        place = inner
    place[path[-1]] = value
    for known in [known for known in origins if known[: len(path)] == path]:
        del origins[known]
    origins[path] = origin


def _leaves(section: Section, path: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, Section):
            yield from _leaves(value, (*path, key))
        elif isinstance(value, dict) and value and all(isinstance(item, Section) for item in value.values()):
            for name, item in value.items():
                yield from _leaves(item, (*path, key, name))
        else:
            yield (*path, key), value


def _origin(origins: Mapping[Key, str], path: Key) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    below = sorted({origin for known, origin in origins.items() if known[: len(path)] == path})
    return ", ".join(below) or DEFAULT


def _blame(origins: Mapping[Key, str], error: RecipeError, document: str) -> str:
    """Who gave the value that ``error`` is about, else the document."""
    assert isinstance(error.__cause__, ValidationError)
    path = tuple(str(part) for part in error.__cause__.errors(include_url=False)[0]["loc"])
    found = _origin(origins, path) if path else DEFAULT
    return document if found == DEFAULT else found

"""``specbuild config``: recipes, where their values come from, and their schema."""

from __future__ import annotations

import json

import click

from specbuild.cli.main import NounGroup
from specbuild.cli.output import JSON_OPTION, RECIPE_OPTION, SET_OPTION, print_json, print_table


@click.group(cls=NounGroup, default="list")
def command() -> None:
    """A value comes from `--set`, else from a variable such as SPECBUILD_TARGET__PRECISION, else from the recipe file, else it
    is the default."""


@command.command()
@RECIPE_OPTION
@SET_OPTION
@JSON_OPTION
def show(reference: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Print every key of a recipe, its value and the source that gave it."""
    from specbuild import config

    rows = list(config.load(reference, settings=settings).rows())
    if as_json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        shown = [[key, value if isinstance(value, str) else json.dumps(value), origin] for key, value, origin in rows]
        print_table(["key", "value", "from"], shown)


@command.command()
def schema() -> None:
    """Print the JSON schema of a recipe."""
    from specbuild.recipe import Recipe

    print_json(Recipe.model_json_schema())


@command.command(name="list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List the recipes that come with specbuild."""
    from specbuild import config

    recipes = [config.load(name, environ={}).recipe for name in config.shipped()]
    if as_json:
        print_json([recipe.model_dump(mode="json") for recipe in recipes])
        return
    rows = [[recipe.name, recipe.checkpoint, recipe.backend, recipe.target.precision, recipe.speculation.method] for recipe in recipes]
    print_table(["name", "checkpoint", "backend", "target", "method"], rows)

"""Is this pair possible? Asked before anything is compiled; each refusal names the change that mends it.

Pure: it compares small facts. What only a compiler knows (precisions, GPU generations) its own ``check`` refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from specbuild.errors import PreflightError
from specbuild.recipe import Recipe, section_key

from .architectures import decoder_spec
from .decoder_spec import DecoderSpec
from .facts import ModelFacts, TokenizerFacts


def preflight(recipe: Recipe, models: Sequence[ModelFacts]) -> None:
    """Refuse what could not work, or would work badly in silence: the target, then its draft models.

    Raises:
        PreflightError: one sentence: which key, both values, what to change.
    """
    target, *drafts = models
    check_lengths(recipe)
    check_config(target, recipe.target.config, "target.config")
    check_positions(recipe, target)
    check_padding(target)
    check_early_exit(recipe, target)
    for draft in drafts:
        check_config(draft, recipe.speculation.models[draft.role].config, f"{section_key(draft.role)}.config")
        check_positions(recipe, draft)
        check_padding(draft)
        check_tokenizers(target, draft)
        check_vocabularies(target, draft)


def check_lengths(recipe: Recipe) -> None:
    """A pass that verifies ``max_draft_len`` tokens and one more must fit a sequence beside at least one token of prompt."""
    length, draft_len = recipe.target.max_seq_len, recipe.speculation.max_draft_len
    if draft_len + 2 > length:
        raise PreflightError(
            f"speculation.max_draft_len {draft_len} does not fit target.max_seq_len {length}; "
            f"set speculation.max_draft_len to {length - 2} or less, or target.max_seq_len to {draft_len + 2} or more"
        )


def check_config(model: ModelFacts, config: Mapping[str, Any] | None, where: str) -> None:
    """A recipe's ``config`` section must describe the checkpoint that is really there."""
    if config is None:
        return
    for key in sorted(config.keys() & model.config.keys()):
        if config[key] != model.config[key]:
            raise PreflightError(
                f"{where}.{key}: the recipe says {config[key]!r}, {model.source} has {model.config[key]!r}; "
                "correct the recipe or name the checkpoint that it describes"
            )
    # Keys that only one side writes out may still mean the same (head_dim, rope_parameters): compare what they add up to.
    said = decoder_spec(config)
    for field in fields(DecoderSpec):
        ours, theirs = getattr(said, field.name), getattr(model.spec, field.name)
        if ours != theirs:
            values = "" if field.name == "rope" else f" ({ours!r} against {theirs!r})"
            raise PreflightError(
                f"{where}: its {field.name} is not that of {model.source}{values}; correct the recipe or remove the section"
            )


def check_positions(recipe: Recipe, model: ModelFacts) -> None:
    """Every position up to ``max_seq_len`` must be one that the model was made for; a draft is no exception: past the end of its
    positions it would draft noise, and acceptance would fall without a word."""
    length = recipe.target.max_seq_len
    if length > model.spec.max_position:
        other = "" if model.role == "target" else ", or choose a draft checkpoint made for longer sequences"
        raise PreflightError(
            f"target.max_seq_len {length} is above the {model.spec.max_position} positions of the {model.role} {model.source}; "
            f"set target.max_seq_len to {model.spec.max_position} or less{other}"
        )
    hold = model.spec.rope.max_position
    if hold is not None and length > hold:
        raise PreflightError(
            f"target.max_seq_len {length}: the dynamic rotary scaling of the {model.role} {model.source} changes past {hold} "
            f"positions, which cached keys cannot follow; set target.max_seq_len to {hold} or less"
        )


def check_padding(model: ModelFacts) -> None:
    """An embedding has a row for each token, perhaps some more for padding, never fewer."""
    if model.tokenizer is not None and model.tokenizer.size > model.spec.vocab_size:
        raise PreflightError(
            f"the tokenizer of the {model.role} {model.source} knows {model.tokenizer.size} ids, its embedding has "
            f"{model.spec.vocab_size} rows; use the tokenizer that the checkpoint came with, "
            f"or resize its embedding to {model.tokenizer.size} rows"
        )


def check_early_exit(recipe: Recipe, target: ModelFacts) -> None:
    """Both parts of a target that is cut in two have a layer at least."""
    section, layers = recipe.speculation.early_exit, target.spec.num_layers
    if section is not None and section.layers >= layers:
        raise PreflightError(
            f"speculation.early_exit.layers is {section.layers}, but the target {target.source} has {layers} layers; "
            f"set it to {layers - 1} or less, so that one is left to verify with"
            if layers > 1
            else f"speculation.early_exit: the target {target.source} has a single layer and cannot be cut in two; remove the section"
        )


def check_tokenizers(target: ModelFacts, draft: ModelFacts) -> None:
    """Both models must mean the same by every id."""
    if target.tokenizer is None or draft.tokenizer is None:
        return
    difference = first_difference(target.tokenizer, draft.tokenizer)
    if difference is not None:
        raise PreflightError(
            f"the tokenizers of target {target.source} and draft {draft.source} differ: {difference}; "
            f"set {section_key(draft.role)}.checkpoint to a model of the target's own family and tokenizer, "
            "or remove it to draft with the target's int4 build"
        )


def check_vocabularies(target: ModelFacts, draft: ModelFacts) -> None:
    """Both laws must be over the same ids, padding included, so that verification can compare them."""
    ours, theirs = target.spec.vocab_size, draft.spec.vocab_size
    if ours != theirs:
        padding = ""
        if target.tokenizer is not None:
            padding = f" (the tokenizer, the same in both, knows {target.tokenizer.size} ids; the rest is padding)"
        raise PreflightError(
            f"vocab_size is {ours} in target {target.source} and {theirs} in draft {draft.source}{padding}; "
            f"resize the draft's embedding with transformers: model.resize_token_embeddings({ours}), save it, "
            f"and set {section_key(draft.role)}.checkpoint to the saved folder"
        )


def first_difference(target: TokenizerFacts, draft: TokenizerFacts) -> str | None:
    """The lowest id, else the first merge, on which two tokenizers differ, in words; None: they are equal."""
    for index in range(max(target.size, draft.size)):
        ours, theirs = target.tokens.get(index), draft.tokens.get(index)
        if ours != theirs:
            return f"id {index} is {_token(ours)} in the target and {_token(theirs)} in the draft"
    for rank, (ours, theirs) in enumerate(zip_longest(target.merges, draft.merges)):
        if ours != theirs:
            return f"merge {rank} is {_token(ours)} in the target and {_token(theirs)} in the draft"
    return None


def _token(token: str | None) -> str:
    return "absent" if token is None else repr(token)

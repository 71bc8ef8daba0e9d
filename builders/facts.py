"""What planning and preflight know of a checkpoint: small values, no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from specbuild.errors import CheckpointError
from specbuild.recipe import LOWER, HeadRole, Recipe

from .architectures import decoder_spec
from .checkpoint import Checkpoint, ModelFiles, open_head
from .compilers.base import Role
from .decoder_spec import DecoderSpec
from .head_spec import HeadSpec, LayerHead
from .heads import layout_of
from .heads.base import Layout, draft_ids
from .heads.weights import SHARED


@dataclass(frozen=True)
class TokenizerFacts:
    """The content of a ``tokenizer.json`` that gives token ids their meaning."""

    tokens: Mapping[int, str]
    """Id → token, added tokens included."""
    merges: tuple[str, ...]
    """BPE merges in their order, the pair separated by a space; empty for other kinds."""

    @property
    def size(self) -> int:
        """Ids that the tokenizer knows: the largest and one more."""
        return max(self.tokens) + 1


@dataclass(frozen=True)
class ModelFacts:
    """One model of the pair."""

    role: Role
    source: str
    """The checkpoint, as the recipe names it."""
    spec: DecoderSpec
    config: Mapping[str, Any]
    digest: str | None
    """Of the checkpoint's content; None: planned from the recipe's ``config`` alone."""
    tokenizer: TokenizerFacts | None
    """None: as ``digest``."""


def parts(recipe: Recipe, models: Sequence[ModelFacts]) -> tuple[ModelFacts, ...]:
    """What is compiled for ``models`` (the target first): with an early exit the target is two engines, the lower one the last."""
    exit_ = recipe.speculation.early_exit
    if exit_ is None:
        return tuple(models)
    target, *drafts = models
    lower = replace(target, role=LOWER, spec=target.spec.lower(exit_.layers))
    return replace(target, spec=target.spec.upper(exit_.layers)), *drafts, lower


@dataclass(frozen=True)
class HeadFacts:
    """A draft head beside them."""

    role: HeadRole
    source: str
    """Its files, as the recipe names them; the target's checkpoint if it names none."""
    spec: HeadSpec
    files: ModelFiles
    layout: Layout
    prefix: str
    digest: str
    d2t: NDArray[np.int64] | None = field(compare=False)
    """[V_draft] the target's id of each draft id; None: the same."""


def head_facts(role: HeadRole, source: str, target: DecoderSpec) -> HeadFacts:
    """The facts of the head at ``source``.

    Raises:
        CheckpointError, UnsupportedError, EnvironmentLacksError: it cannot be opened, or is in no layout that is read.
    """
    files = open_head(source)
    layout, prefix = layout_of(files, role)
    spec, d2t = layout.spec(files, target), draft_ids(files, role)
    names = layout.names(spec, prefix)
    lent = not any(names.get(part) in files.names() for part in SHARED)
    if isinstance(spec, LayerHead) and lent and d2t is None and target.tied_head:
        spec = replace(spec, layer=replace(spec.layer, tied_head=True))
    return HeadFacts(role, source, spec, files, layout, prefix, files.digest(), d2t)


def facts_of(role: Role, source: str, checkpoint: Checkpoint) -> ModelFacts:
    """The facts of an opened checkpoint.

    Raises:
        UnsupportedError: its family or a key of its config is not one that specbuild builds.
        CheckpointError: its tokenizer cannot be read, or does not know the token that ends a text.
    """
    tokenizer = tokenizer_facts(checkpoint.tokenizer.tokenizer_json, origin=source)
    try:
        Tokenizer.from_buffer(checkpoint.tokenizer.tokenizer_json)
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(f"{source}: its tokenizer.json cannot be loaded ({error}); fetch the checkpoint again") from error
    past = [token for token in checkpoint.eos_token_ids if token >= tokenizer.size]
    if past:
        raise CheckpointError(
            f"{source}: eos_token_id {past[0]} is past the {tokenizer.size} ids that its tokenizer knows; correct generation_config.json"
        )
    return ModelFacts(role, source, decoder_spec(checkpoint.config), checkpoint.config, checkpoint.digest(), tokenizer)


def facts_from_config(role: Role, source: str, config: Mapping[str, Any]) -> ModelFacts:
    """The facts that a recipe's ``config`` section gives without the checkpoint.

    Raises:
        UnsupportedError: as ``facts_of``.
    """
    return ModelFacts(role, source, decoder_spec(config), config, None, None)


def tokenizer_facts(tokenizer_json: bytes, *, origin: str) -> TokenizerFacts:
    """Read a ``tokenizer.json``; ``origin`` is named when it is refused.

    Raises:
        CheckpointError: not JSON, or without a vocabulary.
    """
    try:
        content = json.loads(tokenizer_json)
        vocabulary = content["model"]["vocab"]
        # BPE and WordPiece map token → id, Unigram lists [token, score] in the order of ids.
        items = vocabulary.items() if isinstance(vocabulary, dict) else ((entry[0], index) for index, entry in enumerate(vocabulary))
        tokens = {int(index): str(token) for token, index in items}
        tokens |= {int(added["id"]): str(added["content"]) for added in content.get("added_tokens") or ()}
        merges = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"].get("merges") or ())
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{origin}: its tokenizer.json cannot be read ({error!r}); fetch the checkpoint again") from error
    if not tokens:
        raise CheckpointError(f"{origin}: its tokenizer.json has no tokens; fetch the checkpoint again")
    return TokenizerFacts(tokens, merges)

"""Does this draft head belong to this target? Asked before anything is compiled; each refusal names the change that mends it. Pure."""

from __future__ import annotations

import numpy as np

from specbuild.errors import PreflightError
from specbuild.recipe import Recipe

from .facts import HeadFacts, ModelFacts
from .head_spec import ExitAdapter, LayerHead
from .heads import described, mend


def check_head(recipe: Recipe, target: ModelFacts, head: HeadFacts) -> None:
    """Refuse a head that was made for another model, or says so by mistake.

    Raises:
        PreflightError: one sentence: which key, both values, what to change.
    """
    _check_hidden_size(target, head)
    if isinstance(head.spec, ExitAdapter):
        _check_exit(recipe, target, head, head.spec)
        return
    _check_vocabulary(target, head)
    _check_taps(target, head)
    _check_draft_ids(target, head)
    _check_positions(recipe, head)


def _check_hidden_size(target: ModelFacts, head: HeadFacts) -> None:
    if head.spec.hidden_size != target.spec.hidden_size:
        raise PreflightError(
            f"hidden_size is {target.spec.hidden_size} in target {target.source} and {head.spec.hidden_size} in the "
            f"{described(head.role)} {head.source}, which reads the target's hidden states; {mend(head.role)}"
        )


def _check_exit(recipe: Recipe, target: ModelFacts, head: HeadFacts, spec: ExitAdapter) -> None:
    """What leaves one layer says nothing behind another."""
    section, (layer,), layers = recipe.speculation.early_exit, spec.taps, target.spec.num_layers
    assert section is not None, "the section names the adapter"
    if spec.target_layers != layers:
        raise PreflightError(
            f"the early_exit adapter {head.source} was trained for a target of {spec.target_layers} layers, {target.source} has {layers}; "
            f"{mend(head.role)}"
        )
    if layer != section.layers:
        raise PreflightError(
            f"speculation.early_exit.layers is {section.layers}, but the early_exit adapter {head.source} was trained for an exit after "
            f"{layer} layers; set layers to {layer}, or train one for {section.layers}: specbuild train early_exit"
        )


def _check_vocabulary(target: ModelFacts, head: HeadFacts) -> None:
    """The embedding must know the target's ids; without d2t so must the logits."""
    size = target.spec.vocab_size
    seen = head.spec.layer.vocab_size if isinstance(head.spec, LayerHead) else size
    if seen != size:
        raise PreflightError(
            f"vocab_size is {size} in target {target.source} and {seen} in the {head.role} head {head.source}; {mend(head.role)}"
        )
    if head.d2t is None and head.spec.vocab_size != size:
        raise PreflightError(
            f"the {head.role} head {head.source} drafts over {head.spec.vocab_size} tokens, target {target.source} has {size}, and no "
            "tensor d2t says which they are; export the head again with d2t, or remove draft_vocab_size from its config.json"
        )


def _check_taps(target: ModelFacts, head: HeadFacts) -> None:
    taps, layers = head.spec.taps, target.spec.num_layers
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] <= layers:
        raise PreflightError(
            f"the {head.role} head {head.source} taps the hidden states {list(taps)} of a target that has those from 0 to {layers}; name "
            f"{len(taps)} of them, ascending, in its config.json (eagle_config.eagle_aux_hidden_state_layer_ids: each less one)"
        )


def _check_draft_ids(target: ModelFacts, head: HeadFacts) -> None:
    if head.d2t is None:
        return
    if head.d2t.size != head.spec.vocab_size:
        raise PreflightError(
            f"the {head.role} head {head.source} has a d2t of {head.d2t.size} entries for a draft vocabulary of {head.spec.vocab_size}; "
            f"set draft_vocab_size in its config.json to {head.d2t.size} if its LM head has as many rows, else export it again"
        )
    past = head.d2t[(head.d2t < 0) | (head.d2t >= target.spec.vocab_size)]
    if past.size:
        raise PreflightError(
            f"d2t of the {head.role} head {head.source} leads to the token id {past[0]}, target {target.source} has those from 0 to "
            f"{target.spec.vocab_size - 1}; export the head again with d2t as offsets (target id minus draft id)"
        )
    if np.unique(head.d2t).size != head.d2t.size:
        twice = np.flatnonzero(np.bincount(head.d2t) > 1)[0]
        raise PreflightError(
            f"d2t of the {head.role} head {head.source} leads to the token id {twice} more than once; "
            "export the head again with d2t as offsets (target id minus draft id)"
        )


def _check_positions(recipe: Recipe, head: HeadFacts) -> None:
    if not isinstance(head.spec, LayerHead):
        return
    length, layer = recipe.target.max_seq_len, head.spec.layer
    hold = min(layer.max_position, layer.rope.max_position or layer.max_position)
    if length > hold:
        raise PreflightError(
            f"target.max_seq_len {length} is above the {hold} positions of the {head.role} head {head.source}; "
            f"set target.max_seq_len to {hold} or less, or choose a head made for longer sequences"
        )

"""Which head is trained for a target: of each kind one shape, that of the target's own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specbuild.recipe import HeadRole

from ..decoder_spec import DecoderSpec
from ..head_spec import HeadSpec, LayerHead, MedusaHead

MEDUSA_HEADS = 4


def eagle3_taps(target: DecoderSpec) -> tuple[int, ...]:
    """Of EAGLE-3's own code: low, middle, high."""
    return 2, target.num_layers // 2, target.num_layers - 3


def kept_taps(target: DecoderSpec) -> tuple[int, ...]:
    """Those that any kind of head needs, the one behind the final norm last: the same features serve all of them."""
    return (*sorted({tap for tap in eagle3_taps(target) if 0 <= tap < target.num_layers}), target.num_layers)


def head_spec(role: HeadRole, target: DecoderSpec, vocab_size: int) -> HeadSpec:
    """The head of kind ``role`` with a draft vocabulary of ``vocab_size``."""
    return _KINDS[role](target, vocab_size)


def _eagle3(target: DecoderSpec, vocab_size: int) -> LayerHead:
    taps = kept_taps(target)[:-1]
    return LayerHead("eagle3", target.hidden_size, vocab_size, taps, _layer(target), feature_norms=True, normed_hidden=False)


def _mtp(target: DecoderSpec, vocab_size: int) -> LayerHead:
    return LayerHead("mtp", target.hidden_size, vocab_size, (target.num_layers,), _layer(target))


def _medusa(target: DecoderSpec, vocab_size: int) -> MedusaHead:
    return MedusaHead("medusa", target.hidden_size, vocab_size, (target.num_layers,), MEDUSA_HEADS, 1, shared_head=True)


def _layer(target: DecoderSpec) -> DecoderSpec:
    return replace(target, num_layers=1, tied_head=False)


_KINDS: Mapping[HeadRole, Callable[[DecoderSpec, int], HeadSpec]] = {"eagle3": _eagle3, "mtp": _mtp, "medusa": _medusa}

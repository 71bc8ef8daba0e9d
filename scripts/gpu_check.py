"""Everything about TensorRT that only a GPU can show, in one run: build, load, parity with the CPU engine, timings.

    python scripts/gpu_check.py                       # SmolLM2-135M for the GPU present
    python scripts/gpu_check.py --precision float32   # the strictest parity
    python scripts/gpu_check.py --set checkpoint=hf:ORG/NAME --json > result.json

The plan is built for the GPU present (TensorRT-RTX where it targets it, else mainline), every plan is probed, and greedy
output is compared three ways: with each proposer against plain decoding on the GPU (must be identical), with the float32
engine on the CPU (position of the first difference), and logits against that engine's (KL, largest difference).
Exit code: 0 all well, 3 no GPU or library, 4 something differs that must not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specbuild import config
from specbuild.builders.build import build
from specbuild.builders.compilers.tensorrt import RTX_CAPABILITIES
from specbuild.builders.store import Store
from specbuild.bundle import Bundle, EngineEntry, Probe
from specbuild.errors import EnvironmentLacksError, SpecbuildError, VerificationError
from specbuild.probe import probe
from specbuild.runtime.engines.tensorrt_plan import require_gpu
from specbuild.runtime.generator import Completion, Generator
from specbuild.runtime.sampling import SamplingParams

Prober = Callable[[Path, EngineEntry, EngineEntry | None], Probe]

PROMPTS = (
    "The capital of France is",
    "Write a haiku about the sea, then explain it word by word.",
    "Repeat this list three times: apple, pear, plum, cherry.",
    "def fibonacci(n):\n    ",
)
METHODS = ("off", "ngram", "draft_model")
MAX_MEAN_KL = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2, "int8": 1e-2, "int4": 2e-1}
"""Nats a token that a plan of each precision may be away from the float32 CPU engine: bounds for mistakes, not for rounding."""


def check(settings: Sequence[str], precision: str, backend: str | None, max_tokens: int, capability: str) -> dict[str, Any]:
    """The whole check on a GPU of ``capability``, such as ``sm89``; what was found, as plain JSON values.

    ``settings`` (``a.b=v``) go to both recipes, the CPU's and the plan's.
    """
    backend = backend or ("tensorrt-rtx" if capability in RTX_CAPABILITIES else "tensorrt")
    cpu = _build("smollm2-135m-float32", settings)
    reference = cpu.engine("target")
    # An absolute file stands on its own whatever folder it is joined to: one probe, engines of two bundles.
    reference = reference.model_copy(update={"file": str(cpu.path / reference.file)})

    def prober(folder: Path, entry: EngineEntry, _: EngineEntry | None) -> Probe:
        return probe(folder, entry, reference if entry.role == "target" else None)

    wanted = {"backend": backend, "target.precision": precision, "tensorrt.compute_capabilities": f"[{capability}]"}
    gpu = _build("smollm2-135m-tensorrt", [*settings, *(f"{key}={value}" for key, value in wanted.items())], prober)
    entry = gpu.engine("target")
    measured = entry.probe
    if measured is None or measured.parity is None:
        raise EnvironmentLacksError("the plan was built but could not be run here to be measured; the build says why above")
    expected = _answers(cpu, "off", max_tokens)
    seen = {method: _answers(gpu, method, max_tokens) for method in METHODS}
    methods = {
        method: {
            "identical": [each.token_ids for each in answers] == [each.token_ids for each in seen["off"]],
            "tokens_per_second": round(_speed(answers), 1),
            "mean_acceptance_length": round(sum(each.stats.mean_acceptance_length for each in answers) / len(answers), 3),
        }
        for method, answers in seen.items()
    }
    same = [_common_prefix(one.token_ids, other.token_ids) for one, other in zip(seen["off"], expected, strict=True)]
    return {
        "gpu": capability,
        "backend": backend,
        "version": f"{entry.flavour} {entry.version}",
        "precision": precision,
        "bundle": str(gpu.path),
        "probe": measured.model_dump(mode="json"),
        "methods": methods,
        "cpu_tokens_per_second": round(_speed(expected), 1),
        "greedy_tokens_equal_to_cpu": [f"{equal} of {len(each.token_ids)}" for equal, each in zip(same, expected, strict=True)],
        "passed": measured.parity.mean_kl <= MAX_MEAN_KL[precision] and all(each["identical"] for each in methods.values()),
    }


def table(found: dict[str, Any]) -> str:
    """The result for people."""
    parity, invariant = found["probe"]["parity"], [key for key, value in found["probe"].items() if value is True]
    lines = [
        f"{found['version']} on {found['gpu']}, {found['precision']}",
        f"parity with the CPU's float32: mean KL {parity['mean_kl']:.2e}, largest difference {parity['max_abs_logit']:.3f}",
        f"greedy tokens equal to the CPU's: {', '.join(found['greedy_tokens_equal_to_cpu'])}",
        f"bits: {', '.join(invariant) or 'not invariant'}",
        f"{'method':<14}{'tokens/s':>10}{'tau':>8}  identical",
        f"{'CPU, off':<14}{found['cpu_tokens_per_second']:>10}",
    ]
    lines += [
        f"{method:<14}{row['tokens_per_second']:>10}{row['mean_acceptance_length']:>8}  {'yes' if row['identical'] else 'NO'}"
        for method, row in found["methods"].items()
    ]
    lines.append(f"{'context':>8}{'batch':>7}{'step':>6}{'ms a pass':>11}")
    lines += [
        f"{cost['context']:>8}{cost['batch']:>7}{cost['step']:>6}{1e3 * cost['seconds']:>11.3f}" for cost in found["probe"]["step_costs"]
    ]
    return "\n".join([*lines, "passed" if found["passed"] else "FAILED"])


def _build(recipe: str, settings: Sequence[str], prober: Prober | None = None) -> Bundle:
    """The bundle of a shipped recipe; with a prober it is always built anew, and the runtime obeys what is measured."""
    resolved = config.load(recipe, settings=settings).recipe
    return build(resolved, store=Store.default(), force=prober is not None, probe=prober, progress=_say).bundle


def _answers(bundle: Bundle, method: str, max_tokens: int) -> list[Completion]:
    """Greedy answers, one prompt at a time, after one that warms up."""
    generator = Generator.open(bundle.path, batch=1)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, speculation=method)
    generator.generate(PROMPTS[:1], params)
    _say(f"generating with {method} on {bundle.engine('target').backend}")
    return generator.generate(PROMPTS, params)


def _speed(answers: Sequence[Completion]) -> float:
    return sum(each.stats.emitted_tokens for each in answers) / sum(each.stats.decode_seconds for each in answers)


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def main() -> None:
    """Exits with the codes of specbuild's own commands."""
    parser = argparse.ArgumentParser(description="Check TensorRT plans on the GPU present: build, parity with the CPU engine, timings.")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="A.B=V", help="such as checkpoint=hf:ORG/NAME")
    parser.add_argument("--precision", choices=MAX_MEAN_KL, default="float16")
    parser.add_argument("--backend", choices=("tensorrt-rtx", "tensorrt"), help="default: TensorRT-RTX where it targets the GPU present")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone; the table goes to stderr")
    given = parser.parse_args()
    try:
        found = check(given.settings, given.precision, given.backend, given.max_tokens, require_gpu("cuda:0"))
        print(json.dumps(found, indent=2))
        print(table(found), file=sys.stderr if given.json else sys.stdout)
        if not found["passed"]:
            raise VerificationError("the plan's output differs where it must not; see `methods` and `parity` above")
    except SpecbuildError as error:
        _say(f"gpu_check: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

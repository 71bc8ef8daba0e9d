"""The bundle on disk: the contract between builders, which write it, and the runtime, which opens it.

<bundle>/manifest.json     everything below, as one frozen Manifest
<bundle>/engines/…         model.onnx + data, or *.engine
<bundle>/tokenizer/…       tokenizer.json, chat_template.jinja, generation_config.json
<bundle>/tokenizer/<role>/ tokenizer.json of a draft model that has a vocabulary of its own
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from specbuild.errors import BundleError, VerificationError
from specbuild.recipe import Backend, HeadRole, Recipe, section_key

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
TREE_LIMIT = 2e-4
"""The most that a logit of a token behind rejected siblings may be off by where trees are drafted: between what float32's rounding did to
30 layers (8e-5) and int8 activations make of that (1 and more). All logits off by δ, greedy decoding can choose another token only if the
best two are less than 2δ apart; sampling's law changes by tanh(δ/2T) in total variation, coupled draws differ at most twice as often."""
REBUILD = "build it anew with `specbuild engine build --force`"


class Record(BaseModel):
    """A frozen part of the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StepCost(Record):
    """Measured time of one pass: ``batch`` sequences of ``step`` new tokens each, ``context`` tokens already cached."""

    batch: int
    step: int
    context: int
    seconds: float


class Parity(Record):
    """Distance from the float32 graph over ``tokens`` positions: the largest |Δlogit| and the mean KL in nats."""

    tokens: int
    max_abs_logit: float
    mean_kl: float


class Probe(Record):
    """What was measured on the built engine. Each invariance says: the logits of a row have the same bits whatever the
    number of new tokens a pass (``step_invariant``), the other rows of the batch (``batch_invariant``) or the length of
    the bound cache view (``view_invariant``)."""

    step_invariant: bool
    batch_invariant: bool
    view_invariant: bool
    step_costs: tuple[StepCost, ...]
    parity: Parity | None
    tree_difference: float | None = None
    """The largest |Δlogit| between a path behind rejected siblings, or what follows it, and the same tokens in a chain: attention sums
    over positions with a gap in another order. None: not measured; only of a target."""

    @property
    def trees(self) -> bool:
        """Whether drafts with branches give the tokens of plain decoding."""
        return self.tree_difference is not None and self.tree_difference <= TREE_LIMIT


class LowerPart(Record):
    """The first layers of an engine that was compiled in two."""

    file: str
    """Path inside the bundle."""
    num_layers: int


class Vocabulary(Record):
    """Tokens as a checkpoint declares them."""

    size: int
    """Ids that the tokenizer knows; an engine's ``vocab_size`` may be larger by padding."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None


class EngineEntry(Record):
    """One compiled engine and the signature that it has.

    Decoders (``target``, ``draft``). Inputs: ``input_ids`` [B,S] int64, ``position_ids`` [B,S] int64, ``write_index`` [B] int64,
    ``attention_mask`` [B,1,S,T] bool (true = attend), ``logit_rows`` [B,R] int64, ``past_key.l`` / ``past_value.l`` [B,KV,T,D].
    Outputs: ``logits`` [B,R,V] float32, ``key.l`` / ``value.l`` aliasing their pasts, and with taps ``hidden`` [B,S,H·taps] float32: the
    tapped hidden states of every new token, whatever rows are wanted.

    Autoregressive heads (``mtp``, ``eagle3``) are given pairs: pair t of a sequence x has the features of position t and the
    token x[t+1], and predicts x[t+2]. Inputs: those of a decoder (``input_ids`` x[t+1], ``position_ids`` t), ``features``
    [B,S,H·taps] float32 and ``previous`` [B,S,H] float32. For tokens that the target has read, features are its tapped states
    and previous is zeros; for drafted ones features are zeros and previous is the head's own ``hidden`` of the pair before.
    Outputs: those of a decoder, V the draft vocabulary, and ``hidden`` [B,S,H] float32.

    ``medusa``. Input: ``features`` [B,S,H] float32, the target's last hidden state. Output: ``logits`` [B,S,K,V] float32, those
    of the K tokens that follow the next one. No cache: layers, KV heads and head dimension are 0.

    A ``target`` with a ``lower`` part is two files with the signature of one engine. The lower one is a decoder of the first layers, with
    the target's own norm and head after them, or an adapter in the place of that norm, and is also listed by itself (``target.lower``); the
    last of its taps is what enters the first layer that it lacks. The other takes that, as ``features`` [B,S,H] float32, in place of
    ``input_ids``; it has the target's other layers and taps. Caches have the number of their layer in the whole target.

    B batch ≤ max_batch_size, S new tokens ≤ max_step, R rows wanted, T length of the bound cache view ≤ capacity. ``hidden``,
    ``features`` and ``previous`` are float32 whatever the precision, so that engines of different ones can be joined.
    """

    role: str
    """``target``, ``target.lower``, ``draft``, ``draft.NAME`` for one of several, ``mtp``, ``eagle3`` or ``medusa``."""
    file: str
    """Path inside the bundle."""
    lower: LowerPart | None = None
    """What runs before ``file``; None: ``file`` is the whole engine."""
    backend: Backend
    flavour: str
    """Build of the compiler's library that made it, such as ``onnxruntime`` or ``tensorrt_rtx``."""
    version: str
    compute_capabilities: tuple[str, ...] = ()
    precision: str
    kv_dtype: str
    """``float32``, ``float16`` or ``bfloat16``."""
    vocab_size: int
    vocabulary: Vocabulary | None = None
    """Of a draft model whose ids mean something else than the target's; None: they are the target's."""
    hidden_size: int
    taps: tuple[int, ...] = ()
    """Hidden states, ascending: of a target those in its output ``hidden``, of a head those that make its ``features``. Tap n
    below the target's number of layers L is what enters layer n, tap L what leaves the final norm."""
    predictions: int = 1
    """Tokens that the logits of one position are for: K of Medusa heads, else 1."""
    d2t: str | None = None
    """Path inside the bundle of an int64 array [V], the target's token id of each id of this engine's logits; None: the same ids."""
    num_layers: int
    first_layer: int = 0
    """Number of the first of them, by which caches are named."""
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    """Tokens that a query sees, itself included; None: all before it."""
    max_batch_size: int
    max_seq_len: int
    """Tokens of a sequence that the engine can hold."""
    capacity: int
    """The largest T: max_seq_len and the room that a padded step may write past it."""
    static_view: bool
    """T is always ``capacity`` (TensorRT); otherwise any T ≤ capacity may be bound (ONNX Runtime)."""
    max_step: int
    """The largest S of one pass that decodes."""
    row_multiple: int = 1
    """B·S and B·R of every pass are made multiples of it by padding: then a row has the same bits in every pass."""
    max_prefill: int
    """The largest S of one pass that prefills."""
    probe: Probe | None = None
    """None: built with ``--no-probe``; nothing was measured."""

    @property
    def tokenizer(self) -> str:
        """Folder inside the bundle of the tokenizer that its ids are of."""
        return TOKENIZER if self.vocabulary is None else f"{TOKENIZER}/{self.role}"

    @property
    def feature_width(self) -> int:
        """Width of the input ``features``; 0: it takes none."""
        return self.hidden_size * len(self.taps) if self.role in get_args(HeadRole) else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of cache that one token of one sequence takes, keys and values of all layers."""
        width = 4 if self.kv_dtype == "float32" else 2
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * width

    def padded(self, count: int, batch: int) -> int:
        """New tokens, or wanted rows, that each of ``batch`` sequences has in a pass that needs ``count`` of them: see ``row_multiple``."""
        multiple = self.row_multiple // gcd(self.row_multiple, batch)
        return -(-count // multiple) * multiple


class Manifest(Record):
    """All that the runtime needs to know about a bundle before it opens an engine."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    """Of everything that went in: checkpoint contents, recipe, compiler, schema."""
    recipe: Recipe
    checkpoints: dict[str, str]
    """Role → content digest of the checkpoint; that of an adapter under ``early_exit``."""
    tools: dict[str, str]
    """Library → version, as they were when it was built."""
    vocabulary: Vocabulary
    """The target's."""
    engines: tuple[EngineEntry, ...]
    files: dict[str, str]
    """Path inside the bundle → sha256, for every file but the manifest."""
    seal: str = ""
    """sha256 of the manifest without this field: an edited manifest is noticed."""

    def sealed(self) -> Manifest:
        """The same manifest with its seal set."""
        return self.model_copy(update={"seal": seal_of(self.model_dump(mode="json"))})


def seal_of(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest's canonical JSON, its ``seal`` left out."""
    content = {key: value for key, value in manifest.items() if key != "seal"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spare white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def file_digest(path: Path) -> str:
    """sha256 of a file's content, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder and its manifest, already checked against its seal and this schema, and its tokenizer's files."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """Read and check ``<path>/manifest.json``.

        Raises:
            BundleError: there is no bundle at ``path`` or its manifest cannot be read.
            VerificationError: the manifest was edited, or has another schema version; or a file of the tokenizer is not as it was
                built. (Engines are large: ``verify_files`` compares them too.)
        """
        file = path / MANIFEST
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            seen, seal = (raw.get("schema_version"), seal_of(raw)) if isinstance(raw, dict) else (None, "")
        except FileNotFoundError:
            raise BundleError(
                f"{path}: no bundle here ({MANIFEST} is missing); `specbuild engine list` shows the bundles there are"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise BundleError(f"{file}: not readable as JSON ({error}); {REBUILD}") from error
        if seen != SCHEMA_VERSION:
            raise VerificationError(f"{file}: schema version {seen!r}, this specbuild reads {SCHEMA_VERSION}; {REBUILD}")
        if raw.get("seal") != seal:
            raise VerificationError(f"{file}: edited after the build (seal {raw.get('seal')!r}, content {seal!r}); {REBUILD}")
        try:
            bundle = cls(path, Manifest.model_validate(raw))
        except ValidationError as error:
            raise BundleError(f"{file}: {error.errors()[0]['msg']}; {REBUILD}") from error
        bundle.verify_files(under=f"{TOKENIZER}/")
        return bundle

    def engine(self, role: str) -> EngineEntry:
        """The engine that has ``role``.

        Raises:
            BundleError: the bundle has none.
        """
        for entry in self.manifest.engines:
            if entry.role == role:
                return entry
        roles = ", ".join(entry.role for entry in self.manifest.engines)
        raise BundleError(
            f"{self.path}: no {role!r} engine (it has: {roles}); add a `{section_key(role)}` section to the recipe and build again"
        )

    def verify_files(self, *, under: str = "") -> None:
        """Compare every file with its digest, or those in the folder ``under``.

        Raises:
            VerificationError: a file is missing or differs.
        """
        for name, digest in self.manifest.files.items():
            if not name.startswith(under):
                continue
            file = self.path / name
            seen = file_digest(file) if file.is_file() else "missing"
            if seen != digest:
                raise VerificationError(f"{file}: sha256 is {seen}, the manifest says {digest}; {REBUILD}")

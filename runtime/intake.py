"""From what is asked for to a sequence that the loop takes: every refusal comes before anything runs."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from specbuild.bundle import REBUILD, EngineEntry, Manifest
from specbuild.errors import RequestError

from .acceptance import LOSSY, RULES
from .proposers import Proposers
from .request import Request, Running
from .sampling import SEED_BITS, SamplingParams
from .tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Plain text, token ids, or chat messages."""


class Intake:
    """Checks requests against what a bundle allows and numbers them."""

    def __init__(self, manifest: Manifest, target: EngineEntry, tokenizer: Tokenizer, proposers: Proposers, rule: str) -> None:
        """``rule``: of verification, by name."""
        self._speculation = manifest.recipe.speculation
        self._vocabulary = manifest.vocabulary
        self._target = target
        self._tokenizer = tokenizer
        self._proposers = proposers
        self._rule = rule
        self._ids = count()

    def sequence(self, prompt: Prompt, params: SamplingParams, *, priority: int = 0) -> Running:
        """The request as the loop takes it, checked whole.

        Raises:
            RequestError: the prompt or a parameter is outside what the bundle allows.
            BundleError: the bundle has no engine for the method that is asked for.
        """
        tokens = self.encode(prompt)
        params.check(self._vocabulary.size)
        self._check_ends(params)
        self._check_length(tokens, params)
        method, draft_len = self._method(params)
        request = Request(
            id=next(self._ids),
            prompt=tuple(tokens),
            params=params,
            seed=secrets.randbits(SEED_BITS) if params.seed is None else params.seed,
            method=method,
            draft_len=draft_len,
            draft_len_fixed=params.draft_len is not None,
            tree_budget=self._tree_budget(params),
            priority=priority,
        )
        return Running(request, self._rule, self._tokenizer, self._vocabulary.size, self._vocabulary.eos_token_ids)

    def encode(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt, whichever of its three forms it has.

        Raises:
            RequestError: it has none of them, or the checkpoint's template refuses its messages.
        """
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        try:
            if len(prompt) and isinstance(prompt[0], Mapping):
                return self._tokenizer.chat(prompt)  # type: ignore[arg-type]  # one mapping, all mappings
            return [operator.index(token) for token in prompt]  # type: ignore[arg-type]  # an array's elements are not int
        except (TypeError, LookupError) as error:
            raise RequestError(f"a prompt is {prompt!r:.60}, but must be text, a list of token ids or a list of messages") from error

    def _check_ends(self, params: SamplingParams) -> None:
        """Found out in the middle of a round, a law without a token would end everybody's."""
        eos = () if params.ignore_eos else self._vocabulary.eos_token_ids
        ends = {*params.stop_token_ids, *eos} if params.min_tokens else set()
        if len(ends | {word[-1] for word in params.bad_words}) >= self._vocabulary.size:
            raise RequestError("bad_words and min_tokens together can forbid every token; allow at least one")

    def _check_length(self, tokens: Sequence[int], params: SamplingParams) -> None:
        size, limit = self._vocabulary.size, self._target.max_seq_len
        if not tokens:
            raise RequestError("the prompt has no tokens; give at least one")
        unknown = next((token for token in tokens if not 0 <= token < size), None)
        if unknown is not None:
            raise RequestError(f"the prompt has token id {unknown}, but the vocabulary ends at {size - 1}")
        if len(tokens) >= limit:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, but a sequence holds {limit} with its output; "
                "shorten it or build with a larger target.max_seq_len"
            )
        if len(tokens) + params.max_tokens > limit:
            raise RequestError(
                f"a prompt of {len(tokens)} tokens and max_tokens {params.max_tokens} exceed the {limit} that a sequence holds; "
                f"lower max_tokens to {limit - len(tokens)} or build with a larger target.max_seq_len"
            )

    def _method(self, params: SamplingParams) -> tuple[str, int]:
        """Proposer (or ``off``) and draft length, asked for or the recipe's; the proposer is made now, should that be refused."""
        method = params.speculation or self._speculation.method
        draft_len = params.draft_len or self._speculation.draft_len
        longest = self._target.max_step - 1
        if draft_len > longest:
            raise RequestError(
                f"draft_len is {draft_len}, but the engine verifies at most {longest}; raise speculation.max_draft_len and build again"
            )
        if method != "off":
            self._proposers[method]
        return method, draft_len

    @property
    def against_trees(self) -> str | None:
        """Why drafts have no branches here, and what would change that; None: they may."""
        if not {**RULES, **LOSSY}[self._rule].trees:
            return f"verification {self._rule!r} judges chains alone; set it to 0 or use another rule"
        probe = self._target.probe
        if probe is None or probe.tree_difference is None:
            return f"whether a tree changes the target's tokens was not measured; set it to 0 or {REBUILD}"
        if not probe.trees:
            return (
                f"behind rejected siblings the target's logits are up to {probe.tree_difference:.2g} off: trees would change its tokens; "
                "set it to 0 or build the target in float32"
            )
        return None

    def _tree_budget(self, params: SamplingParams) -> int:
        """Asked for or the recipe's; none where there are no trees, unless it was asked for."""
        longest, against = self._target.max_step - 1, self.against_trees
        budget = self._speculation.tree_budget if params.tree_budget is None else params.tree_budget
        if budget > longest:
            raise RequestError(
                f"tree_budget is {budget}, but the engine verifies at most {longest}; raise speculation.max_draft_len and build again"
            )
        if params.tree_budget and against:
            raise RequestError(f"tree_budget is {budget}, but {against}")
        return 0 if against else budget

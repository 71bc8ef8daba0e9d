"""A draft model of another vocabulary: the text is translated into its tokens, what it drafts is translated back.

The model drafts for a shadow of each sequence, the same text in its own tokens. Only the last few words are tokenised again in a round, and
only tokens that came out otherwise are read again. What it says is cut into the target's tokens as they follow the sequence's own.

A draft is a guess with nothing drawn (``Draft.laws`` is None), so every rule of acceptance keeps the target's law. The limits are of
acceptance alone: laws and noise cannot be compared across vocabularies, so the model drafts its likeliest tokens, untouched by what
the request asks of sampling, and is right less often the higher the temperature; special tokens that it does not know by the same
name it reads as plain text; a text that is longer in its tokens than its engine holds gets no more drafts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..draft import Draft
from ..request import Request, Running
from ..sampling import SamplingParams
from .base import Ask, Proposer
from .spelling import Spelling, Transcript

CONTEXT = 6
"""Tokens of the target that a draft is tokenised after."""


@dataclass
class _Copy:
    """A sequence in the model's tokens."""

    transcript: Transcript
    shadow: Running
    """Its tokens are the settled ones of the transcript."""
    known: int
    """Tokens of the sequence that are in the transcript."""


class RetokenizedProposer(Proposer):
    """Another proposer's drafts, made in tokens of its own."""

    def __init__(self, model: Proposer, own: Spelling, target: Spelling, longest: int) -> None:
        """``model`` drafts in the tokens of ``own``, for texts of at most ``longest`` of them."""
        self._model, self._own, self._target, self._longest = model, own, target, longest
        self._copies: dict[Hashable, _Copy] = {}
        """Of the sequences that the model has room for."""

    @property
    def engine_seconds(self) -> float:
        return self._model.engine_seconds

    def admit(self, sequence: Running) -> None:
        transcript = Transcript.of(self._own, self._target.says(self._without_opening(sequence.tokens)))
        if len(transcript.settled) <= self._longest:
            copy = _Copy(transcript, self._shadow(sequence, transcript.settled), len(sequence.tokens))
            self._copies[sequence.id] = copy
            self._model.admit(copy.shadow)

    def read(self, sequence: Running, length: int) -> None:
        copy = self._copies.get(sequence.id)
        if copy is not None:
            own, whole = len(copy.shadow.tokens) - 1, len(sequence.tokens) - 1
            self._model.read(copy.shadow, own * length // whole if whole else own)

    def start(self, sequence: Running) -> None:
        if sequence.id in self._copies:
            self._model.start(self._copies[sequence.id].shadow)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = [Draft.EMPTY] * len(asks)
        questions: list[Ask] = []
        places: list[tuple[int, bytes]] = []
        for place, ask in enumerate(asks):
            question, held = self._question(ask)
            if question is not None:
                questions.append(question)
                places.append((place, held))
        for (place, held), draft in zip(places, self._model.propose(questions), strict=True):
            drafts[place] = self._answer(asks[place], draft.tokens, held)
        return drafts

    def retire(self, sequence: Running) -> None:
        copy = self._copies.pop(sequence.id, None)
        if copy is not None:
            copy.shadow.finish_reason = sequence.finish_reason
            self._model.retire(copy.shadow)

    def _without_opening(self, tokens: Sequence[int]) -> Sequence[int]:
        """A BOS is no text: the model gets its own."""
        opening = self._target.opening
        return tokens[len(opening) :] if tuple(tokens[: len(opening)]) == opening else tokens

    def _shadow(self, sequence: Running, tokens: Sequence[int]) -> Running:
        vocabulary = self._own.vocabulary
        request = Request(sequence.id, tuple(tokens), SamplingParams(temperature=0), seed=0, method="off", draft_len=1)
        return Running(request, "coupled", self._own.tokenizer, vocabulary.size, vocabulary.eos_token_ids)

    def _question(self, ask: Ask) -> tuple[Ask | None, bytes]:
        """What the model is asked, None for nothing; and the bytes of a character that the text has only begun."""
        copy, sequence = self._copies.get(ask.sequence.id), ask.sequence
        if copy is None:
            return None, b""
        shadow, transcript = copy.shadow, copy.transcript
        transcript.push(self._target.says(sequence.tokens[copy.known :]))
        copy.known = len(sequence.tokens)
        for token in transcript.settled[len(shadow.tokens) :]:
            shadow.context.push(token)
        tail, held = transcript.tail(self._target.says(ask.after))
        own = len(shadow.tokens) + len(tail)
        # As many as say that much, where its tokens are longer; never more passes than a draft is expected to cost.
        share = -(-ask.draft_len * own // len(ask.tokens))
        length = min(ask.draft_len, share, self._longest - own)
        return (Ask(shadow, length, after=tuple(tail)) if length > 0 else None), held

    def _answer(self, ask: Ask, drafted: Sequence[int], held: bytes) -> Draft:
        """The draft in the target's tokens."""
        ends = self._own.vocabulary.eos_token_ids
        said = self._own.says(drafted[: next((place for place, token in enumerate(drafted) if token in ends), None)])
        if not said.startswith(held):  # it goes on with another character than the one begun
            return Draft.EMPTY
        return Draft.chain(self._target.continued(ask.tokens[-CONTEXT:], said[len(held) :])[: ask.draft_len])

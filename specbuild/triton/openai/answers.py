"""Answers as OpenAI's API has them: whole, or in chunks, with what was used."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from ..wire import Answer, Chunk
from .forms import Form, Logprobs, Object
from .job import Job

FIGURES = "specbuild"
"""The field of a finished choice that has what OpenAI's API has no name for."""


class Writer:
    """Writes the answer to one request."""

    def __init__(self, form: Form, job: Job, model: str, fingerprint: str) -> None:
        self._form = form
        self._job = job
        self._head: Object = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._begun: set[int] = set()
        """Choices of which a chunk has been written."""

    def whole(self, answers: Sequence[Answer]) -> Object:
        """All of it."""
        choices = [
            self._choice(index, self._form.message(answer.text), answer.logprobs, answer.finish_reason) | {FIGURES: _figures(answer)}
            for index, answer in enumerate(answers)
        ]
        return self._head | {"object": self._form.whole, "choices": choices, "usage": self._usage(answers)}

    def part(self, index: int, new: Chunk | Answer) -> Object | None:
        """What is new of choice ``index``: a chunk, or that its answer is over; None: nothing that is to be seen."""
        first = index not in self._begun
        if isinstance(new, Answer):
            choice = self._choice(index, self._form.delta("", first=first), (), new.finish_reason) | {FIGURES: _figures(new)}
        elif new.text or new.logprobs:
            choice = self._choice(index, self._form.delta(new.text, first=first), new.logprobs, None)
        else:
            return None
        self._begun.add(index)
        return self._head | {"object": self._form.part, "choices": [choice]}

    def used(self, answers: Sequence[Answer]) -> Object:
        """The chunk that says what was used."""
        return self._head | {"object": self._form.part, "choices": [], "usage": self._usage(answers)}

    def _choice(self, index: int, text: Object, logprobs: Logprobs, finish_reason: str | None) -> Object:
        written = self._form.logprobs(index, logprobs) if logprobs else None
        return {"index": index, **text, "logprobs": written, "finish_reason": finish_reason}

    def _usage(self, answers: Sequence[Answer]) -> Object:
        """Each prompt counts once, however many choices it has."""
        firsts = [(prompt, answer) for (prompt, _), answer in zip(self._job.choices, answers, strict=True)][:: self._job.n]
        prompt = sum(len(prompt) for prompt, _ in firsts)
        completion = sum(len(answer.tokens) for answer in answers)
        accepted = sum(answer.figures["total_accepted_draft_tokens"] for answer in answers)
        drafted = sum(answer.figures["total_draft_tokens"] for answer in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(answer.figures["reused_tokens"] for _, answer in firsts)},
            "completion_tokens_details": {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted},
        }


def _figures(answer: Answer) -> Object:
    return {"stop_reason": answer.stop_reason, **answer.figures}

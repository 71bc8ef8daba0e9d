"""The one table of a request's and a response's tensors: configuration, parsing, clients and documentation are made from it.

Names are those of TensorRT-LLM's ``llmapi`` model where it has one. Two things differ from it: a streamed ``text_output`` holds what
is new, and the prompt is not repeated in the output unless ``sampling_param_exclude_input_from_output`` is false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .kinds import FLAG, INTEGER, INTEGERS, JSON, LONG, NUMBER, NUMBERS, SEED, TEXT, TEXTS, Kind
from .reply import Reply


@dataclass(frozen=True)
class Input:
    """A tensor that a request may have; every one is optional."""

    name: str
    kind: Kind
    doc: str
    param: str | None = None
    """The field of ``SamplingParams`` that it sets, if it sets one."""


@dataclass(frozen=True)
class Output:
    """A tensor that a response may have."""

    name: str
    kind: Kind
    doc: str
    value: Callable[[Reply], Any]
    last: bool = True
    """Only in the last response of a request."""
    asked_by: str | None = None
    """The input that asks for it; None: it is always there."""


INPUTS = (
    Input("text_input", TEXTS, "The prompt as text: one string. Exactly one of text_input, input_ids and chat is given."),
    Input("input_ids", INTEGERS, "The prompt as token ids."),
    Input(
        "chat", JSON, 'The prompt as messages, a JSON array such as [{"role": "user", "content": "Hi"}]; the model\'s template is applied.'
    ),
    Input("streaming", FLAG, "A response a round; without it one response at the end."),
    Input("stop", FLAG, "End the running requests that have this request's id."),
    Input("sampling_param_best_of", INTEGER, "Only 1."),
    Input("sampling_param_temperature", NUMBER, "0: greedy. Default 1.", "temperature"),
    Input("sampling_param_top_k", INTEGER, "Keep the k most likely tokens; 0: all.", "top_k"),
    Input("sampling_param_top_p", NUMBER, "Keep the most likely tokens whose mass reaches this; in (0, 1].", "top_p"),
    Input("sampling_param_min_p", NUMBER, "Keep tokens at least this fraction as likely as the most likely; in [0, 1].", "min_p"),
    Input("sampling_param_repetition_penalty", NUMBER, "Above 1: tokens of prompt and output become less likely.", "repetition_penalty"),
    Input("sampling_param_presence_penalty", NUMBER, "Taken from the logit of each token in the output; in [-2, 2].", "presence_penalty"),
    Input("sampling_param_frequency_penalty", NUMBER, "The same, once for each time that it is there; in [-2, 2].", "frequency_penalty"),
    Input("sampling_param_logit_bias", JSON, 'Added to logits, a JSON object such as {"42": -100}; in [-100, 100].', "logit_bias"),
    Input("sampling_param_bad_words", JSON, "What the output never says: a JSON array of strings or of token id arrays.", "bad_words"),
    Input("sampling_param_max_tokens", INTEGER, "The most output tokens. Default 128.", "max_tokens"),
    Input("sampling_param_min_tokens", INTEGER, "No end before so many output tokens.", "min_tokens"),
    Input("sampling_param_seed", SEED, "The same seed gives the same text; without it one is drawn and reported.", "seed"),
    Input("sampling_param_stop", TEXTS, "Strings that end the output.", "stop"),
    Input("sampling_param_stop_token_ids", INTEGERS, "Token ids that end the output.", "stop_token_ids"),
    Input("sampling_param_ignore_eos", FLAG, "Go on after the model's end of sequence.", "ignore_eos"),
    Input("sampling_param_logprobs", INTEGER, "Report log-probabilities, and so many of the most likely; 0 to 20.", "logprobs"),
    Input("sampling_param_exclude_input_from_output", FLAG, "False: text_output begins with the prompt's text. Default true."),
    Input("sampling_param_return_perf_metrics", FLAG, "Report the figures of this request with the last response."),
    Input("return_finish_reason", FLAG, "Report finish_reason."),
    Input("return_stop_reason", FLAG, "Report stop_reason."),
    Input("return_cumulative_logprob", FLAG, "Report cumulative_logprob."),
    Input("speculation", TEXT, "off, on (as the bundle's recipe says) or the name of a method.", "speculation"),
    Input("draft_len", INTEGER, "Draft tokens a round, at least 1; without it the server chooses.", "draft_len"),
    Input(
        "tree_budget",
        INTEGER,
        "Tokens of a draft's whole tree, of which draft_len follow each other; 0: chains. Refused where trees would change tokens.",
        "tree_budget",
    ),
    Input("share_history", FLAG, "False: nothing is drafted from other requests' outputs, nor from this one's later.", "share_history"),
    Input("tenant", TEXT, "Only requests of one tenant draft from each other's outputs.", "tenant"),
    Input("priority", INTEGER, "Lower numbers are admitted first. Default 0."),
    Input("timeout_ms", INTEGER, "The request fails if it is not done after so many milliseconds."),
)
BY_NAME = {field.name: field for field in INPUTS}
BY_PARAM = {field.param: field for field in INPUTS if field.param is not None}


FIGURES = "sampling_param_return_perf_metrics"


def _figure(name: str, kind: Kind, doc: str, value: Callable[[Reply], Any]) -> Output:
    return Output(name, kind, doc, value, asked_by=FIGURES)


OUTPUTS = (
    Output("text_output", TEXTS, "The text; streamed, what is new of it.", lambda reply: [reply.text], last=False),
    Output("output_ids", INTEGERS, "The tokens; streamed, the new ones.", lambda reply: reply.tokens, last=False),
    Output("finish_reason", TEXTS, "stop or length.", lambda reply: [reply.done.finish_reason], asked_by="return_finish_reason"),
    Output(
        "stop_reason",
        TEXTS,
        "The stop string or token id that ended it; None where it was the model's end or the length.",
        lambda reply: [str(reply.done.stop_reason)],
        asked_by="return_stop_reason",
    ),
    Output(
        "cumulative_logprob",
        NUMBERS,
        "The sum of the tokens' log-probabilities, in nats; streamed, of all so far.",
        lambda reply: [reply.cumulative_logprob],
        last=False,
        asked_by="return_cumulative_logprob",
    ),
    Output(
        "logprobs",
        JSON,
        'A JSON array, one object a token: {"token", "logprob", "top": [[token, logprob], …]}; streamed, of the new ones.',
        lambda reply: [asdict(one) for one in reply.logprobs],
        last=False,
        asked_by="sampling_param_logprobs",
    ),
    _figure("acceptance_rate", NUMBER, "Accepted / drafted tokens.", lambda reply: reply.done.stats.draft_acceptance_rate),
    _figure("total_accepted_draft_tokens", INTEGER, "Accepted draft tokens.", lambda reply: reply.done.stats.num_accepted_tokens),
    _figure("total_draft_tokens", INTEGER, "Draft tokens.", lambda reply: reply.done.stats.num_draft_tokens),
    _figure("mean_acceptance_length", NUMBER, "Tokens a round.", lambda reply: reply.done.stats.mean_acceptance_length),
    _figure("num_spec_steps", INTEGER, "Rounds.", lambda reply: reply.done.stats.num_spec_steps),
    _figure("per_step_accepted", INTEGERS, "Accepted draft tokens of each round.", lambda reply: reply.accepted),
    _figure("per_step_drafted", INTEGERS, "Draft tokens of each round.", lambda reply: reply.drafted),
    _figure("acceptance_histogram", INTEGERS, "At n: rounds that accepted n draft tokens.", lambda reply: reply.histogram),
    _figure("acceptance_by_position", NUMBERS, "At i: accepted / reached there.", lambda reply: reply.done.stats.acceptance_by_position),
    _figure("prompt_tokens", INTEGER, "Tokens of the prompt.", lambda reply: reply.done.stats.prompt_tokens),
    _figure("reused_tokens", INTEGER, "Of them, those whose KV was there already.", lambda reply: reply.done.stats.reused_tokens),
    _figure("emitted_tokens", INTEGER, "Tokens of the output.", lambda reply: reply.done.stats.emitted_tokens),
    _figure("prefill_seconds", NUMBER, "Prefill.", lambda reply: reply.done.stats.prefill_seconds),
    _figure("decode_seconds", NUMBER, "From the end of prefill to the end.", lambda reply: reply.done.stats.decode_seconds),
    _figure("lossy", TEXT, "The rule that may have changed the output's law; empty: none.", lambda reply: reply.done.stats.lossy or ""),
    _figure("seed", SEED, "Of the noise, given or drawn.", lambda reply: reply.done.seed),
    _figure("arrival_time_ns", LONG, "When it came, on the server's monotonic clock.", lambda reply: reply.arrived),
    _figure("first_token_time_ns", LONG, "When its first token was there.", lambda reply: reply.first),
    _figure("last_token_time_ns", LONG, "When its last token was there.", lambda reply: reply.last),
)


def rows() -> list[tuple[str, str, str]]:
    """(name, type and shape, meaning) of every input, then of every output."""
    kinds = [(field.name, field.kind, field.doc) for field in INPUTS]
    for output in OUTPUTS:
        when = "" if output.asked_by is None else f" Asked for by {output.asked_by}."
        kinds.append((output.name, output.kind, output.doc + when))
    return [(name, f"{kind.type.removeprefix('TYPE_')} [{kind.dims}]", doc) for name, kind, doc in kinds]

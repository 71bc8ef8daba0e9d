"""The public face: refusals before anything runs, streams, cancelling at any point, turns taken on shared rows."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plainly
from test_loop import assert_idle, assert_plain, caches
from toy_engine import ASCII, EOS, MAX_SEQ_LEN, VOCABULARY, Toys, invariant, toys

from specbuild.errors import RequestError
from specbuild.runtime.generator import Generator
from specbuild.runtime.sampling import SamplingParams

__all__ = ["toys"]
LONG: dict[str, Any] = {"seed": 4, "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt has no tokens"),
        ([1, VOCABULARY], {}, f"the prompt has token id {VOCABULARY}, but the vocabulary ends at {VOCABULARY - 1}"),
        ([1, -1], {}, "the prompt has token id -1"),
        ([1] * MAX_SEQ_LEN, {"max_tokens": 1}, f"the prompt has {MAX_SEQ_LEN} tokens, but a sequence holds {MAX_SEQ_LEN} with its output"),
        ([1] * 40, {"max_tokens": 9}, "a prompt of 40 tokens and max_tokens 9 exceed the 48.*lower max_tokens to 8"),
        ([1], {"max_tokens": 2, "draft_len": 8}, "draft_len is 8, but the engine verifies at most 7"),
        ([1], {"max_tokens": 2, "speculation": "ngrams"}, "speculation method 'ngrams' is unknown.*ngram"),
        ([1], {"max_tokens": 2, "logit_bias": {VOCABULARY: 1.0}}, f"logit_bias has token id {VOCABULARY}"),
        ([1], {"max_tokens": 2, "bad_words": [[t] for t in range(VOCABULARY)]}, "can forbid every token"),
        ([1], {"max_tokens": 2, "min_tokens": 1, "bad_words": [[t] for t in range(VOCABULARY) if t != EOS]}, "can forbid every token"),
    ],
)
def test_what_a_bundle_does_not_allow_is_refused_before_anything_runs(
    toys: Toys, prompt: list[int], options: dict[str, Any], message: str
) -> None:
    generator = toys.generator()
    with pytest.raises(RequestError, match=message):
        generator.stream([[1, 2], prompt], [SamplingParams(max_tokens=2), SamplingParams(**options)])
    assert_idle(generator)
    assert not toys.engines["target"].steps


def test_as_many_params_as_prompts(toys: Toys) -> None:
    with pytest.raises(RequestError, match="2 params for 1 prompts"):
        toys.generator().generate([[1]], [SamplingParams(max_tokens=2)] * 2)
    assert toys.generator().generate([]) == []


@pytest.mark.parametrize("prompts", ["one prompt", [1, 2, 3], [{"role": "user", "content": "hi"}]])
def test_a_prompt_alone_is_not_taken_for_many(toys: Toys, prompts: Any) -> None:
    with pytest.raises(RequestError, match="prompts is a single prompt; give a list"):
        toys.generator().generate(prompts)


@pytest.mark.parametrize("prompt", [None, 1.5, [1.5], ["a"], [None], [[1]], {1}])
def test_a_prompt_of_another_type_is_refused(toys: Toys, prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"a prompt is .*, but must be text, a list of token ids or a list of messages"):
        toys.generator().generate([prompt])


@pytest.mark.parametrize("params", [{"seed": 1}, [None], ["x"]])
def test_params_of_another_type_are_refused(toys: Toys, params: Any) -> None:
    with pytest.raises(RequestError, match=r"params is .*, but must be SamplingParams"):
        toys.generator().generate([[1]], params)


def test_an_unknown_rule_is_refused(toys: Toys) -> None:
    with pytest.raises(RequestError, match=r"verification 'blok' is unknown\. Did you mean 'block'"):
        toys.generator(verification="blok")


def test_a_lossy_rule_comes_from_the_recipe_alone_and_labels_what_it_gave(toys: Toys) -> None:
    with pytest.raises(RequestError, match="verification 'typical' is unknown"):
        toys.generator(verification="typical")
    with pytest.raises(RequestError, match="speculation method 'typical' is unknown"):
        toys.generator().generate([[1, 2]], SamplingParams(speculation="typical", max_tokens=4))
    hot = [SamplingParams(temperature=1.5, seed=5, max_tokens=24, ignore_eos=True, speculation=method) for method in ("draft_model", "off")]
    lossless = toys.generator().generate([[1, 2]] * 2, hot)
    generator = toys.generator(lossy="typical")
    drafted, plain = generator.generate([[1, 2]] * 2, hot)
    assert (drafted.stats.lossy, plain.stats.lossy) == ("typical", None), "nothing is lost without drafts"
    assert (generator.lossy, generator.notes[0].split(":")[0]) == ("typical", "lossy")
    assert drafted.token_ids != lossless[0].token_ids
    again = toys.generator(lossy="typical", verification="coupled")
    assert again.lossy is None
    assert not any("lossy" in note for note in again.notes)
    assert [one.token_ids for one in again.generate([[1, 2]] * 2, hot)] == [one.token_ids for one in lossless]


def test_token_ids_may_come_as_an_array(toys: Toys) -> None:
    params = SamplingParams(**LONG)
    one, other = toys.generator().generate([[1, 2, 3], np.array([1, 2, 3])], params)  # type: ignore[list-item]
    assert one.token_ids == other.token_ids
    assert {type(token) for token in one.token_ids} == {int}


@pytest.mark.parametrize("batch", [0, 5])
def test_the_batch_is_bounded_by_the_engine(toys: Toys, batch: int) -> None:
    with pytest.raises(RequestError, match=f"batch is {batch}, but the engine was built for 1 to 4"):
        toys.generator(batch=batch)


def test_text_goes_in_and_comes_out(toys: Toys) -> None:
    """Byte-level ids 0, 1, 2 … are the characters from '!' on."""
    generator = toys.generator()
    params = SamplingParams(**LONG, logit_bias=dict.fromkeys(range(ASCII, VOCABULARY), -100.0))
    by_text, by_ids = (generator.generate([prompt], params)[0] for prompt in ('"#$', [1, 2, 3]))
    assert by_text.token_ids == by_ids.token_ids
    assert by_text.text == "".join(chr(ord("!") + token) for token in by_text.token_ids)


def test_a_seed_is_drawn_and_reported(toys: Toys) -> None:
    generator = toys.generator()
    params = {**LONG, "seed": None}
    one, two = generator.generate([[1], [1]], SamplingParams(**params))
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    assert generator.generate([[1]], SamplingParams(**{**params, "seed": one.seed}))[0].token_ids == one.token_ids


@pytest.mark.parametrize("method", ["off", "ngram", "draft_model"])
def test_a_stream_adds_up_to_its_answer(toys: Toys, method: str) -> None:
    options: dict[str, Any] = {**LONG, "logprobs": 1, "stop": ["%"], "speculation": method}
    prompts = [[1, 2, 3, 1, 2], [4], [5, 6], [7] * 9, [8, 9, 8], [1]]
    texts, tokens = [""] * 6, [()] * 6
    accepted, drafted, chances = [0] * 6, [0] * 6, [()] * 6
    generator = toys.generator(batch=2)
    for delta in generator.stream(prompts, SamplingParams(**options)):
        texts[delta.index] += delta.text
        tokens[delta.index] += delta.tokens
        accepted[delta.index] += delta.accepted
        drafted[delta.index] += delta.drafted
        chances[delta.index] += delta.logprobs
        assert [one.token for one in delta.logprobs] == list(delta.tokens)
        assert "%" not in texts[delta.index]
        if delta.completion is not None:
            assert delta.completion.text == texts[delta.index]
            assert delta.completion.token_ids == tokens[delta.index]
            assert delta.completion.logprobs == chances[delta.index]
            assert delta.completion.stats.num_accepted_tokens == accepted[delta.index]
            assert delta.completion.stats.num_draft_tokens == drafted[delta.index]
            assert delta.completion.stats.emitted_tokens == len(tokens[delta.index])
    for prompt, seen in zip(prompts, tokens, strict=True):
        assert seen == plainly(toys.target, generator, prompt, SamplingParams(**{**options, "logprobs": None})).tokens


@pytest.mark.parametrize("end", ["length", "stop"])
def test_text_held_back_for_a_stop_string_that_never_came_is_shown_at_the_end(toys: Toys, end: str) -> None:
    """The last character might have begun the stop string."""
    plain = plainly(toys.target, toys.generator(), [1, 2, 3], SamplingParams(**LONG))
    last = next(place for place in range(3, 20) if plain.tokens[place] not in plain.tokens[:place])
    begun = plain.text[last - 1]
    ending = {"max_tokens": last} if end == "length" else {"stop_token_ids": [plain.tokens[last]]}
    for method in ("off", "draft_model"):
        params = SamplingParams(**{**LONG, **ending, "stop": [begun + "~"], "speculation": method})
        completion = toys.generator().generate([[1, 2, 3]], params)[0]
        assert (completion.text, completion.finish_reason) == (plain.text[:last], end)


def test_a_stop_string_that_only_the_end_completes(toys: Toys) -> None:
    """An unfinished character becomes U+FFFD when nothing follows it, and that is what was to end the text."""
    part = toys.generator().tokenizer.encode("€")[0]
    params = SamplingParams(temperature=0, max_tokens=2, logit_bias={part: 100}, stop=["\ufffd"])
    completion = toys.generator().generate([[1, 2, 3]], params)[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("", "stop", "\ufffd")


def test_rows_are_taken_in_the_order_of_asking(toys: Toys) -> None:
    generator = toys.generator(batch=2)
    firsts = list(dict.fromkeys(delta.index for delta in generator.stream([[1]] * 6, SamplingParams(**LONG))))
    assert firsts == list(range(6))


@settings(max_examples=30, deadline=None)
@given(after=st.integers(0, 30), method=st.sampled_from(["off", "ngram", "suffix", "draft_model", "cascade", "hybrid"]))
def test_leaving_a_stream_frees_all_that_it_held(toys: Toys, after: int, method: str) -> None:
    """At any delta: some run, some wait, some have ended."""
    generator = toys.generator(batch=2)
    params = [SamplingParams(**LONG | {"max_tokens": length, "speculation": method}) for length in (3, 20, 9, 20)]
    stream = generator.stream([[1, 2, 1], [3], [4], [5, 5]], params)
    for _, _delta in zip(range(after), stream, strict=False):
        pass
    stream.close()
    assert_idle(generator)
    again = SamplingParams(**LONG)
    assert_plain(generator.generate([[1, 2]], again)[0], plainly(toys.target, generator, [1, 2], again))


@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.integers(0, 2), max_size=40), batch=st.integers(1, 3))
def test_streams_taken_in_turns_share_the_rounds(toys: Toys, turns: list[int], batch: int) -> None:
    """Whatever the order, and though one of them is left halfway."""
    generator = toys.generator(batch=batch)
    params = SamplingParams(**LONG)
    prompts = [[[1, 2]], [[3], [4, 4]], [[6]]]
    streams = [generator.stream(each, params) for each in prompts]
    done: dict[tuple[int, int], Any] = {}
    for turn in turns:
        delta = next(streams[turn], None)
        if delta is not None and delta.completion is not None:
            done[turn, delta.index] = delta.completion
    streams[2].close()
    for turn in (0, 1):
        for delta in streams[turn]:
            if delta.completion is not None:
                done[turn, delta.index] = delta.completion
        for index, prompt in enumerate(prompts[turn]):
            assert_plain(done[turn, index], plainly(toys.target, generator, prompt, params))
    assert_idle(generator)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("passes", range(0, 12, 2))
def test_an_interruption_in_any_pass_leaves_nothing_behind(toys: Toys, role: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C while prompts are read, drafts made or scored."""
    generator = toys.generator()
    generator._proposers["draft_model"]
    engine, left = toys.engines[role], iter(range(passes))
    forward = engine.forward

    def interrupted(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return forward(*arguments)

    prompts, params = [[1, 2, 3], [4] * 15, [2, 2]], SamplingParams(**LONG)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generator.generate(prompts, params)
    assert_idle(generator)
    for cache in caches(generator):
        cache.check()
    for prompt, completion in zip(prompts, generator.generate(prompts, params), strict=True):
        assert_plain(completion, plainly(toys.target, generator, prompt, params))


def test_notes_say_what_is_not_promised(toys: Toys) -> None:
    def notes(batch: int = 4, **flags: bool) -> str:
        generator: Generator = toys.generator(batch=batch, probe=invariant(**flags))
        return "; ".join(generator.notes)

    assert notes() == ""
    assert "number of new tokens: every pass is padded" in notes(step_invariant=False)
    assert "cache view: the longest is always used" in notes(view_invariant=False)
    assert "open it with batch=1" in notes(batch_invariant=False)
    assert notes(batch=1, batch_invariant=False) == ""
    assert "--no-probe" in "; ".join(toys.generator(probe=None).notes)


def test_a_generator_gives_its_memory_back_at_once(toys: Toys) -> None:
    """Not when the collector happens to run: a cache may be gigabytes."""
    generator = toys.generator()
    generator.generate([[1, 2]], SamplingParams(max_tokens=2, speculation="draft_model"))
    engine = weakref.ref(toys.engines.pop("target"))
    toys.engines.clear()
    gc.collect()
    gc.disable()
    try:
        del generator
        assert engine() is None
    finally:
        gc.enable()

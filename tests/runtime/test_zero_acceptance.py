"""Drafts that come to nothing are told once a spell, and only they."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest
from toy_engine import Toys, toys

from specbuild.errors import SpecbuildError
from specbuild.runtime.answer import Delta
from specbuild.runtime.draft import Draft
from specbuild.runtime.proposers.base import Ask
from specbuild.runtime.proposers.replay import ReplayProposer
from specbuild.runtime.sampling import SamplingParams
from specbuild.runtime.service import Service
from specbuild.runtime.zero_acceptance import SPELL, ZeroAcceptance

__all__ = ["toys"]
NEVER = 7
PARAMS = SamplingParams(seed=1, max_tokens=45, ignore_eos=True, logit_bias={NEVER: -100.0}, speculation="planted", draft_len=3)


class Hopeless(ReplayProposer):
    """Drafts a token that the law forbids."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft.chain([NEVER] * ask.draft_len) for ask in asks]


class Client:
    """Waits for its answer."""

    def __init__(self) -> None:
        self.done = Event()
        self.tokens: tuple[int, ...] = ()

    def delta(self, delta: Delta) -> None:
        if delta.completion is not None:
            self.tokens = delta.completion.token_ids
            self.done.set()

    def failed(self, error: SpecbuildError) -> None:
        raise error

    def cancelled(self) -> bool:
        return False


def ask(service: Service, params: SamplingParams = PARAMS) -> tuple[int, ...]:
    client = Client()
    service.submit([1, 2], params, client)
    assert client.done.wait(30)
    return client.tokens


def test_one_warning_a_spell_of_each_method(caplog: pytest.LogCaptureFixture) -> None:
    watch = ZeroAcceptance()
    for _ in range(SPELL - 1):
        watch.observe("a", 4, 0)
        watch.observe("b", 0, 0)
    watch.observe("c", 4, 1)
    assert watch.spells() == {"a": False, "c": False}
    assert not caplog.records
    for _ in range(2 * SPELL):
        watch.observe("a", 4, 0)
    assert watch.spells() == {"a": True, "c": False}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"speculation method a: none of its last {SPELL} drafts" in caplog.text
    assert "specbuild bench" in caplog.text
    watch.observe("a", 4, 1)
    assert watch.spells() == {"a": False, "c": False}
    for _ in range(SPELL):
        watch.observe("a", 1, 0)
    assert len(caplog.records) == 2


def test_a_service_with_a_hopeless_proposer_says_so(toys: Toys, caplog: pytest.LogCaptureFixture) -> None:
    """A request of 45 tokens has 44 drafts: the third request has the 128th."""
    service = Service(toys.generator(proposers={"planted": Hopeless({})}))
    answers = {ask(service) for _ in range(2)}
    assert service.stats().zero_acceptance == {"planted": False}
    answers |= {ask(service) for _ in range(5)}
    assert service.stats().zero_acceptance == {"planted": True}
    service.close()
    assert len(answers) == 1, "it changes nothing that anybody sees"
    assert len(caplog.records) == 1
    assert "planted" in caplog.text


def test_one_that_is_of_use_is_left_alone(toys: Toys, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(toys.generator())
    for seed in range(16):
        for method in ("draft_model", "off"):
            ask(service, SamplingParams(seed=seed, max_tokens=45, ignore_eos=True, speculation=method))
    stats = service.stats()
    service.close()
    assert stats.counters["drafts"] > SPELL
    assert stats.zero_acceptance == {"draft_model": False}
    assert not caplog.records

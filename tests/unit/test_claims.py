"""The paper's claims: every one keeps the contract, the rules of the verdicts, cells that are kept, the command."""

import json
import math

import pytest

from liesparse.reproduce import claims
from liesparse.reproduce.claim_parts import FAILS, HOLDS, IN_PART, Size, Trial

TINY = Size(n_images=60, n_shown=60, n_test=40, n_steps=4, start="data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("claims")


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_every_claim_keeps_the_contract(name, folder):
    claim = claims.CLAIMS[name]
    assert claim.sentence.endswith(".") and claim.place and claim.measured
    numbers = claim.measure(Trial(100, TINY, folder))
    assert json.loads(json.dumps(numbers)) == numbers  # as it is kept
    values = [value for value in numbers.values() if isinstance(value, float)]
    assert values and all(map(math.isfinite, values))
    judgement = claim.judge([numbers, numbers])
    assert judgement.verdict in (HOLDS, IN_PART, FAILS)
    assert any(character.isdigit() for character in judgement.reason)
    assert (claims.draw(name, [numbers]) is None) == ("curves" not in numbers)

"""The suite's own checker of types: it sees a wrong call at once, and leaves a long learning alone."""

import jaxtyping
import pytest
from beartype.roar import BeartypeCallHintViolation

import typecheck


@pytest.fixture
def double():
    def double(number: float) -> float:
        return 2 * number

    return typecheck.check(double)


def test_a_wrong_call_is_seen(double):
    for _ in range(20):
        with pytest.raises(BeartypeCallHintViolation):
            double("a")
    double(3)  # a whole number is a fine float


def test_after_many_calls_nothing_is_checked_until_the_next_test_begins(double):
    for _ in range(typecheck.CHECKED):
        assert not jaxtyping.config.jaxtyping_disable
        double(1.0)
    assert jaxtyping.config.jaxtyping_disable
    typecheck.begin()
    assert not jaxtyping.config.jaxtyping_disable

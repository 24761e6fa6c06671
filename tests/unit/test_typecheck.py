"""The suite's own checker of types: it sees a wrong call at once, and a habit of them later."""

import pytest
from beartype.roar import BeartypeCallHintViolation

import typecheck


@pytest.fixture
def double():
    def double(number: float) -> float:
        return 2 * number

    return typecheck.check(double)


def test_the_first_calls_are_all_checked(double):
    for _ in range(typecheck.FIRST):
        with pytest.raises(BeartypeCallHintViolation):
            double("a")
    double(3)  # a whole number is a fine float


def test_later_one_call_in_eleven_is_checked_until_the_next_test_begins(double):
    for _ in range(100):
        double(1.0)
    n_seen = 0
    for _ in range(22):
        try:
            double("a")
        except BeartypeCallHintViolation:
            n_seen += 1
    assert n_seen == 2
    typecheck.begin()
    with pytest.raises(BeartypeCallHintViolation):
        double("a")

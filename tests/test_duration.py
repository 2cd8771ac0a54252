from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from watersmeet.duration import CalendarDurationError, format_duration, parse_duration

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("500ms", SECOND // 2),
        ("5s", 5 * SECOND),
        ("5m", 300 * SECOND),
        ("1h", 3600 * SECOND),
        ("2d", 2 * 86400 * SECOND),
        ("0s", 0),
        ("5 SECONDS", 5 * SECOND),
        ("1 hour", 3600 * SECOND),
        ("1 hour 30 minutes", 5400 * SECOND),
        ("1.5 seconds", 1_500_000),
        ("1 week", 7 * 86400 * SECOND),
        ("INTERVAL 5 SECONDS", 5 * SECOND),
        ("interval -5 seconds", -5 * SECOND),
        ("INTERVAL '1' HOUR", 3600 * SECOND),
        ("INTERVAL '-1' HOUR", -3600 * SECOND),
        ("INTERVAL -'-1' HOUR", 3600 * SECOND),
        ("INTERVAL '1 hour 30 minutes'", 5400 * SECOND),
        ("INTERVAL '1:30' HOUR TO MINUTE", 5400 * SECOND),
        ("INTERVAL '-1:30' HOUR TO MINUTE", -5400 * SECOND),
        ("INTERVAL '1 02:03:04.5' DAY TO SECOND", (86400 + 7384) * SECOND + SECOND // 2),
        ("INTERVAL '10 05' DAY TO HOUR", (10 * 24 + 5) * 3600 * SECOND),
    ],
)
def test_a_duration_in_microseconds(text: str, micros: int):
    assert parse_duration(text) == micros


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a duration"),
        ("5", "is not a duration"),
        ("soon", "is not a duration"),
        ("5s later", "is not a duration"),
        ("5 fortnights", "`fortnights` is not a unit of time"),
        ("0.1us", "finer than a microsecond"),
        ("99999999999 days", "longer than any time"),
        ("9" * 5000 + "s", "longer than any time"),
        ("INTERVAL '1:30' MINUTE TO HOUR", "not a range of units"),
        ("INTERVAL '1' HOUR TO MINUTE", "does not have the form"),
        ("INTERVAL '1.5:30' HOUR TO MINUTE", "does not have the form"),
    ],
)
def test_malformed_durations_say_why(text: str, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1 month", "INTERVAL 2 YEARS", "INTERVAL '1-2' YEAR TO MONTH", "1 day 1 month"])
def test_months_and_years_have_no_fixed_length(text: str):
    with pytest.raises(CalendarDurationError, match="no fixed length"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0 s"),
        (500_000, "500 ms"),
        (5 * SECOND, "5 s"),
        (5400 * SECOND, "1 h 30 min"),
        (86400 * SECOND + 1, "1 d 1 µs"),
        (-60 * SECOND, "-1 min"),
    ],
)
def test_a_duration_for_people(micros: int, text: str):
    assert format_duration(micros) == text


@given(st.integers(min_value=0, max_value=10**15))
@settings(derandomize=True, max_examples=examples(100))
def test_formatted_durations_read_back(micros: int):
    assert parse_duration(format_duration(micros).replace("µs", "us")) == micros

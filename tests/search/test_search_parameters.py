"""Parameters of a search, by name."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.search import SearchParameters
from pytest_gpuenergy.support import InputError

NAMES = sorted(asdict(SearchParameters()))


def test_names_may_be_in_upper_case_and_values_text() -> None:
    found = SearchParameters.of({"PUCT_C": "1.5", "root_noise_eps": 0})
    assert (found.puct_c, found.root_noise_eps) == (1.5, 0)
    assert found.min_pred_gain == 0.02


def test_stored_parameters_are_read_back() -> None:
    chosen = SearchParameters(puct_c=2, failure_value=-3)
    assert SearchParameters.of(asdict(chosen)) == chosen


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"puct": "1"}, "There is no search parameter 'puct': choose from BEST_SHARE, "),
        ({"PUCT_C": "1", "puct_c": "2"}, "PUCT_C is given twice: give it once."),
        ({"PUCT_C": "much"}, "PUCT_C needs a number from 0 to 100, not 'much'."),
        ({"ROOT_NOISE_EPS": "1.1"}, "ROOT_NOISE_EPS needs a number from 0 to 1, not 1.1."),
        ({"FAILURE_VALUE": "1"}, "FAILURE_VALUE needs a number from -20 to 0, not 1.0."),
    ],
)
def test_a_wrong_setting_is_one_sentence(values: dict[str, str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        SearchParameters.of(values)
    assert said in str(caught.value)
    assert str(caught.value).count(". ") == 0


@given(st.sampled_from(NAMES), st.sampled_from([float("nan"), float("inf"), -1e9, 1e9]))
def test_values_out_of_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name.upper()):
        SearchParameters.of({name: value})


@pytest.mark.parametrize("value", [None, True, "1"])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="PUCT_C"):
        SearchParameters(puct_c=value)  # type: ignore[arg-type]

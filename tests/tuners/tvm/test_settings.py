"""How a search is divided among its processes."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pytest_gpuenergy.tuners import SearchSettings

SETTINGS = st.builds(
    SearchSettings,
    seed=st.just(0),
    threads=st.integers(1, 256),
    batch=st.integers(1, 64),
    population=st.integers(1, 512),
)


@given(SETTINGS)
def test_processes_have_all_threads_and_no_more(settings):
    used = settings.processes * settings.of_process().threads
    assert settings.threads - settings.processes < used <= settings.threads


@given(SETTINGS)
def test_together_they_propose_a_batch_or_more(settings):
    assert settings.processes * settings.of_process().batch >= settings.batch


@given(SETTINGS)
def test_none_proposes_more_than_one_alone_would(settings):
    part = settings.of_process()
    assert 1 <= part.batch <= settings.batch
    assert 1 <= part.population <= settings.population


def test_one_thread_is_one_process_that_does_it_all():
    settings = SearchSettings(0, 1)
    assert settings.processes == 1
    assert settings.of_process() == settings

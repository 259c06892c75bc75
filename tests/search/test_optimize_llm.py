"""`gpuenergy optimize` with a language model, on the emulated GPU."""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import kernel_specs
import pytest
from kernel_specs import SOURCE, state_of, write
from llm_server import LlmServer, answers, fails, llm_server

Capsys = pytest.CaptureFixture[str]
Serve = Callable[..., LlmServer]

BUDGET = 2
FASTER = SOURCE.replace("y[i] = by * x[i];", "y[i] = by * __ldcg(x + i);")
DIFF = "\n".join(difflib.unified_diff(SOURCE.split("\n"), FASTER.split("\n"), lineterm=""))
GOOD = answers(move="cache_policy_cg", what="load past the L1", diff=DIFF, source=FASTER)
WRONG = answers(move="cache_policy_cg", what="add", source=SOURCE.replace("by * x", "by + x"))


def optimize(spec: Path, out: Path, *options: str) -> int:
    return kernel_specs.optimize(spec, out, "--budget-builds", str(BUDGET), *options)


def asked_in(out: Path) -> list[Any]:
    """Return the events of a search that are questions to the model."""
    return [event for event in kernel_specs.events_of(out) if event["event"] == "llm"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write(tmp_path)


@contextmanager
def serving() -> Iterator[Serve]:
    """Let the environment name a server that gives the answers of a test."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")

        def start(*script: Any) -> LlmServer:
            server = stack.enter_context(llm_server(*script))
            patch.setenv("OPENAI_BASE_URL", server.url)
            return server

        yield start


@pytest.fixture
def serve() -> Iterator[Serve]:
    with serving() as start:
        yield start


class Asked(NamedTuple):
    """A finished search that asked a model: its folder, its requests, and what it said."""

    out: Path
    requests: int
    said: str


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Return a search with good proposals, made once."""
    folder = tmp_path_factory.mktemp("asked")
    with serving() as start, redirect_stderr(StringIO()) as said:
        server = start(GOOD)
        assert optimize(write(folder), folder / "out") == 0
        return Asked(folder / "out", len(server.requests), said.getvalue())


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the same search with the rules alone."""
    folder = tmp_path_factory.mktemp("ruled")
    assert optimize(write(folder), folder / "out", "--no-llm") == 0
    return folder / "out"


@pytest.mark.slow
class TestSearch:
    def test_a_proposal_is_evaluated_like_a_move(self, asked):
        nodes = state_of(asked.out)["nodes"]
        made = [node for node in nodes if node["what"].endswith(" by gpt-5-mini")]
        assert {node["move"] for node in made} == {"cache_policy_cg"}
        assert {node["outcome"] for node in made} == {"correct"}
        folder = asked.out / "kernels/_scale"
        diff = (folder / "variants" / made[0]["id"] / "candidate.diff").read_text()
        assert "+  for (int i = first; i < first + ITEMS && i < n; ++i) y[i] = by * __ldcg" in diff
        assert "Proposals of gpt-5-mini: proposals " in (folder / "trace.md").read_text()
        assert asked_in(asked.out)[0]["outcome"] == "proposal"
        said = "gpt-5-mini at 127.0.0.1 is asked for moves, and gets the kernels'"
        assert asked.said.count(said) == 1

    def test_a_proposal_that_computes_something_else_is_refused(self, serve, spec, tmp_path):
        serve(answers(diff="@@\n-wrong\n"), WRONG)
        assert optimize(spec, tmp_path / "out") == 0
        nodes = state_of(tmp_path / "out")["nodes"]
        made = [node for node in nodes if node["what"] == "add by gpt-5-mini"]
        assert [node["outcome"] for node in made] == ["correctness"]

    def test_a_proposal_of_which_nothing_is_expected_comes_in_its_turn(self, serve, spec, tmp_path):
        serve(GOOD)
        for prior in ("0", "1"):
            out = tmp_path / prior
            assert optimize(spec, out, "--budget-builds", "1", "--llm-prior", prior) == 0
        first, second = (state_of(tmp_path / prior)["nodes"][1]["what"] for prior in ("0", "1"))
        assert not first.endswith(" by gpt-5-mini")
        assert second.endswith(" by gpt-5-mini")

    def test_a_continued_search_asks_nothing_twice_and_ends_the_same(
        self, serve, spec, asked, tmp_path
    ):
        server = serve(GOOD)
        assert optimize(spec, tmp_path / "out", "--budget-builds", "1") == 0
        assert optimize(spec, tmp_path / "out", "--resume") == 0
        assert len(server.requests) == asked.requests
        assert state_of(tmp_path / "out")["nodes"] == state_of(asked.out)["nodes"]
        assert asked_in(tmp_path / "out") == asked_in(asked.out)

    def test_a_continued_search_keeps_its_proposals_without_the_model(
        self, serve, spec, asked, tmp_path
    ):
        server = serve(GOOD)
        out = shutil.copytree(asked.out, tmp_path / "out", symlinks=True)
        assert optimize(spec, out, "--resume", "--no-llm") == 0
        assert server.requests == []
        assert state_of(out)["nodes"] == state_of(asked.out)["nodes"]

    def test_a_search_that_began_without_a_model_goes_on_without(
        self, serve, spec, ruled, tmp_path
    ):
        server = serve(GOOD)
        out = shutil.copytree(ruled, tmp_path / "out", symlinks=True)
        assert optimize(spec, out, "--resume", "--budget-builds", str(BUDGET + 1)) == 0
        assert server.requests == []
        assert len(state_of(out)["nodes"]) == 1 + BUDGET + 1

    def test_the_rules_go_on_when_the_endpoint_is_away(self, serve, spec, ruled, tmp_path, capsys):
        server = serve(fails(401))
        assert optimize(spec, tmp_path / "out") == 0
        said = capsys.readouterr().err
        assert said.count("gpt-5-mini is not asked any more, because it does not accept the") == 1
        assert len(server.requests) == 1
        assert {one["outcome"] for one in asked_in(tmp_path / "out")} == {"away"}
        assert "away" in (tmp_path / "out/kernels/_scale/trace.md").read_text()
        assert state_of(tmp_path / "out") == state_of(ruled)


@pytest.mark.slow
class TestWithout:
    @pytest.mark.parametrize("key", ["", "sk-secret"])
    def test_with_no_llm_nothing_is_said_or_sent(
        self, key, serve, spec, tmp_path, monkeypatch, capsys
    ):
        server = serve(GOOD)
        monkeypatch.setenv("OPENAI_API_KEY", key)
        assert optimize(spec, tmp_path / "out", "--no-llm", "--budget-builds", "0") == 0
        assert server.requests == []
        assert "gpt-5-mini" not in capsys.readouterr().err
        assert not (tmp_path / "out/kernels/_scale/llm.jsonl").exists()

    def test_without_a_key_and_an_address_the_rules_are_alone(self, spec, tmp_path, capsys):
        assert optimize(spec, tmp_path / "out", "--budget-builds", "0") == 0
        said = "is not asked for moves, because neither OPENAI_API_KEY nor OPENAI_BASE_URL is set"
        assert said in capsys.readouterr().err

    def test_without_the_package_the_rules_are_alone(
        self, serve, spec, tmp_path, monkeypatch, capsys
    ):
        serve(GOOD)
        monkeypatch.setitem(sys.modules, "openai", None)
        assert optimize(spec, tmp_path / "out", "--budget-builds", "0") == 0
        assert "install pytest-gpuenergy[llm]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--llm-max-usd", "1"), "--llm-max-usd needs the prices of the model"),
        (("--llm-usd-per-mtok", "1"), "'1' is not two prices in US dollars"),
        (("--llm-usd-per-mtok", "1,x"), "'x' is not a number from 0.0 to 1000000.0"),
        (("--llm-max-tokens", "-1"), "'-1' is not a number from 0"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, said, spec, tmp_path, capsys):
    try:
        code = optimize(spec, tmp_path / "out", *options)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err

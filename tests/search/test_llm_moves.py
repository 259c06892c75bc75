"""What a language model answers becomes a move, or is refused and counted."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import SOURCE, spec_with, write
from llm_server import LlmServer, answers, drips, fails, hangs, llm_server, redirects, says, sends
from msgspec.structs import replace

from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import (
    VOCABULARY,
    Application,
    Consultant,
    Endpoint,
    KernelSpec,
    LlmMoves,
    LlmSettings,
    Prices,
    Reply,
    Result,
    SearchNode,
    State,
    read_reply,
    read_spec,
)
from pytest_gpuenergy.support import FormError, InputError, UnavailableError

BETTER = SOURCE.replace("y[i] = by * x[i];", "y[i] = by * __ldcg(x + i);")
KEY = "sk-secret"
QUICK = {"timeout_s": 0.05, "retries": 0}


def diff(before: str = SOURCE, after: str = BETTER) -> str:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="")
    return "\n".join(lines)


GOOD = answers(move="cache_policy_cg", what="load past  the L1", diff=diff())
STRAY = answers(diff=diff().replace("int first", "int second"))
UNSAFE = SOURCE.replace("int first", "long long t = clock64(); int first")


class Asked:
    """A model behind a server, with the messages about it."""

    def __init__(self, server: LlmServer, folder: Path, **settings: Any) -> None:
        self.server = server
        self.told: list[str] = []
        self.noted: list[dict[str, Any]] = []
        settings = {"model": "m", "url": server.url, "timeout_s": 30.0, **settings}
        self.endpoint = Endpoint(LlmSettings(**settings))
        self.moves = self.on(folder)

    def on(self, folder: Path) -> LlmMoves:
        """Return the moves of the model for the kernel of a folder."""
        folder.mkdir(exist_ok=True)
        consultant = Consultant(self.endpoint, folder, self.told.append)
        return LlmMoves(consultant, "NVIDIA H200", lambda _, **fields: self.noted.append(fields))


Ask = Callable[..., Asked]


@pytest.fixture
def spec(tmp_path: Path) -> KernelSpec:
    return read_spec(write(tmp_path))


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Ask a server that gives the answers of a test."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:

        def start(*script: Any, **settings: Any) -> Asked:
            asked = Asked(stack.enter_context(llm_server(*script)), tmp_path / "k", **settings)
            stack.callback(asked.endpoint.close)
            return asked

        yield start


def suggested(
    asked: Asked, spec: KernelSpec, state: State | None = None, moves: LlmMoves | None = None
) -> Application | None:
    """Return the model's proposal for a state, by default for the baseline."""
    found = list((moves or asked.moves).applications(state or spec.baseline, spec))
    assert len(found) <= 1
    return found[0] if found else None


def refused(
    asked: Asked, spec: KernelSpec, state: State | None = None, moves: LlmMoves | None = None
) -> tuple[str, str]:
    """Return why there is no proposal: the kind of reason, and the reason."""
    moves = moves or asked.moves
    count = moves.counts.total() - moves.counts["second_questions"]
    assert suggested(asked, spec, state, moves) is None
    assert moves.counts.total() - moves.counts["second_questions"] == count + 1
    noted = asked.noted[-1]
    assert moves.counts[noted["outcome"]]
    return noted["outcome"], noted["message"]


class TestProposal:
    @pytest.mark.slow
    def test_a_diff_becomes_an_application(self, ask, spec):
        asked = ask(GOOD)
        found = suggested(asked, spec)
        changed = replace(spec.baseline, source=BETTER)
        assert found == Application("cache_policy_cg", "load past the L1 by m", changed)
        assert asked.moves.has_proposed(found)
        assert asked.noted == [
            {
                "id": spec.baseline.id,
                "model": "m",
                "outcome": "proposal",
                "move": "cache_policy_cg",
                "what": "load past the L1 by m",
            }
        ]
        assert asked.server.paths == ["/responses"]

    @pytest.mark.slow
    def test_what_cannot_be_printed_is_left_out_of_its_words(self, ask, spec):
        found = suggested(ask(answers(what="\x1b[31m red \n\u202e ok", diff=diff())), spec)
        assert isinstance(found, Application)
        assert found.what == "red ok by m"

    def test_it_is_a_move_like_others(self, ask, spec):
        moves = ask(GOOD, says("nothing")).moves
        [found] = moves.applications(spec.baseline, spec)
        assert found.state.source == BETTER
        assert list(moves.applications(found.state, spec)) == []

    def test_a_launch_alone_can_change(self, ask, spec):
        launch = {
            "grid": ["ceil_div(N, block_x * ITEMS)"],
            "block": [64],
            "shared_bytes": None,
            "num_warps": None,
            "num_stages": None,
            "constants": [{"name": "ITEMS", "value": 8}],
        }
        found = suggested(ask(answers(diff="", launch=launch)), spec)
        assert isinstance(found, Application)
        plan = replace(spec.launch, block=(64,), constants={"ITEMS": 8})
        assert found.state == State("cuda", SOURCE, plan)

    def test_a_diff_that_does_not_apply_is_followed_by_the_source_once(self, ask, spec):
        asked = ask(STRAY, answers(source=BETTER))
        found = suggested(asked, spec)
        assert isinstance(found, Application)
        assert found.state.source == BETTER
        assert asked.moves.counts == {"second_questions": 1, "proposals": 1}
        (_, first), (_, second) = asked.server.requests
        assert second["input"][: len(first["input"])] == first["input"]
        assert "are not in the source" in second["input"][-1]["content"]
        assert "diff" not in second["text"]["format"]["schema"]["properties"]

    def test_new_assembler_is_counted(self, ask, spec):
        with_assembler = SOURCE.replace("int first", 'asm volatile(""); int first')
        asked = ask(answers(diff=diff(after=with_assembler)))
        assert isinstance(suggested(asked, spec), Application)
        assert asked.moves.counts["inline_assembler"] == 1

    def test_a_triton_module_is_checked_as_one(self, ask, tmp_path):
        source = (
            "import triton\nimport triton.language as tl\n\n\n"
            "@triton.jit\ndef scale(x, y, by, n, ITEMS: tl.constexpr):\n    pass\n"
        )
        launch = {"grid": ["N"], "constants": {"ITEMS": 4}}
        fields = {"language": "triton", "source": source, "launch": launch, "name": "t"}
        spec = read_spec(write(tmp_path, spec_with(**fields)))
        moved = source.replace("    pass", "    eval('1')")
        asked = ask(
            answers(launch={"num_warps": 8}),
            answers(launch={"num_warps": 3}),
            answers(launch={"block": [32]}),
            answers(diff=diff(source, moved)),
            answers(diff=diff(source, "def (\n")),
        )
        found = suggested(asked, spec)
        assert isinstance(found, Application)
        assert found.state.launch.num_warps == 8
        reasons = []
        for number in range(4):
            state = replace(spec.baseline, launch=replace(spec.launch, num_stages=4 + number))
            reasons.append(refused(asked, spec, state))
        assert [reason for reason, _ in reasons] == ["launch", "launch", "unsafe", "syntax"]
        assert "power of two" in reasons[0][1]
        assert reasons[1][1] == "launch.block does not exist for triton"
        assert reasons[2][1] == "it adds eval"


class TestRequest:
    def test_it_has_the_source_the_contract_the_figures_and_what_was_tried(self, ask, spec):
        asked = ask(GOOD)
        state = spec.baseline
        common = {"move": "change_block_sizes", "cost": None}
        first = SearchNode(
            id=state.id, parent=None, move="", what="", outcome="correct", cost=0.5, time_ms=0.5
        )
        other = SearchNode(
            id="s1", parent=state.id, what="block_x=64", outcome="correct", time_ms=0.25, **common
        )
        wrong = SearchNode(
            id="s2", parent=state.id, what="ITEMS=1", outcome="timeout", time_ms=None, **common
        )
        for node in (first, other, wrong):
            asked.moves.learn(node, _result(node))
        asked.moves.regions_of = lambda _: {"smem": 0.25, "gmem": 0.75}
        list(asked.moves.applications(state, spec))
        [(_, body)] = asked.server.requests
        text = body["input"][1]["content"]
        assert SOURCE.strip() in text
        assert '"ITEMS": 4' in text
        for line in (
            "- arguments: x, y, by, n",
            "- input x: float32[N]",
            "- output y: float32[N]",
            "- scalar n: int32, N",
            "- sizes measured and verified: N=4000",
            "- sizes verified: N=501",
            "- on NVIDIA H200",
            "- time of a launch: 0.5 ms",
            "- least time by the card's peaks: 0.01 ms",
            "- energy of a launch: 50 mJ at 100 W",
            "- speedup over the baseline: 1.000",
            "- minimized: energy",
            "- gmem: 75% of the time, estimated\n- smem: 25% of the time, estimated",
            "- change_block_sizes block_x=64: 0.25 ms",
            "- change_block_sizes ITEMS=1: timeout",
            *(f"- {name}: {what}" for name, what in VOCABULARY.items()),
        ):
            assert f"\n{line}" in text

    def test_nothing_of_inputs_seeds_and_expected_outputs_is_sent(self, ask, tmp_path):
        tensors = [
            {"name": "x", "shape": ["N"], "data": [12.375, 77.125]},
            {"name": "y", "shape": ["N"], "role": "output"},
        ]
        fields = {"tensors": tensors, "sizes": [{"N": 2}], "reference": {"y": "by * x + 0.0"}}
        asked = ask(GOOD)
        spec = read_spec(write(tmp_path, spec_with(**fields)))
        suggested(asked, spec)
        sent = json.dumps(asked.server.requests)
        for secret in ("12.375", "77.125", "seed", "by * x + 0.0"):
            assert secret not in sent

    def test_the_endpoint_is_asked_not_to_store_it(self, ask, spec):
        asked = ask(GOOD)
        suggested(asked, spec)
        assert asked.server.requests[0][1]["store"] is False

    def test_the_schema_is_strict(self, ask, spec):
        asked = ask(GOOD)
        suggested(asked, spec)
        form = asked.server.requests[0][1]["text"]["format"]
        assert form["strict"] is True
        assert form["schema"]["properties"]["move"]["enum"] == list(VOCABULARY)
        _assert_strict(form["schema"])


class TestRefusal:
    @pytest.mark.parametrize(
        ("answer", "reason", "said"),
        [
            (says("It is fast enough."), "garbled", "not complete JSON"),
            (says('{"move": "cache_policy_cg", "what": "cut o'), "garbled", "not complete JSON"),
            (says("[1]"), "garbled", "instead of"),
            (says('{"move": 1, "what": ""}'), "garbled", "instead of a string"),
            (answers(speed=2), "garbled", "speed"),
            (says(""), "garbled", "not complete JSON"),
            (sends(b"<html>"), "garbled", "the response is not complete JSON"),
            (sends(b"[]"), "garbled", "the response is"),
            (sends(b'{"output": [], "status": "incomplete"}'), "cut_off", "no complete answer"),
            (
                sends(b'{"output":[{"type":"message","content":[{"type":"refusal"}]}]}'),
                *("declined", "no complete answer"),
            ),
            (answers(move="unroll", diff=diff()), "move", "'unroll' is not a move"),
            (answers(diff=""), "unchanged", "changes nothing"),
            (answers(diff="@@\n }\n"), "unchanged", "changes nothing"),
            (answers(launch={"block": [32]}), "unchanged", "changes nothing"),
            (answers(launch={"num_warps": 8}), "launch", "num_warps does not exist for cuda"),
            (answers(launch={"block": [2048]}), "launch", "2048 threads"),
            (answers(launch={"grid": ["M"]}), "launch", "'M' is not a known name"),
            (answers(launch={"grid": ["N - 600"]}), "launch", "instead of a number from 1"),
            (
                answers(launch={"constants": [{"name": "a b", "value": 1}]}),
                *("launch", "cannot use the name"),
            ),
            (
                answers(diff=diff(after=UNSAFE)),
                *("unsafe", "it adds clock64"),
            ),
        ],
    )
    def test_what_is_wrong_is_refused_and_counted(self, answer, reason, said, ask, spec):
        asked = ask(answer)
        found = refused(asked, spec)
        assert found[0] == reason
        assert said in found[1]
        assert len(asked.server.requests) == 1
        assert asked.told == []
        assert asked.moves.counts[reason] == 1

    @pytest.mark.parametrize(
        ("second", "reason"),
        [
            (STRAY, "patch"),
            (answers(source=" "), "patch"),
            (says("no"), "garbled"),
            (answers(move="unroll", source=BETTER), "move"),
            (answers(source=SOURCE), "unchanged"),
            (answers(source=UNSAFE), "unsafe"),
            (answers(source="\0"), "launch"),
            (fails(400), "away"),
        ],
    )
    def test_the_second_answer_is_checked_the_same_way_and_the_last_one(
        self, second, reason, ask, spec
    ):
        asked = ask(STRAY, second, GOOD)
        assert refused(asked, spec)[0] == reason
        assert asked.moves.counts["second_questions"] == 1

    def test_what_the_source_had_before_is_no_reason(self, ask, tmp_path):
        spec = read_spec(write(tmp_path, spec_with(source=UNSAFE)))
        after = UNSAFE.replace("by * x[i]", "x[i] * by")
        assert isinstance(suggested(ask(answers(diff=diff(UNSAFE, after))), spec), Application)


class TestEndpoint:
    @pytest.mark.parametrize("status", [400, 404, 405, 501])
    def test_without_the_responses_api_chat_completions_are_used_from_then_on(
        self, status, ask, spec
    ):
        asked = ask(fails(status), GOOD, STRAY, answers(source=BETTER), retries=0)
        assert isinstance(suggested(asked, spec), Application)
        other = replace(spec.baseline, launch=replace(spec.launch, block=(64,)))
        assert isinstance(suggested(asked, spec, other), Application)
        chat = "/chat/completions"
        assert asked.server.paths == ["/responses", chat, chat, chat]
        body = asked.server.requests[-1][1]
        assert body["response_format"]["json_schema"]["strict"] is True
        assert body["messages"][0]["role"] == "system"

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b'{"choices": []}', "garbled"),
            (b'{"choices": [{"message": {}, "finish_reason": "length"}]}', "cut_off"),
            (b'{"choices": [{"message": {"refusal": "No."}}]}', "declined"),
            (b'{"choices": [{"message": {"content": null}}]}', "garbled"),
        ],
    )
    def test_chat_completions_without_an_answer_are_refused(self, body, reason, ask, spec):
        asked = ask(sends(body))
        asked.server.missing = ("/responses",)
        assert refused(asked, spec)[0] == reason

    def test_a_rate_limit_that_passes_is_waited_for(self, ask, spec):
        asked = ask(fails(429), fails(500), GOOD)
        assert isinstance(suggested(asked, spec), Application)
        assert asked.told == []

    @pytest.mark.parametrize(
        ("answer", "requests", "why"),
        [
            (fails(429), 3, "its rate limit or quota is exhausted (HTTP status 429)"),
            (fails(429, code="insufficient_quota"), 3, "quota is exhausted (HTTP status 429)"),
            (fails(401), 1, "it does not accept the key (HTTP status 401)"),
            (fails(403), 1, "it does not permit the request (HTTP status 403)"),
            (fails(500), 3, "it failed (HTTP status 500)"),
            (fails(418), 1, "it refused the request (HTTP status 418)"),
        ],
    )
    def test_after_a_failure_the_rules_take_over_and_one_sentence_says_so(
        self, answer, requests, why, ask, spec, tmp_path
    ):
        asked = ask(answer)
        assert refused(asked, spec)[0] == "away"
        for moves in (asked.moves, asked.on(tmp_path / "other")):
            state = replace(spec.baseline, launch=replace(spec.launch, block=(64,)))
            assert refused(asked, spec, state, moves)[0] == "away"
        assert len(asked.server.requests) == requests
        [sentence] = asked.told
        assert sentence.startswith("m is not asked any more, because ")
        assert why in sentence
        assert sentence.endswith(": rules only.")
        assert KEY not in sentence

    @pytest.mark.parametrize(
        ("answer", "settings", "reason", "why"),
        [
            pytest.param(hangs, QUICK, "away", "it did not answer in time", id="hangs"),
            pytest.param(drips, QUICK, "away", "it did not answer in time", id="never ends"),
            pytest.param(
                sends(b" " * (17 << 20)),
                *({}, "garbled", "the response is larger than 16 MiB"),
                id="too long",
            ),
            pytest.param(
                sends(b'{"output": [', length=4000),
                *({"retries": 0}, "away", "it cannot be reached, or broke off"),
                id="breaks off",
            ),
            pytest.param(
                GOOD,
                *({"url": "ftp://127.0.0.1/v1", "retries": 0}, "away", ""),
                id="address that is none",
            ),
            pytest.param(
                fails(404, code="model_not_found"),
                *({}, "away", "it knows neither the model nor the protocol"),
                id="unknown model",
            ),
        ],
    )
    def test_an_endpoint_that_gives_no_answer_is_away(
        self, answer, settings, reason, why, ask, spec
    ):
        found = refused(ask(answer, **settings), spec)
        assert found[0] == reason
        assert found[1].startswith(why)

    def test_nothing_is_sent_to_where_the_endpoint_redirects(self, ask, spec):
        other = ask(GOOD).server
        asked = ask(redirects(f"{other.url}/responses"))
        why = "it redirects to another address (HTTP status 307)"
        assert refused(asked, spec) == ("away", why)
        assert other.requests == []

    def test_nobody_at_the_address_is_away(self, ask, spec):
        with llm_server() as gone:
            url = gone.url
        asked = ask(GOOD, url=url, retries=0)
        assert refused(asked, spec) == ("away", "it cannot be reached, or broke off")

    def test_without_the_package_it_is_unavailable(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "openai", None)
        with pytest.raises(UnavailableError, match=r"install pytest-gpuenergy\[llm\]"):
            Endpoint(LlmSettings())


class TestBudget:
    def test_tokens_are_counted_as_the_endpoint_says(self, ask, spec):
        asked = ask(STRAY, answers(source=BETTER))
        suggested(asked, spec)
        assert asked.moves.consultant.tokens == (200, 20)
        [_, line] = asked.moves.lines()
        assert line == (
            "Proposals of m: proposals 1, second_questions 1; 200 tokens in, 20 tokens out."
        )

    def test_money_is_counted_if_there_are_prices(self, ask, spec):
        asked = ask(GOOD, prices=Prices(1000.0, 2000.0))
        suggested(asked, spec)
        assert list(asked.moves.lines())[1].endswith("10 tokens out, $0.1200.")

    def test_money_is_not_limited_without_prices(self):
        with pytest.raises(InputError, match="needs the prices of the model"):
            LlmSettings(max_usd=1.0)

    def test_nothing_is_asked_of_a_model_that_has_said_nothing(self, ask):
        assert list(ask(GOOD).moves.lines()) == []

    @pytest.mark.parametrize(
        "limits",
        [{"max_tokens": 30_000}, {"max_usd": 30_000.0, "prices": Prices(1e6, 1e6)}],
    )
    def test_a_question_that_could_exceed_the_budget_is_not_asked(self, limits, ask, spec):
        asked = ask(says("no", input=5_000, output=23_000), **limits)
        assert refused(asked, spec)[0] == "garbled"
        for threads in (64, 128):
            state = replace(spec.baseline, launch=replace(spec.launch, block=(threads,)))
            assert refused(asked, spec, state) == ("budget", "its budget is spent")
        assert asked.told == ["m is not asked any more, because its budget is spent: rules only."]
        assert len(asked.server.requests) == 1

    @pytest.mark.parametrize(("max_usd", "requests"), [(0.0, 0), (1e6, 1)])
    def test_answers_that_cost_nothing_are_limited_by_what_questions_cost(
        self, max_usd, requests, ask, spec
    ):
        asked = ask(GOOD, max_usd=max_usd, prices=Prices(1.0, 0.0))
        suggested(asked, spec)
        assert len(asked.server.requests) == requests

    def test_an_answer_may_be_as_long_as_the_budget_lasts(self, ask, spec):
        asked = ask(GOOD, max_tokens=12_000)
        suggested(asked, spec)
        [(_, body)] = asked.server.requests
        sent = len(json.dumps(body["input"])) + len(json.dumps(body["text"]))
        assert 1_024 <= body["max_output_tokens"] < 12_000 - sent / 2
        assert body["max_output_tokens"] + sent > 11_000

    def test_what_the_endpoint_does_not_count_counts_as_the_most(self, ask, spec):
        asked = ask(sends(b'{"output": []}'))
        suggested(asked, spec)
        asked_tokens, answered = asked.moves.consultant.tokens
        [(_, body)] = asked.server.requests
        assert answered == body["max_output_tokens"]
        assert asked_tokens > len(body["input"][1]["content"])


class TestLog:
    def test_a_search_that_is_continued_asks_nothing_twice(self, ask, spec, tmp_path):
        asked = ask(STRAY, answers(source=BETTER), says("other"))
        first = suggested(asked, spec)
        again = asked.on(tmp_path / "k")
        assert suggested(asked, spec, moves=again) == first
        assert len(asked.server.requests) == 2
        assert again.consultant.tokens == asked.moves.consultant.tokens

    def test_what_was_not_answered_stays_so(self, ask, spec, tmp_path):
        asked = ask(fails(401), GOOD)
        assert refused(asked, spec)[0] == "away"
        asked.endpoint.away = ""
        again = asked.on(tmp_path / "k")
        why = "it does not accept the key (HTTP status 401)"
        assert refused(asked, spec, moves=again) == ("away", why)
        other = replace(spec.baseline, launch=replace(spec.launch, block=(64,)))
        assert isinstance(suggested(asked, spec, other, again), Application)

    def test_a_torn_line_is_asked_again(self, ask, spec, tmp_path):
        asked = ask(GOOD)
        first = suggested(asked, spec)
        path = tmp_path / "k/llm.jsonl"
        path.write_bytes(path.read_bytes()[:-20])
        assert suggested(asked, spec, moves=asked.on(tmp_path / "k")) == first
        assert len(asked.server.requests) == 2

    def test_a_damaged_log_is_told_in_one_sentence(self, ask, tmp_path):
        asked = ask(GOOD)
        (tmp_path / "k/llm.jsonl").write_text("[]\n")
        with pytest.raises(InputError, match=r"The list of answers .* cannot be used"):
            asked.on(tmp_path / "k")

    def test_the_key_is_not_in_it(self, ask, spec, tmp_path):
        suggested(ask(GOOD), spec)
        assert KEY not in (tmp_path / "k/llm.jsonl").read_text()


def _result(node: SearchNode) -> Result:
    power_w = None if node.time_ms is None else 100.0
    return Result(
        id=node.id,
        outcome=node.outcome,
        emulated=True,
        objective=Metric.ENERGY,
        time_ms=node.time_ms,
        power_w=power_w,
        energy_mj=None if node.time_ms is None else node.time_ms * 100,
        floor_ms=0.01,
    )


def _assert_strict(schema: dict[str, Any]) -> None:
    """Structured output needs all properties, and no others, at all levels."""
    if "properties" in schema:
        assert schema["required"] == list(schema["properties"])
        assert schema["additionalProperties"] is False
    for part in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        _assert_strict(part)
    if "items" in schema:
        _assert_strict(schema["items"])


def test_the_vocabulary_is_that_of_the_rules():
    from pytest_gpuenergy.search import MOVES

    assert {move.name for move in MOVES} <= VOCABULARY.keys()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.lists(st.fixed_dictionaries({}, optional={"type": JSON, "content": JSON}))
        for name in ("output", "status", "usage", "choices")
    },
)


@pytest.mark.parametrize("protocol", ["responses", "chat"])
@pytest.mark.slow
@given(document=JSON | PARTS)
def test_any_document_is_a_reply_or_refused(protocol, document):
    with suppress(FormError):
        assert isinstance(read_reply(json.dumps(document).encode(), protocol), Reply)

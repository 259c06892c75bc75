from .anchor_drift import (
    BOUND as BOUND,
    judge_check as judge_check,
    unchecked as unchecked,
)
from .baseline_update import (
    update as update,
)
from .comparison import (
    Baseline as Baseline,
    Comparison as Comparison,
    Identities as Identities,
    Unmatched as Unmatched,
    compare as compare,
    shared_identities as shared_identities,
)
from .comparison_views import (
    BUDGET_VERDICTS as BUDGET_VERDICTS,
    SHOWN as SHOWN,
    annotate as annotate,
    annotate_counts as annotate_counts,
    annotation as annotation,
    budget_words as budget_words,
    describe as describe,
    json_document as json_document,
    limited as limited,
    loss as loss,
    markdown as markdown,
    missing_words as missing_words,
    shift_lines as shift_lines,
    shift_problem as shift_problem,
    summary as summary,
    tally as tally,
    terminal as terminal,
    verdict_values as verdict_values,
    verdicts_of as verdicts_of,
    wanted as wanted,
)
from .error_rates import (
    Looks as Looks,
    Tails as Tails,
    count_comparisons as count_comparisons,
    tail_of as tail_of,
)
from .gate_settings import (
    GateSettings as GateSettings,
    parse_percent as parse_percent,
)
from .run_history import (
    LEAST as LEAST,
    change_points as change_points,
    history as history,
    history_json as history_json,
    history_markdown as history_markdown,
    history_text as history_text,
    trend_values as trend_values,
)
from .verdict import (
    SLIGHT_FLAGS as SLIGHT_FLAGS,
    Doubt as Doubt,
    Judgement as Judgement,
    Verdict as Verdict,
    decide as decide,
    doubts_of_flags as doubts_of_flags,
    doubts_of_pair as doubts_of_pair,
    fails as fails,
    judge_budget as judge_budget,
    widened as widened,
)

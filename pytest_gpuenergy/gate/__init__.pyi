from .anchor_drift import judge_check as judge_check, unchecked as unchecked
from .baseline_update import update as update
from .comparison_views import (
    BUDGET_VERDICTS as BUDGET_VERDICTS,
    annotate as annotate,
    annotate_all as annotate_all,
    annotate_counts as annotate_counts,
    budget_words as budget_words,
    describe as describe,
    in_github_actions as in_github_actions,
    json_document as json_document,
    loss as loss,
    markdown as markdown,
    missing_words as missing_words,
    page_verdicts as page_verdicts,
    shift_lines as shift_lines,
    shift_problem as shift_problem,
    tally as tally,
    terminal as terminal,
    verdict_values as verdict_values,
)
from .error_rates import (
    MISS as MISS,
    Looks as Looks,
    Tails as Tails,
    bonferroni_tail as bonferroni_tail,
    count_comparisons as count_comparisons,
)
from .gate_settings import GateSettings as GateSettings, parse_percent as parse_percent
from .item_identities import (
    Identities as Identities,
    shared_identities as shared_identities,
)
from .run_comparison import (
    Baseline as Baseline,
    Comparison as Comparison,
    Unmatched as Unmatched,
    compare as compare,
)
from .run_history import (
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
    change_interval as change_interval,
    decide as decide,
    decide_in_doubt as decide_in_doubt,
    fails as fails,
    flag_doubts as flag_doubts,
    judge_budget as judge_budget,
    pair_doubts as pair_doubts,
    widened as widened,
)

from .annotations import (
    SHOWN as SHOWN,
    annotate as annotate,
    annotate_counts as annotate_counts,
    annotation as annotation,
    limited as limited,
    wanted as wanted,
)
from .baseline import update as update
from .changepoints import LEAST as LEAST, change_points as change_points
from .comparison import (
    Baseline as Baseline,
    Comparison as Comparison,
    Unmatched as Unmatched,
    compare as compare,
)
from .doubt import (
    SLIGHT_FLAGS as SLIGHT_FLAGS,
    Doubt as Doubt,
    doubts_of_flags as doubts_of_flags,
    doubts_of_pair as doubts_of_pair,
    widened as widened,
)
from .drift import BOUND as BOUND, judge_check as judge_check, unchecked as unchecked
from .history import history as history
from .history_views import (
    history_json as history_json,
    history_markdown as history_markdown,
    history_text as history_text,
)
from .identity import Identities as Identities, shared_identities as shared_identities
from .page import (
    trend_values as trend_values,
    verdict_values as verdict_values,
    verdicts_of as verdicts_of,
)
from .relative import Tails as Tails
from .sequential import Looks as Looks
from .settings import GateSettings as GateSettings, parse_percent as parse_percent
from .shift_views import shift_lines as shift_lines, shift_problem as shift_problem
from .verdict import (
    Judgement as Judgement,
    Verdict as Verdict,
    count_comparisons as count_comparisons,
    decide as decide,
    fails as fails,
    judge_budget as judge_budget,
    tail_of as tail_of,
)
from .views import (
    BUDGET_VERDICTS as BUDGET_VERDICTS,
    budget_words as budget_words,
    describe as describe,
    json_document as json_document,
    label as label,
    loss as loss,
    markdown as markdown,
    missing_words as missing_words,
    summary as summary,
    tally as tally,
    terminal as terminal,
)

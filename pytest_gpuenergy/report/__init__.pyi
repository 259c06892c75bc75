from .anchor import anchor_lines as anchor_lines
from .best_lines import best_lines as best_lines
from .best_perf import (
    AS_EXACT as AS_EXACT,
    best_perf as best_perf,
    write_best_perf as write_best_perf,
)
from .board_lines import (
    board_lines as board_lines,
    board_table as board_table,
    calibration_lines as calibration_lines,
)
from .boards import (
    UNCALIBRATED as UNCALIBRATED,
    Boards as Boards,
    board_spread as board_spread,
    calibrated_report as calibrated_report,
    check_gains as check_gains,
)
from .clock_saving import clock_saving as clock_saving
from .counterparts import Counterparts as Counterparts
from .differences import differences as differences
from .durations import duration_lines as duration_lines
from .figure_table import (
    SORTS as SORTS,
    Column as Column,
    Row as Row,
    arranged as arranged,
    check_sort as check_sort,
    figure_table as figure_table,
)
from .html.axes import MOST_TEXTS as MOST_TEXTS
from .html.data import page_data as page_data
from .html.embed import column as column
from .html.page import html_page as html_page, write_html as write_html
from .html.parts import (
    check_html as check_html,
    embedded_json as embedded_json,
    script_hash as script_hash,
    vega_script as vega_script,
)
from .html.rows import FIGURES as FIGURES, finite as finite
from .ids import ids_of as ids_of, is_named as is_named, with_item_names as with_item_names
from .legacy import (
    Figures as Figures,
    is_legacy as is_legacy,
    load_legacy as load_legacy,
    outputs_in as outputs_in,
    parse_figures as parse_figures,
)
from .markdown import markdown as markdown
from .mean import mean_of_runs as mean_of_runs
from .merging import merge as merge
from .models import (
    Models as Models,
    by_model as by_model,
    counterparts_by_model as counterparts_by_model,
)
from .plot import draw as draw
from .roofline import Roofline as Roofline, arithmetic as arithmetic, roofline as roofline
from .schema import (
    DIALECT as DIALECT,
    report_schema as report_schema,
    schema_document as schema_document,
    schema_of as schema_of,
)
from .shift import (
    USUAL_SCATTER as USUAL_SCATTER,
    CommonShift as CommonShift,
    Pair as Pair,
    Place as Place,
    Shifts as Shifts,
    common_shifts as common_shifts,
    energy_source as energy_source,
    pair as pair,
    pairs as pairs,
)
from .standings import standings as standings
from .store import (
    HOME as HOME,
    Report as Report,
    RunFolder as RunFolder,
    durations_s as durations_s,
    files_read as files_read,
    find_run as find_run,
    is_run as is_run,
    latest_only as latest_only,
    latest_run as latest_run,
    load_report as load_report,
)
from .subjects import Subjects as Subjects
from .tables import (
    ROWS_SHOWN as ROWS_SHOWN,
    best_of_each as best_of_each,
    energy as energy,
    group as group,
    idle_caps as idle_caps,
    markdown_table as markdown_table,
    ordered as ordered,
    pareto as pareto,
    summary as summary,
    time as time,
    words as words,
)
from .text import (
    figures as figures,
    markdown_text as markdown_text,
    signed_percent as signed_percent,
    spread as spread,
)
from .tidy import (
    check_parquet as check_parquet,
    tidy_columns as tidy_columns,
    tidy_csv as tidy_csv,
    tidy_rows as tidy_rows,
    write_parquet as write_parquet,
)
from .ties import (
    MISSED as MISSED,
    Tie as Tie,
    cap_words as cap_words,
    kernel_words as kernel_words,
    near_front as near_front,
    tie as tie,
)
from .trackers import bencher_json as bencher_json, github_action_json as github_action_json
from .views import (
    Target as Target,
    check_targets as check_targets,
    check_writable as check_writable,
    json_document as json_document,
    updating as updating,
    write_classic_csv as write_classic_csv,
    write_json as write_json,
    write_view as write_view,
)

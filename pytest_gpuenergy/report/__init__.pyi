from .analysis.best_kernels import (
    MAX_MISSED as MAX_MISSED,
    best_of_each as best_of_each,
    tie as tie,
)
from .analysis.board_calibration import (
    Boards as Boards,
    calibrated_report as calibrated_report,
    check_gains as check_gains,
)
from .analysis.gpu_models import (
    Counterparts as Counterparts,
    Models as Models,
    by_model as by_model,
)
from .analysis.rooflines import Roofline as Roofline, arithmetic as arithmetic, roofline as roofline
from .analysis.run_changes import (
    USUAL_SCATTER as USUAL_SCATTER,
    CommonShift as CommonShift,
    Pair as Pair,
    ShiftPlace as ShiftPlace,
    Shifts as Shifts,
    common_shifts as common_shifts,
    differences as differences,
    energy_source as energy_source,
    pair as pair,
    pairs as pairs,
)
from .analysis.subjects import (
    Subjects as Subjects,
    is_named as is_named,
    ordered as ordered,
    shown_ids as shown_ids,
    with_item_names as with_item_names,
)
from .html.html_page import (
    column as column,
    embedded_json as embedded_json,
    html_page as html_page,
    script_hash as script_hash,
    write_html as write_html,
)
from .html.page_data import finite as finite, page_data as page_data
from .legacy import (
    LaunchFigures as LaunchFigures,
    find_outputs as find_outputs,
    is_legacy as is_legacy,
    load_legacy as load_legacy,
    parse_figures as parse_figures,
)
from .merged_runs import mean_of_runs as mean_of_runs, merge as merge
from .store import (
    BOARD_CHECK as BOARD_CHECK,
    CHECK as CHECK,
    HOME as HOME,
    IGNORE_SIGN as IGNORE_SIGN,
    MEASUREMENT as MEASUREMENT,
    RECORD_TYPES as RECORD_TYPES,
    RUN_FILES as RUN_FILES,
    STATION as STATION,
    Report as Report,
    RunFolder as RunFolder,
    durations_s as durations_s,
    files_read as files_read,
    find_run as find_run,
    is_run as is_run,
    latest_run as latest_run,
    load_report as load_report,
    write_errors as write_errors,
)
from .views.figures import (
    energy as energy,
    figures as figures,
    markdown_lines as markdown_lines,
    markdown_table as markdown_table,
    markdown_text as markdown_text,
    signed_percent as signed_percent,
    spread as spread,
    time as time,
    words as words,
)
from .views.markdown_report import markdown as markdown
from .views.other_formats import (
    bencher_json as bencher_json,
    github_action_json as github_action_json,
    write_best_perf as write_best_perf,
    write_classic_csv as write_classic_csv,
)
from .views.report_document import (
    DIALECT as DIALECT,
    document_schema as document_schema,
    json_document as json_document,
    schema_document as schema_document,
    write_json as write_json,
)
from .views.side_by_side import side_by_side as side_by_side
from .views.terminal_summary import (
    anchor_lines as anchor_lines,
    best_lines as best_lines,
    board_lines as board_lines,
    calibration_lines as calibration_lines,
    check_sort as check_sort,
    duration_lines as duration_lines,
    idle_caps as idle_caps,
    summary as summary,
)
from .views.tidy_table import (
    check_parquet as check_parquet,
    tidy_csv as tidy_csv,
    write_parquet as write_parquet,
)
from .views.vega import check_html as check_html, draw as draw, vega_script as vega_script
from .views.view_files import (
    ViewTarget as ViewTarget,
    check_targets as check_targets,
    check_writable as check_writable,
    updating as updating,
    write_view as write_view,
)

from .exhibit import (
    Exhibit as Exhibit,
    begin_export as begin_export,
    export as export,
    export_failure as export_failure,
    export_problems as export_problems,
    load_exhibits as load_exhibits,
)
from .pairs import compare_pairs as compare_pairs
from .revisions import (
    check_paths as check_paths,
    check_sides as check_sides,
    load_side as load_side,
    resolve_commit as resolve_commit,
    run_pytest as run_pytest,
)
from .rounds import Turns as Turns, take_turns as take_turns

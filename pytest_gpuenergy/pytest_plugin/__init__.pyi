from ._compat import keep_rootdir as keep_rootdir, options_of_group as options_of_group
from .distribution import WorkloadScheduling as WorkloadScheduling
from .energy_benchmark import EnergyBenchmark as EnergyBenchmark
from .fleet import prepare as prepare
from .groups import groups_of as groups_of
from .header import header_lines as header_lines
from .labels import item_label as item_label, kernel_label as kernel_label
from .left_out import left_out_lines as left_out_lines
from .names import (
    BENCH as BENCH,
    BUDGET_MARKERS as BUDGET_MARKERS,
    DEVICE_FIXTURE as DEVICE_FIXTURE,
    EDP_MARKER as EDP_MARKER,
    ENERGY_MARKER as ENERGY_MARKER,
    POWERCAP_FIXTURE as POWERCAP_FIXTURE,
    RUN as RUN,
)
from .option_table import (
    WITH_VALUES as WITH_VALUES,
    add_options as add_options,
    any_option_is_set as any_option_is_set,
    named_device as named_device,
    named_fleet as named_fleet,
    runs_items as runs_items,
)
from .options import Options as Options
from .order import Place as Place, interleave as interleave
from .product_items import test_gemm as test_gemm
from .products import (
    NETWORK as NETWORK,
    records_folder as records_folder,
    sources_said as sources_said,
)
from .progress import Progress as Progress
from .replay_items import test_replay as test_replay
from .run import RunPlugin as RunPlugin
from .search_items import test_search as test_search
from .sentences import BadOptionError as BadOptionError, shorten as shorten
from .xdist import WorkerPlugin as WorkerPlugin

from ._compat import keep_rootdir as keep_rootdir, options_of_group as options_of_group
from .benches.bench_items import (
    test_conv2d_contenders as test_conv2d_contenders,
    test_gemm as test_gemm,
    test_replay as test_replay,
    test_search as test_search,
)
from .benches.products import (
    CONVOLUTIONS as CONVOLUTIONS,
    NETWORK as NETWORK,
    chosen_contenders as chosen_contenders,
    compares_convolutions as compares_convolutions,
    left_out_lines as left_out_lines,
    records_folder as records_folder,
    source_lines as source_lines,
)
from .declared_options import (
    BENCH as BENCH,
    BUDGET_MARKERS as BUDGET_MARKERS,
    DEVICE as DEVICE,
    DEVICE_FIXTURE as DEVICE_FIXTURE,
    EDP_MARKER as EDP_MARKER,
    ENERGY_MARKER as ENERGY_MARKER,
    FLEET as FLEET,
    POWERCAP_FIXTURE as POWERCAP_FIXTURE,
    RUN as RUN,
    WITH_VALUES as WITH_VALUES,
    Hooks as Hooks,
    add_options as add_options,
    any_option_is_set as any_option_is_set,
    runs_items as runs_items,
)
from .distribute.deferral import item_groups as item_groups
from .distribute.fleet import prepare as prepare
from .distribute.link import WorkerPlugin as WorkerPlugin
from .distribute.scheduling import WorkloadScheduling as WorkloadScheduling
from .energy_benchmark import (
    EnergyBenchmark as EnergyBenchmark,
    item_label as item_label,
    kernel_label as kernel_label,
)
from .options import PytestOptions as PytestOptions
from .outputs import (
    BadOptionError as BadOptionError,
    Progress as Progress,
    collection_error as collection_error,
    header_lines as header_lines,
    shorten as shorten,
    show_preheat as show_preheat,
)
from .run_plugin import RunPlugin as RunPlugin
from .selection import ItemPlace as ItemPlace, interleave as interleave

from .choose import (
    Contender as Contender,
    Representative as Representative,
    TuneSettings as TuneSettings,
    representatives as representatives,
)
from .loop import (
    SearchLoop as SearchLoop,
    SearchProgress as SearchProgress,
    feedback as feedback,
    live_stream as live_stream,
)
from .raw_log import (
    IDENTITY_FILE as IDENTITY_FILE,
    TRIALS_FILE as TRIALS_FILE,
    RawLog as RawLog,
    Trial as Trial,
    read_trials as read_trials,
    writing as writing,
)
from .record_folders import (
    choose_ranks as choose_ranks,
    find_records as find_records,
    given_folder as given_folder,
    gpu_folder as gpu_folder,
    record_paths as record_paths,
)
from .records import (
    BANDS as BANDS,
    Band as Band,
    Measured as Measured,
    Record as Record,
    RecordFile as RecordFile,
    dump_records as dump_records,
    file_name as file_name,
    read_records as read_records,
)
from .remote_device import RemoteDevice as RemoteDevice
from .search_space import (
    TEMPLATE as TEMPLATE,
    TUNER_NAMES as TUNER_NAMES,
    TVM as TVM,
    Candidate as Candidate,
    Feedback as Feedback,
    RecipeForm as RecipeForm,
    SearchSpace as SearchSpace,
    TunerName as TunerName,
    usual_tuner as usual_tuner,
)
from .template import (
    FIRST_ASYNCHRONOUS as FIRST_ASYNCHRONOUS,
    MAX_PARAMETER as MAX_PARAMETER,
    SHARED_BYTES_PER_CYCLE as SHARED_BYTES_PER_CYCLE,
    WARP_LANES as WARP_LANES,
    CardResources as CardResources,
    Constant as Constant,
    TemplateParameters as TemplateParameters,
    card_resources as card_resources,
    template_text as template_text,
)
from .template_space import (
    ParameterSpace as ParameterSpace,
    TemplateForm as TemplateForm,
    TemplateProposer as TemplateProposer,
    recipe_of as recipe_of,
    recorded_kernel as recorded_kernel,
    untimed as untimed,
)
from .tuner import (
    Tuner as Tuner,
    TuneResult as TuneResult,
    is_kept as is_kept,
    keep_outcome as keep_outcome,
    write_performance as write_performance,
)
from .tuning_gpus import (
    StationConfirmer as StationConfirmer,
    TimingTask as TimingTask,
    TuningGpus as TuningGpus,
)

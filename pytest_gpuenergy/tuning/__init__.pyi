from .card import (
    FIRST_ASYNCHRONOUS as FIRST_ASYNCHRONOUS,
    SHARED_BYTES_PER_CYCLE as SHARED_BYTES_PER_CYCLE,
    WARP_LANES as WARP_LANES,
    Card as Card,
    card_of as card_of,
)
from .confirm import Confirm as Confirm, confirm_with as confirm_with
from .far_device import FarDevice as FarDevice
from .gpu_process import TimingTask as TimingTask
from .loop import Loop as Loop, feedback as feedback
from .names import (
    TEMPLATE as TEMPLATE,
    TUNER_NAMES as TUNER_NAMES,
    TVM as TVM,
    TunerName as TunerName,
    usual_tuner as usual_tuner,
)
from .outcome import (
    TuneResult as TuneResult,
    is_kept as is_kept,
    keep_outcome as keep_outcome,
    write_performance as write_performance,
)
from .progress import SearchProgress as SearchProgress, live_stream as live_stream
from .raw_log import RawLog as RawLog, writing as writing
from .record_folders import (
    choose_ranks as choose_ranks,
    find_records as find_records,
    given_folder as given_folder,
    gpu_folder as gpu_folder,
    record_paths as record_paths,
    records_of as records_of,
)
from .records import (
    BANDS as BANDS,
    Band as Band,
    Measured as Measured,
    Record as Record,
    RecordFile as RecordFile,
    dump_records as dump_records,
    file_name as file_name,
    load_records as load_records,
)
from .representatives import (
    Contender as Contender,
    Representative as Representative,
    representatives as representatives,
)
from .space import (
    Candidate as Candidate,
    Feedback as Feedback,
    RecipeForm as RecipeForm,
    SearchSpace as SearchSpace,
)
from .template import LARGEST as LARGEST, TemplateParameters as TemplateParameters
from .template_form import TemplateForm as TemplateForm, recipe_of as recipe_of, untimed as untimed
from .template_proposer import TemplateProposer as TemplateProposer
from .template_space import ParameterSpace as ParameterSpace, recorded_kernel as recorded_kernel
from .template_text import Constant as Constant, template_text as template_text
from .trial import (
    IDENTITY_FILE as IDENTITY_FILE,
    TRIALS_FILE as TRIALS_FILE,
    Trial as Trial,
    read_trials as read_trials,
)
from .tuner import Tuner as Tuner, TuneSettings as TuneSettings

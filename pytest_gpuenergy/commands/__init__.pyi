from .clean_files import CACHE_FOLDERS as CACHE_FOLDERS
from .command_line import tell as tell
from .doctor_gpu import Check as Check, check_gpus as check_gpus
from .optimize_gpus import claim_gpus as claim_gpus, evaluator_of as evaluator_of

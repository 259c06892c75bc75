from .clean import CACHE_FOLDERS as CACHE_FOLDERS
from .command_line import tell as tell
from .doctor import Check as Check, check_gpus as check_gpus
from .optimize import evaluator_of as evaluator_of

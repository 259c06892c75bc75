from .command_line import tell as tell
from .doctor import Check as Check, check_gpus as check_gpus

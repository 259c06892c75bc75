from .command_line import tell as tell, unknown_words as unknown_words
from .doctor import Check as Check, check_gpus as check_gpus

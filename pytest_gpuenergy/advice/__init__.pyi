from .advise import Advice as Advice, Goal as Goal, advise as advise
from .changes import (
    Candidate as Candidate,
    Moments as Moments,
    Option as Option,
    log_change as log_change,
)
from .field import Field as Field, of_model as of_model, one_model as one_model
from .outcome import Outcome as Outcome, advise_on as advise_on
from .solve import (
    Cost as Cost,
    fastest as fastest,
    least_energy as least_energy,
    least_product as least_product,
    sweep as sweep,
    total as total,
)
from .views import json_document as json_document, markdown as markdown, terminal as terminal

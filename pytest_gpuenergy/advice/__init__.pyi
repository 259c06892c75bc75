from .advice import (
    Advice as Advice,
    Goal as Goal,
    Outcome as Outcome,
    advise as advise,
    advise_on as advise_on,
)
from .advice_views import (
    json_document as json_document,
    markdown as markdown,
    terminal as terminal,
)
from .field import (
    Field as Field,
    select_model as select_model,
    single_model as single_model,
)
from .plans import (
    ChosenPlan as ChosenPlan,
    Moments as Moments,
    PlanOption as PlanOption,
    log_change as log_change,
)
from .solve import (
    Cost as Cost,
    fastest as fastest,
    least_energy as least_energy,
    least_product as least_product,
    sweep as sweep,
    total as total,
)

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
    measured_names as measured_names,
    named_after as named_after,
    select_model as select_model,
    single_model as single_model,
)
from .mode_costs import (
    Acceptance as Acceptance,
    ModeCost as ModeCost,
    ModeCosts as ModeCosts,
    ModeKey as ModeKey,
    compare_modes as compare_modes,
    has_modes as has_modes,
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

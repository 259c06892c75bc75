from .depthwise import DepthwiseParameters as DepthwiseParameters
from .grouped import GroupedParameters as GroupedParameters
from .space import TEMPLATE_FORM as TEMPLATE_FORM, ConvSpace as ConvSpace
from .templates import TEMPLATES as TEMPLATES, Parameters as Parameters, ranked as ranked

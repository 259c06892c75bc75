from .conv_templates import (
    CONV_FORM as CONV_FORM,
    CONV_TEMPLATES as CONV_TEMPLATES,
    ConvParameters as ConvParameters,
    ConvSpace as ConvSpace,
    DepthwiseParameters as DepthwiseParameters,
    GroupedParameters as GroupedParameters,
    rank_conv_kernels as rank_conv_kernels,
)

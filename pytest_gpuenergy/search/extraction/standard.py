"""What kernels use of C's headers, which CUDA text that is compiled alone does not have."""

from __future__ import annotations

from pytest_gpuenergy.search.extraction.tokens import tokens_of
from pytest_gpuenergy.search.source.macros import Macro

_TEXTS = {
    "FLT_MAX": "3.402823466e+38f",
    "FLT_MIN": "1.175494351e-38f",
    "FLT_EPSILON": "1.192092896e-7f",
    "DBL_MAX": "1.7976931348623158e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "INFINITY": "__int_as_float(0x7f800000)",
    "NAN": "__int_as_float(0x7fffffff)",
    "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)",
    "UINT_MAX": "4294967295u",
    "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
    "M_E": "2.7182818284590452354",
    "M_LN2": "0.69314718055994530942",
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
}
"""C11, sections 5.2.4.2 and 7.20, as far as it goes for the GPU; pi and others as in POSIX."""
STANDARD = {name: Macro(None, tuple(tokens_of(text))) for name, text in _TEXTS.items()}

"""The form of recipes of our templates for matrix products."""

from __future__ import annotations

from pytest_gpuenergy.gemm.templates import TEMPLATES, Parameters
from pytest_gpuenergy.tuning import TemplateForm

TEMPLATE_FORM: TemplateForm[Parameters] = TemplateForm(TEMPLATES)

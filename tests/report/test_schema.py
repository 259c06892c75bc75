"""The published JSON Schema matches what the code writes and reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from pytest_gpuenergy.report import json_document, load_report, schema_document
from pytest_gpuenergy.support import ReportError

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(schema_document())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_this_releases():
    path = "docs/reference/report.schema.json"
    published = (ROOT / path).read_text(encoding="utf-8")
    assert published == schema_document(), f"gpuenergy report --schema {path}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "bench" / "results").glob("*/report.json")), ids=lambda p: p.parent.name
)
def test_bundled_reports_are_valid(validator, path):
    validator.validate(json.loads(path.read_text(encoding="utf-8")))


def test_what_is_written_is_valid(validator, report, measured, failed):
    validator.validate(json.loads(json_document(report(measured(1), failed(2)))))


@pytest.mark.parametrize(
    "change",
    [
        {"energy_mj": None},
        {"energy_mj": "7 mJ"},
        {"outcome": "splendid"},
        {"validity": "host_gaps"},
        {"kernel": {"label": "k01"}},
        {"cap": None},
        {"time_ms": -1.0},
        {"trials": [{"seconds": 0, "joules": 1.0, "launches": 1.0, "busy_seconds": 0.0}]},
    ],
    ids=str,
)
def test_schema_and_reader_refuse_the_same(validator, report, measured, tmp_path, change):
    document = json.loads(json_document(report(measured(1))))
    validator.validate(copy.deepcopy(document))
    document["measurements"][0] |= change
    (tmp_path / "report.json").write_text(json.dumps(document))
    with pytest.raises(ReportError):
        load_report(tmp_path / "report.json")
    assert not validator.is_valid(document)


def test_fields_of_a_later_release_are_allowed(validator, report, measured):
    document = json.loads(json_document(report(measured(1))))
    document["measurements"][0]["later"] = 1
    validator.validate(document)


def test_another_version_is_not_valid(validator, report):
    document = json.loads(json_document(report())) | {"schema_version": 2}
    assert not validator.is_valid(document)

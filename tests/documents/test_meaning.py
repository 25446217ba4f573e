"""Each row of the table of meanings in docs/documents.md."""

from __future__ import annotations

import pytest

from tests.documents.frames import document_of
from tests.documents.meaning import RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what)
def test_a_document_means_what_its_row_says(rule: Rule) -> None:
    document, error = document_of(rule.text, f"a {rule.type}")
    assert document == ({"a": rule.found} if rule.document else None)
    assert (error or "") == rule.error

"""The providers' packages define the types that Clew's formats were written for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.domain.models import provider_types
from tests.domain.models.provider_types import PROVIDERS, Schema, inventory, recorded


def check_equal(found: Sequence[str], known: Sequence[str]) -> None:
    """Fail with the names that are new or gone."""
    new, gone = sorted(set(found) - set(known)), sorted(set(known) - set(found))
    assert (new, gone) == ([], []), (
        f"The provider's types have changed. New: {', '.join(new) or 'none'}. Gone: {', '.join(gone) or 'none'}. Read "
        "what is new, let the format read it and send it back, and write the inventory again: "
        "python -m tests.domain.models.provider_types"
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_package_has_no_member_or_field_that_its_format_was_not_written_for(provider: str) -> None:
    known = recorded(provider)
    assert known == sorted(set(known))
    check_equal(inventory(provider), known)


def test_a_new_field_or_member_fails_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text: Schema = {"properties": {"text": {"type": "string"}}}
    block: Schema = {"anyOf": [{"$ref": "#/$defs/Text"}]}
    monkeypatch.setattr(provider_types, "schemas", lambda _: {"Block": {**block, "$defs": {"Text": text}}})
    before = inventory("any")
    text["properties"]["lang"] = {"enum": ["en"], "type": "string"}
    block["anyOf"].append({"$ref": "#/$defs/Sound"})
    with pytest.raises(AssertionError, match=r"New: Block: Sound, Text\.lang, Text\.lang = en\. Gone: none"):
        check_equal(inventory("any"), before)
    with pytest.raises(AssertionError, match=r"New: none\. Gone: Block: Sound, Text\.lang, Text\.lang = en\."):
        check_equal(before, inventory("any"))

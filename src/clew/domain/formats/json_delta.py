"""The difference between two JSON values, which is small if they are nearly equal.

A patch is an object. ``{"is": value}`` replaces the whole value. Otherwise ``set`` has the added keys, ``drop`` names
the removed keys, and ``in`` has patches for keys in both values, or for indexes of equally long lists (as decimal
text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from clew.domain.json_values import Json, JsonObject


def same(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true differ, and the order of keys does not count."""
    return difference(one, other) is None


def difference(old: Json, new: Json) -> JsonObject | None:
    """The patch from ``old`` to ``new``, None if they are the same JSON."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _object_difference(old, new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner: JsonObject = {}
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            if (patch := difference(before, after)) is not None:
                inner[str(place)] = patch
        return {"in": inner} if inner else None
    # Floats are compared as text: 0.0 and -0.0 are equal numbers, but not the same JSON.
    equal = repr(old) == repr(new) if isinstance(old, float) else old == new
    return None if type(old) is type(new) and equal else {"is": new}


def patched(old: Json, patch: JsonObject) -> Json:
    """The result of applying the patch to ``old``, which does not change; patches of missing keys are ignored."""
    if "is" in patch:
        return patch["is"]
    inner = cast("dict[str, JsonObject]", patch.get("in", {}))
    if isinstance(old, list):
        return [patched(item, inner[str(place)]) if str(place) in inner else item for place, item in enumerate(old)]
    if not isinstance(old, dict):
        return old
    dropped = cast("list[str]", patch.get("drop", []))
    kept = {key: patched(item, inner.get(key, {})) for key, item in old.items() if key not in dropped}
    return {**kept, **cast("JsonObject", patch.get("set", {}))}


def _object_difference(old: JsonObject, new: JsonObject) -> JsonObject | None:
    patch: JsonObject = {}
    if added := {key: value for key, value in new.items() if key not in old}:
        patch["set"] = added
    if gone := [key for key in old if key not in new]:
        patch["drop"] = list(gone)
    inner: JsonObject = {}
    for key, before in old.items():
        if key in new and (change := difference(before, new[key])) is not None:
            inner[key] = change
    if inner:
        patch["in"] = inner
    return patch or None

"""A loop's place, and the state that a checkpoint keeps of it."""

from __future__ import annotations

import json
from typing import Any, cast

from . import _arguments as arguments
from ._errors import ConflictError, InvalidError

STATE_VERSION = 1


class Place:
    """A loop's place: epoch, offset of the next global step, and both as text for the native half."""

    __slots__ = ("epoch", "offset", "text")

    def __init__(self, epoch: int, offset: int, text: str | None = None):
        self.epoch, self.offset, self.text = epoch, offset, f"{epoch}:{offset}" if text is None else text

    def state(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Returns the state of a loop at this place of the feed with this identity."""
        return {
            "version": STATE_VERSION,
            "position": self.text,
            "epoch": self.epoch,
            "offset": self.offset,
            # One text: torch.distributed.checkpoint refuses dicts with other keys without saying how feeds differ.
            "feed": json.dumps(identity),
        }

    @staticmethod
    def of_state(state: Any, identity: dict[str, Any]) -> "Place":
        """Returns the place of a state, or of the list of the states of all ranks. Refuses states of other feeds."""
        parts = cast("list[Any]", state) if isinstance(state, list) else []
        if parts and all(isinstance(part, dict) and "position" in part for part in parts):
            # Between epochs all ranks are at the same place, and it is no token, of which each rank has its own.
            positions = list(dict.fromkeys(str(part["position"]) for part in parts))
            if len(positions) > 1 and any(":" in position for position in positions):
                raise InvalidError(
                    f"the states are of different epochs: {', '.join(positions)}",
                    "give the states that all ranks had at one checkpoint",
                )
            state = parts[0] | {"position": ",".join(positions)}
        given = cast(Any, state)
        try:
            version, other, position = given["version"], given["feed"], given["position"]
            # Earlier states have a dict.
            other = json.loads(other) if isinstance(other, str) else other
            feed = other["feed"]
            epoch, offset = arguments.count("epoch", given["epoch"]), arguments.count("offset", given["offset"])
            if not isinstance(position, str):
                raise TypeError
        except (KeyError, TypeError, ValueError):
            raise InvalidError(f"this is not the state of a Forebay loader: {_shown(state)}") from None
        if version != STATE_VERSION:
            raise InvalidError(f"the state is of version {version!r}, and this Forebay reads version {STATE_VERSION}")
        if feed != identity["feed"]:
            raise ConflictError(
                "the state is of another feed: " + "; ".join(_differences(other, identity)),
                "load with the settings, files and query of the run that made the state, or start over",
            )
        return Place(epoch, offset, position)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def _differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describes the differences between two feeds."""
    said = []
    for name, what in (("query", "the query differs"), ("snapshot", "the source files differ")):
        if name in then and name in now and then[name] != now[name]:
            said.append(what)
    for part in ("settings", "operators"):
        # A part that is missing from one identity does not count as a difference.
        pair: tuple[dict[str, Any], dict[str, Any]] = (now[part], then[part]) if part in now and part in then else ({}, {})
        ours, theirs = pair
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                label = f"version of {name}" if part == "operators" else name
                said.append(f"{label} was {_json(theirs.get(name))} and is {_json(ours.get(name))}")
    return said or [f"it was {then.get('feed')} and is {now.get('feed')}"]


def _json(value: Any) -> str:
    return json.dumps(value)

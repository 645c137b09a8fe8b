"""Where a loader stands, as a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sharedds.errors import StateError

__all__ = ["STATE_VERSION", "LoaderState"]

STATE_VERSION: Final = 1
"""Version of the dictionary that :meth:`LoaderState.to_dict` makes."""

_WORD = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where a loader stands: enough to go on with the very next sample, on any machine.

    Nothing in it depends on workers, batch size or ranks, so all of them may change at a resume.

    Args:
        seed: The seed of the loader, any integer.
        epoch: The pass over the data, from 0.
        consumed: Samples of that epoch that all ranks together have been given.
        samples: Samples of the dataset.
        fingerprint: What tells this dataset from others; empty if unknown.
        sampling: The facts of the sampling (``Sampling.facts()``).
        failed: Samples of that epoch that this rank has left out or replaced, since they could not
            be loaded: what its error budget has spent. Left out of the dictionary where it is 0.

    Raises:
        StateError: A value of the wrong kind or out of range, by name.
    """

    seed: int
    epoch: int
    consumed: int
    samples: int
    fingerprint: str = ""
    sampling: Mapping[str, int | str] = field(default_factory=dict)
    failed: int = 0

    def __post_init__(self) -> None:
        _whole("seed", self.seed, least=None)
        for name in ("epoch", "consumed", "samples", "failed"):
            _whole(name, getattr(self, name), least=0)
        if not isinstance(self.fingerprint, str):
            raise _wrong("fingerprint", self.fingerprint, "text")
        if not isinstance(self.sampling, Mapping):
            raise _wrong("sampling", self.sampling, "a mapping of names to numbers or text")
        for name, value in self.sampling.items():
            if not isinstance(name, str):
                raise _wrong("sampling", name, "text for every name in it")
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise _wrong(f"sampling.{name}", value, "a whole number or text")
        drawn = self.sampling.get("count")
        if isinstance(drawn, int) and self.consumed > drawn:
            raise _wrong("consumed", self.consumed, f"at most {drawn}, the samples of an epoch")
        # A caller's own dictionary may change later.
        object.__setattr__(self, "sampling", dict(self.sampling))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, text and dictionaries, ready for JSON."""
        failed = {"failed": self.failed} if self.failed else {}
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            "sampling": dict(self.sampling),
            **failed,
        }

    @classmethod
    def from_dict(cls, state: object) -> LoaderState:
        """Read what :meth:`to_dict` made.

        Raises:
            StateError: Not such a dictionary, or of another version; names the field.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"a loader state is a dictionary made by state_dict(), not a {type(state).__name__}"
            )
        names = ("seed", "epoch", "consumed", "samples", "fingerprint", "sampling")
        for name in ("version", *names):
            if name not in state:
                raise StateError(f"{name} is missing from the loader state", field=name)
        version = state["version"]
        if type(version) is not int or version != STATE_VERSION:
            raise _wrong("version", version, f"{STATE_VERSION}, the one that this release reads,")
        unknown = sorted(str(name) for name in state if name not in {"version", "failed", *names})
        if unknown:
            raise StateError(
                f"{unknown[0]} is no field of a loader state of version {STATE_VERSION}",
                field=unknown[0],
            )
        return cls(**{name: state[name] for name in names}, failed=state.get("failed", 0))


def _whole(name: str, value: object, *, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, "a whole number")
    if least is not None and not least <= value < _WORD:
        raise _wrong(name, value, f"{least} to 2**63 - 1")


def _wrong(name: str, value: object, expected: str) -> StateError:
    return StateError(f"loader state: {name}={value!r}: {expected} is expected", field=name)

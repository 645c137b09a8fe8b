"""Makes a dataset in a process of its own and looks at it there: hazards, pickle, length.

So a dataset that crashes, hangs or fills the memory takes only that process with it, and what it
held is free again before workers are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset

from sharedds.diagnose.audit import Audit, as_sent, audit
from sharedds.diagnose.hazards import Hazard, large_pictures
from sharedds.diagnose.pickles import PickleSize, pickle_size
from sharedds.diagnose.target import Opened

__all__ = ["Examined", "examine", "examined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What is known of a dataset before any worker has started.

    Args:
        kind: The name of its class.
        samples: How many it has; None if it does not say.
        batch_size: That of the DataLoader it was found in, else None.
        audit: Its hazards.
        pickle: The size of its pickle.
        is_iterable: Whether it is read in a row, not by number.
    """

    kind: str
    samples: int | None
    batch_size: int | None
    audit: Audit
    pickle: PickleSize
    is_iterable: bool = False


def examine(opened: Opened, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Look at a dataset and return what was found, as plain values.

    Args:
        opened: The dataset.
        say: Told what is being done.
    """
    say("looking at what the dataset holds")
    found = audit(opened.dataset, collate_fn=opened.collate_fn)
    if str(getattr(opened.worker_init_fn, "__module__", "")).startswith("monai."):
        found = _seeded(found)
    if (large := large_pictures(opened.dataset)) is not None:
        found = replace(found, notes=(*found.notes, large))
    say("measuring its pickle")
    size = pickle_size(opened.dataset)
    if size.error is None and size.is_whole:
        found = as_sent(found, size.nbytes)
    try:
        samples: int | None = len(opened.dataset)
    except Exception:  # it has none, or that is the user's code too
        samples = None
    return {
        "kind": type(opened.dataset).__qualname__,
        "samples": samples,
        "batch_size": opened.batch_size,
        "audit": found.to_dict(),
        "pickle": size.to_dict(),
        "is_iterable": isinstance(opened.dataset, IterableDataset),
    }


def examined(facts: dict[str, Any]) -> Examined:
    """Make the object of the plain values that :func:`examine` returns."""
    found = facts["audit"]
    return Examined(
        kind=facts["kind"],
        samples=facts["samples"],
        batch_size=facts["batch_size"],
        audit=Audit(
            hazards=tuple(Hazard(**each) for each in found["hazards"]),
            notes=tuple(Hazard(**each) for each in found["notes"]),
            may_grow=tuple(found["may_grow"]),
            parts=found["parts"],
            is_whole=found["is_whole"],
        ),
        pickle=PickleSize(**facts["pickle"]),
        is_iterable=facts["is_iterable"],
    )


def _seeded(found: Audit) -> Audit:
    """Return what was found where a ``worker_init_fn`` seeds what the transforms hold."""
    is_seeded = [each.kind == "random" and not each.is_of_class for each in found.hazards]
    notes = [
        replace(each, is_note=True, what=f"{each.what}; MONAI's worker_init_fn seeds it here")
        for each, seeded in zip(found.hazards, is_seeded, strict=True)
        if seeded
    ]
    left = [each for each, seeded in zip(found.hazards, is_seeded, strict=True) if not seeded]
    return replace(found, hazards=tuple(left), notes=(*found.notes, *notes))

"""The trainer's account of samples that could not be loaded.

Records are accounted for in the order in which batches are handed out, each once: the count, the
log and the moment when the budget is exceeded do not depend on the workers, nor on a resume.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sharedds.errors import SampleError
from sharedds.loader.failures import Delivery, ErrorPolicy, FailedSample

__all__ = ["FailureLedger"]

_NAMED = 3  # failures that a summary names


class FailureLedger:
    """Counts, logs and reports what failed, and says when it is too much.

    Args:
        policy: What may fail.
        samples: Samples of an epoch that this trainer is given, if known.

    Attributes:
        failures: The records of the current epoch; after a resume, those since then.
    """

    def __init__(self, policy: ErrorPolicy | None = None, samples: int | None = None) -> None:
        self.policy = policy or ErrorPolicy()
        self.samples = samples
        self.epoch: int | None = None
        self.count = 0
        self.failures: list[FailedSample] = []
        self._is_log_broken = False

    def begin(self, epoch: int, *, count: int = 0) -> None:
        """Begin an epoch, or go on with one of which ``count`` samples have failed already."""
        if self.count and self.epoch != epoch:
            self.finish()  # the loop over it was broken off
        self.epoch, self.count = epoch, count
        self.failures = []

    def count_of(self, epoch: int) -> int:
        """Return how many samples have failed in an epoch; 0 unless it is the current one."""
        return self.count if epoch == self.epoch else 0

    def take(self, data: Any) -> tuple[Any, bool]:
        """Account for a batch that comes from a worker, at the moment when it is handed out.

        Returns:
            The batch, and whether there is one: one of which all samples were left out is not
            handed out, and the next one follows.

        Raises:
            SampleError: The policy raises, nothing helps, or the budget is exceeded.
        """
        if not isinstance(data, Delivery):
            return data, True
        self.account(data.failures)
        return data.batch, not data.is_empty

    def account(self, failures: Iterable[FailedSample]) -> None:
        """Account for the failures of a batch that is handed out now.

        Raises:
            SampleError: The policy raises, nothing helps, or the budget is exceeded.
        """
        for failed in failures:
            if failed.is_final or self.policy.on_error == "raise":
                raise failed.exception()
            if self.epoch != failed.epoch:
                self.begin(failed.epoch)
            self.count += 1
            self.failures.append(failed)
            self._write(failed)
            if self.count == 1 and self.policy.log is None:
                done = f"{self._action(failed)}; a summary follows at the end of the epoch"
                warnings.warn(f"{failed}; it was {done}", stacklevel=2)
            allowed = self.policy.allowed(self.samples)
            if self.count > allowed:
                raise self._exceeded(allowed)

    def finish(self) -> None:
        """End the epoch: warn once of what was left out."""
        if self.count:
            log = f"; all are in {self.policy.log}" if self.policy.log else ""
            warnings.warn(f"{self._summary()}{log}", stacklevel=2)
            self.epoch, self.count = None, 0

    def _summary(self) -> str:
        of = f" of {self.samples:,}" if self.samples is not None else ""
        text = (
            f"{self.count:,}{of} samples of epoch {self.epoch} could not be loaded "
            f"(on_error={self.policy.on_error!r})"
        )
        if not self.failures:
            return f"{text}, all of them before the state was saved from which this run goes on"
        since = " since the resume" if len(self.failures) < self.count else ""
        return f"{text}, the first{since}: {'; '.join(map(str, self.failures[:_NAMED]))}"

    def _exceeded(self, allowed: int) -> SampleError:
        last = self.failures[-1]
        error = SampleError(
            f"{self._summary()}. That is more than the budget of {allowed:,}: repair the samples, "
            f"or allow more. The last traceback:\n\n{last.trace}",
            path=last.path,
            sample=last.index,
            key=last.name,
        )
        error.__cause__ = last.exception().__cause__
        return error

    def _action(self, failed: FailedSample) -> str:
        if failed.replacement is None:
            return "left out"
        return f"replaced by sample {failed.replacement}"

    def _write(self, failed: FailedSample) -> None:
        if self.policy.log is None:
            return
        facts = asdict(failed)
        del facts["cause"], facts["is_final"]
        facts = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
        facts["action"] = self._action(failed)
        try:
            with open(self.policy.log, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(facts) + "\n")
        except OSError as error:
            if not self._is_log_broken:
                self._is_log_broken = True
                warnings.warn(
                    f"{self.policy.log}: the error log cannot be written ({error})", stacklevel=2
                )

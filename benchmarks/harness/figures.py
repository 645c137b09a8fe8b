"""What the benchmarks of reading for training agree on: batches, workers, names of figures."""

from __future__ import annotations

__all__ = ["BATCH", "FIRST", "OWN", "RATE", "SIDE", "TOTAL", "WORKERS"]

BATCH, SIDE, WORKERS = 64, 224, 2
RATE, TOTAL, OWN = "img/s", "MB PSS, peak", "MB anonymous and shm, peak"
FIRST = "s to the first batch"

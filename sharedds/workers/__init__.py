"""Worker processes: how they start, what they are sent, how batches come back, how they end.

Nothing is loaded here: the fork server begins with the smallest of these modules.
"""

from __future__ import annotations

__all__: list[str] = []

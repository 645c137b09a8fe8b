"""Contracts that users' own datasets can be held to, in their own test suites."""

from __future__ import annotations

from sharedds.testing.stream import assert_same_stream

__all__ = ["assert_same_stream"]

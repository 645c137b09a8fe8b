"""Large PNGs are unfiltered strip by strip: the same samples, in hardly more memory than these."""

from __future__ import annotations

import numpy as np
import pictures
import pytest
from PIL import Image

from sharedds.codecs import decode, png
from sharedds.errors import DecodeError


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
def test_strips_give_the_samples_of_the_whole(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every filter, whose rows look at the row above, in each kind of 8-bit PNG."""
    channels = len(mode) if mode != "P" else 1
    steps = pictures.noise(67, 53, channels, seed=3) % 7
    pixels = np.cumsum(np.cumsum(steps, axis=0), axis=1).astype(np.uint8)
    shaped = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    picture = shaped.convert("RGB").quantize(99) if mode == "P" else shaped
    assert picture.mode == mode
    data = pictures.save(picture, "PNG")
    kept = "index" if mode == "P" else "keep"
    whole = decode(data, mode=kept)
    assert np.array_equal(whole.squeeze(), np.asarray(picture))
    for strip in (1, 1000, 5000):
        monkeypatch.setattr(png, "_STRIP", strip)
        assert np.array_equal(decode(data, mode=kept), whole)


def test_a_damaged_strip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large PNG that ends early is no picture."""
    monkeypatch.setattr(png, "_STRIP", 100)
    rows = [bytes(30)] * 20
    assert decode(pictures.png(30, 20, 8, 0, rows)).shape == (20, 30, 3)
    with pytest.raises(DecodeError, match="truncated"):
        decode(pictures.png(30, 20, 8, 0, rows[:-1]))

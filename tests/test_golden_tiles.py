"""Arrays of tiles do not change by accident: fixed bytes, both ways.

``golden/tiles1.lmdb`` was written by :func:`build` when tiles came to version 1 of the format. It
must be read for as long as that is; what is written today must have the same keys and values.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from test_golden import databases

from sharedds.codecs import TileDecoder
from sharedds.store import EncodedArray, Field, Store, StoreWriter, verify
from sharedds.store.array_meta import ArrayMeta, LevelMeta

GOLDEN = Path(__file__).parent / "golden" / "tiles1.lmdb"

#: Tables that grey JPEG tiles of 8 x 8 pixels share.
TABLES = base64.b64decode(
    "/9j/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
    "AQH/xAAfAAABBQEBAQEBAQAAAAAAAAAAAQIDBAUGBwgJCgv/xAC1EAACAQMDAgQDBQUEBAAAAX0BAgMABBEFEiExQQYT"
    "UWEHInEUMoGRoQgjQrHBFVLR8CQzYnKCCQoWFxgZGiUmJygpKjQ1Njc4OTpDREVGR0hJSlNUVVZXWFlaY2RlZmdoaWpz"
    "dHV2d3h5eoOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX2Nna4eLj5OXm5+jp"
    "6vHy8/T19vf4+fr/2Q=="
)
_HEAD = "ffd8ffc0000b080008000801011100ffda0008010100003f00"
TILES = [
    bytes.fromhex(_HEAD + data)
    for data in (
        "fc9fff00826dfecdbff200ff0040ff009f6ff965feefb57fffd9",
        "f8ff00fe09b7fb36ff00c803fd03fe7dbfe597fbbed5ffd9",
        "",
        "fa03fe09b7fb36ff00c803fd03fe7dbfe597fbbed5ffd9",
    )
]
TILES[2] = b""  # not there
META = (
    '{"dtype":"|u1","levels":[{"shape":[12,14,1],"chunk":[8,8,1],"tables":"'
    + base64.b64encode(TABLES).decode()
    + '","colour":"grey"},{"shape":[6,7,1],"chunk":[6,7,1]}],"attrs":{"background":[200]}}'
)
#: The second level, with tables of its own.
SMALL = TABLES[:-2] + TILES[3][2:]

CHUNKS = {
    "0000000000000000000000000000": TILES[0],
    "0000000000000000000000000001": TILES[1],
    "0000000000000000000000000002": b"",
    "0000000000000000000000000003": TILES[3],
    "0000000000000000000100000000": SMALL,
}
FIELD = {"name": "image", "kind": "blocks", "codec": "jpeg", "quality": 90, "chunk": [8, 8, 1]}
DIGEST = "e9713f0cafb66835fb656bd045091379"


def build(path: Path) -> None:
    """Write one picture of 12 x 14 pixels in four tiles, and a smaller one in one."""
    levels = (
        LevelMeta((12, 14, 1), (8, 8, 1), TABLES, "grey"),
        LevelMeta((6, 7, 1), (6, 7, 1)),
    )
    blocks = [*((0, number, tile) for number, tile in enumerate(TILES)), (1, 0, SMALL)]
    meta = ArrayMeta("|u1", levels, attrs={"background": [200]})
    with StoreWriter(path, schema={"image": Field("jpeg", chunk=(8, 8, 1))}) as writer:
        writer.add({"image": EncodedArray(meta, blocks)})


def test_tiles_that_are_written_today_are_version_1(tmp_path: Path) -> None:
    """Keys and values are those of the specification."""
    build(tmp_path / "new.lmdb")
    found = databases(tmp_path / "new.lmdb")
    assert {key.hex(): value for key, value in found["chunks"].items()} == CHUNKS
    assert found["columns"][b"image@meta" + bytes(5)].decode() == META
    header = json.loads(found["header"][b"header"])
    assert (header["version"], header["fields"], header["digest"]) == (1, [FIELD], DIGEST)


@pytest.fixture(scope="module")
def store() -> Store:
    """The file that was written then."""
    return Store(GOLDEN)


def test_the_golden_tiles_read_to_known_pixels(store: Store) -> None:
    """Cut where they are larger than what is left; background where there is none."""
    decoder = TileDecoder("jpeg", "u1", tables=TABLES)
    first, second, _, last = (
        decoder.decode(tile, (8, 8, 1)) if tile else np.full((8, 8, 1), 200) for tile in TILES
    )
    picture = store.array(0, "image")
    assert first[0, :4, 0].tolist() == [0, 16, 32, 48]
    assert np.array_equal(picture[:8], np.hstack([first, second[:, :6]]))
    assert np.array_equal(picture[8:], np.hstack([np.full((4, 8, 1), 200), last[:4, :6]]))
    assert np.array_equal(picture.level(1)[:], last[:6, :7])


def test_the_golden_tiles_verify(store: Store) -> None:
    """Their digest is that of their content."""
    assert verify(GOLDEN, untrusted=True).ok
    assert store.digest == DIGEST

"""Pictures and blocks of numbers as bytes, both ways; safe with any bytes at all."""

from sharedds.codecs.blocks import (
    BLOCK_CODECS,
    MAX_EFFORT,
    BlockDecoder,
    decode_block,
    encode_block,
)
from sharedds.codecs.formats import IMAGE_FORMATS, ImageHeader, probe, sniff
from sharedds.codecs.images import (
    DEFAULT_MAX_PIXELS,
    check,
    decode,
    encode_image,
    encode_jpeg,
    resize,
)
from sharedds.codecs.jpeg import CHROMA
from sharedds.codecs.pixels import orient, stored_box
from sharedds.codecs.scratch import Scratch
from sharedds.codecs.tiff_plain import plain_size
from sharedds.codecs.tiles import TILE_CODECS, TileDecoder, encode_tile, tile_problem

__all__ = [
    "BLOCK_CODECS",
    "CHROMA",
    "DEFAULT_MAX_PIXELS",
    "IMAGE_FORMATS",
    "MAX_EFFORT",
    "TILE_CODECS",
    "BlockDecoder",
    "ImageHeader",
    "Scratch",
    "TileDecoder",
    "check",
    "decode",
    "decode_block",
    "encode_block",
    "encode_image",
    "encode_jpeg",
    "encode_tile",
    "orient",
    "plain_size",
    "probe",
    "resize",
    "sniff",
    "stored_box",
    "tile_problem",
]

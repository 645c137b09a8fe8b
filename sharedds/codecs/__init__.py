"""Pictures and blocks of numbers as bytes, both ways; safe with any bytes at all."""

from sharedds.codecs.blocks import BLOCK_CODECS, decode_block, encode_block
from sharedds.codecs.formats import IMAGE_FORMATS, ImageHeader, probe, sniff
from sharedds.codecs.images import (
    DEFAULT_MAX_PIXELS,
    check,
    decode,
    encode_image,
    encode_jpeg,
    resize,
)

__all__ = [
    "BLOCK_CODECS",
    "DEFAULT_MAX_PIXELS",
    "IMAGE_FORMATS",
    "ImageHeader",
    "check",
    "decode",
    "decode_block",
    "encode_block",
    "encode_image",
    "encode_jpeg",
    "probe",
    "resize",
    "sniff",
]

"""Which part of a picture is shown, and how: decided before anything is decoded."""

from sharedds.views.crops import CenterCrop, RandomCrop, RandomResizedCrop
from sharedds.views.full import Full, Resize
from sharedds.views.view import Places, View

__all__ = [
    "CenterCrop",
    "Full",
    "Places",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "View",
]

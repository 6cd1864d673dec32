"""Preprocessing and augmentation of samples, applied in the order listed.

    values       scale, normalization, LBANN's layout
    geometry     flips, crops, padding, holes
    resampling   resizing and affine maps
    color        channels, brightness, contrast, saturation
    mixing       mixup and CutMix, which need a second sample

A transform is a value (its fields are those of LBANN's message) with one method on a whole batch: an array or a tensor
(n, *shape). Images are (n, channels, height, width), channels red, green, blue. As long as they are bytes, the
arithmetic is LBANN's: each transform rounds to 0 ... 255. A transform of values makes them float32; images that are
float32 before are not rounded, and are clipped to 0 ... 255 where LBANN clips. Random transforms draw from `Draws`, so
what a sample gets depends on (seed, epoch, sample) and on nothing else.
"""

from descend.data.transforms.base import Transform
from descend.data.transforms.geometry import CenterCrop, Cutout, HorizontalFlip, Pad, RandomCrop, VerticalFlip
from descend.data.transforms.mixing import CutMix, MixingTransform, Mixup
from descend.data.transforms.resampling import (
    RandomAffine,
    RandomResizedCrop,
    RandomResizedCropWithFixedAspectRatio,
    Resize,
    ResizedCenterCrop,
)
from descend.data.transforms.values import (
    RESCALES,
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    Colorize,
    ColorJitter,
    Grayscale,
    Normalize,
    NormalizeToLBANNLayout,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
)

TRANSFORMS: tuple[type[Transform], ...] = (
    AdjustBrightness,
    AdjustContrast,
    AdjustSaturation,
    CenterCrop,
    ColorJitter,
    Colorize,
    CutMix,
    Cutout,
    Grayscale,
    HorizontalFlip,
    Mixup,
    Normalize,
    NormalizeToLBANNLayout,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    RandomResizedCropWithFixedAspectRatio,
    Resize,
    ResizedCenterCrop,
    SampleNormalize,
    Scale,
    ToLBANNLayout,
    VerticalFlip,
)

__all__ = [
    "RESCALES",
    "TRANSFORMS",
    "AdjustBrightness",
    "AdjustContrast",
    "AdjustSaturation",
    "CenterCrop",
    "ColorJitter",
    "Colorize",
    "CutMix",
    "Cutout",
    "Grayscale",
    "HorizontalFlip",
    "MixingTransform",
    "Mixup",
    "Normalize",
    "NormalizeToLBANNLayout",
    "Pad",
    "RandomAffine",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomResizedCropWithFixedAspectRatio",
    "Resize",
    "ResizedCenterCrop",
    "SampleNormalize",
    "Scale",
    "ToLBANNLayout",
    "Transform",
    "VerticalFlip",
]

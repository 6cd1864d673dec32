"""The form of a data set: by images from everywhere in it, in any order."""

import numpy as np
import pytest
from data.test_pictures import COLOR, DEEP, GRAY, encoded, form_of
from PIL import Image

from descend.data.image_survey import spread, strided
from descend.data.pictures import ImageKind
from descend.errors import DataError


def test_many_images_are_looked_at_and_spread_over_all():
    assert spread(3, 5) == [0, 1, 2]
    assert spread(11, 3) == [0, 5, 10]
    assert sorted(strided(5000, 1024)) == spread(5000, 1024)
    assert max(np.diff(sorted(strided(5000, 1024)[:64]))) < 200
    odd, contents = encoded(COLOR), [encoded(GRAY)] * 900
    for place in (0, 1, 450, 899):
        assert form_of(*contents[:place], odd, *contents[place + 1 :]).colors == "rgb"


def test_the_form_is_of_sound_images_and_those_of_other_roles():
    broken = encoded(COLOR)[:30]
    assert form_of(broken, encoded(GRAY)).colors == "grey"
    known = (("image", ImageKind("rgb", 16)),)
    form = form_of(encoded(GRAY), kinds_beside=known)
    assert (form.colors, form.depth) == ("rgb", 16)
    assert form_of(encoded(GRAY), kinds_beside=known, colors="grey", depth=8).field.shape[0] == 1
    with pytest.raises(DataError, match=r"sample 0 \(image 0\) is the first image and cannot be read: .*32 bits"):
        form_of(encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"))

"""Names and choices of canonical pictures."""

from liesparse.canonical import picture_names
from liesparse.figures import spread


def test_a_sheet_shows_pictures_from_first_to_last():
    chosen = spread(100, 40)
    assert (chosen[0], len(chosen) <= 40, chosen[-1] >= 90) == (0, True, True)
    assert spread(3, 40) == [0, 1, 2]
    assert spread(0, 40) == []


def test_names_of_pictures_do_not_collide():
    names = ["a/1.jpg", "a/1.png", "a/2.png", "sheet.jpg", "0017", "b.c/3.tif"]
    assert picture_names(names) == ["a/1.jpg.png", "a/1.png.png", "a/2.png", "sheet.jpg.png", "0017.png", "b.c/3.png"]

"""The map of the transformer: what is lit in which chapter, and that everything named is drawn."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from classroom import map_drawing, transformer_map
from classroom.map import PARTS

CHAPTERS = range(1, 19)


def test_parts_before_a_chapter_are_built_and_its_own_stand_out():
    parts = transformer_map(3).parts
    assert parts["dot product"] == "built"
    assert parts["softmax"] == parts["scale"] == parts["weighted average"] == "this chapter"
    assert parts["self-attention"] == parts["generation"] == "to come"


def test_nothing_is_built_at_first_and_all_at_last():
    assert set(transformer_map(1).parts.values()) == {"to come"}
    assert set(transformer_map(22).parts.values()) == {"built"}


def test_every_part_is_drawn_and_every_drawn_part_is_known():
    drawn = {box.part for box in (*map_drawing.BOXES, *map_drawing.FRAMES)} | {
        part for part, _ in map_drawing.PART_ARROWS
    }
    assert drawn == {part.name for part in PARTS}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_drawing_is_well_formed_and_scalable(chapter):
    svg = transformer_map(chapter)._repr_svg_()
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") and root.get("height") is None
    assert "max-width: 100%" in root.get("style")
    assert min(map(float, re.findall(r'font-size="([\d.]+)"', svg))) >= 13


def test_only_this_chapters_look_changes_with_the_chapter():
    emphasis = f'fill="{map_drawing.LOOKS["this chapter"].fill}"'
    legend = 1
    assert transformer_map(1)._repr_svg_().count(emphasis) == 0
    assert transformer_map(2)._repr_svg_().count(emphasis) == legend + 1
    assert transformer_map(5)._repr_svg_().count(emphasis) == legend + 2  # positions, in encoder and decoder


def test_boxes_stay_inside_the_drawing():
    for box in (*map_drawing.BOXES, *map_drawing.FRAMES):
        assert 0 < box.x < box.x + box.width < map_drawing.WIDTH, box
        assert 0 < box.y < box.y + box.height < map_drawing.HEIGHT, box


def arrows_into_the_left_of(box):
    return [arrow for arrow in map_drawing.ARROWS if arrow[-1][0] == box.x and 0 < arrow[-1][1] - box.y < box.height]


SUBLAYERS = [box for box in map_drawing.BOXES if "attention" in box.part or box.part == "feed-forward"]


@pytest.mark.parametrize("sublayer", SUBLAYERS, ids=lambda box: f"{box.label}-{box.x}")
def test_each_sublayer_has_a_residual_path_into_the_norm_above_it(sublayer):
    norm = max((box for box in map_drawing.BOXES if box.x == sublayer.x and box.y < sublayer.y), key=lambda box: box.y)
    assert norm.part == "add and norm"
    [(start, *bends, _)] = arrows_into_the_left_of(norm)
    assert sublayer.x < start[0] < sublayer.x + sublayer.width and start[1] > sublayer.y + sublayer.height  # from below
    assert all(x < sublayer.x for x, _ in bends)  # and past it


def test_memory_leaves_the_top_of_the_encoders_stack_for_cross_attention():
    frame = next(box for box in map_drawing.FRAMES if box.part == "encoder stack")
    [cross] = [box for box in map_drawing.BOXES if box.part == "cross-attention"]
    [((x, inside), (above, outside), *_)] = arrows_into_the_left_of(cross)
    assert x == above and outside < frame.y < inside


def test_in_words():
    assert repr(transformer_map(3)) == (
        "Map of the transformer. Built so far: dot product. This chapter: softmax; scale; weighted average."
    )
    assert repr(transformer_map(1)) == "Map of the transformer. Built so far: no part. This chapter: no part."
    assert repr(transformer_map(13)) == "Map of the transformer: every part is built."


@pytest.mark.parametrize("built", [0, 23, -1, 2.5, "3"])
def test_a_number_of_no_chapter_is_refused(built):
    with pytest.raises(ValueError, match="1 to 22"):
        transformer_map(built)


def test_a_reader_who_has_finished_a_chapter_sees_it_built():
    done = transformer_map(4, reading=False)
    assert done.parts["self-attention"] == "built"
    assert "this chapter" not in done._repr_svg_()
    assert repr(done).endswith("queries, keys and values; self-attention; masks.")

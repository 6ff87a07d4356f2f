"""Indices of tokens and positions in the memory, where images take fewer positions than tokens."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.models.llama.image_layout import Layout, first_image, image_tokens


def test_image_tokens_are_negative_and_their_key_s_own() -> None:
    one, two = image_tokens("one", 300), image_tokens("two", 300)
    assert max(one) < 0 and max(two) < 0 and min(one) >= -(1 << 31)
    assert one == image_tokens("one", 300) and one[0] != two[0]
    assert first_image([1, 2, *one, 3], 0, 303) == 2 and first_image([1, 2, 3], 0, 3) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9)), max_size=6), st.integers(0, 5))
def test_positions_and_indices_are_inverse_outside_of_images(images: list[tuple[int, int, int]], rest: int) -> None:
    layout, index, position, places = Layout(), 0, 0, list[tuple[int, int]]()
    for words, rows, positions in images:
        positions = min(rows, positions)
        places += [(index + word, position + word) for word in range(words + 1)]
        index, position = index + words, position + words
        layout.add(index, rows, positions)
        for inside in range(1, rows):
            assert layout.whole(index + inside) == index
        index, position = index + rows, position + positions
    places += [(index + word, position + word) for word in range(rest + 1)]
    for at, where in places:
        assert layout.position(at) == where and layout.index(where) == at and layout.whole(at) == at
    layout.cut(0)
    assert layout.position(1000) == 1000

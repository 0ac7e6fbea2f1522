import pytest

from depth_memory.data.splits import check_validation, content_rank, split_of, threshold_of

TEXTS = [f"document {i}".encode() for i in range(1000)]


def held_out(validation, texts=TEXTS):
    threshold = threshold_of(validation, texts)
    return {text for text in texts if split_of(text, threshold) == "validation"}


def test_a_number_takes_exactly_so_many_distinct_documents():
    assert len(held_out(0)) == 0
    assert len(held_out(1)) == 1
    assert len(held_out(999)) == 999
    assert len(held_out(3, TEXTS + TEXTS)) == 3


def test_a_share_takes_about_that_share():
    # four standard deviations of a binomial with 1000 draws of 0.1
    assert abs(len(held_out(0.1)) - 100) < 4 * 9.5
    assert held_out(0.0) == set()


@pytest.mark.parametrize("validation", [7, 0.05])
def test_the_choice_depends_on_content_not_on_order(validation):
    assert held_out(validation) == held_out(validation, TEXTS[::-1])


def test_a_share_decides_each_document_by_itself():
    assert held_out(0.1) & set(TEXTS[:500]) == held_out(0.1, TEXTS[:500])
    assert held_out(0.05) < held_out(0.1)


def test_rank_is_the_head_of_sha256():
    assert content_rank(b"abc") == 0xBA7816BF8F01CFEA


@pytest.mark.parametrize("validation", [1.0, -0.1, -1, True, float("nan"), "3"])
def test_out_of_range_is_refused(validation, refused):
    with refused("validation", validation, "a share in [0, 1)"):
        check_validation(validation)


def test_more_than_there_are_is_refused(refused):
    with refused("validation", "got 3", "less than the 3 distinct"):
        threshold_of(3, [b"a", b"b", b"c", b"a"])

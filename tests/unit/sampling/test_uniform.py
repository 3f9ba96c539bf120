from itertools import product

import pytest

from legato.sampling.uniform import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(counter, key, expected):
    assert philox4x32(counter, key) == expected


def test_uniform_is_the_first_word_cut_to_24_bits():
    assert uniform(0, 0, 0) == (0x6627E8D5 >> 8) / 2**24


def test_uniform_differs_by_seed_choice_position_and_attempt():
    points = list(product((0, 1, 1 << 32, -1), (0, 1), (0, 1, 99), (0, 1)))
    values = {uniform(*point) for point in points}
    assert len(values) == len(points)
    assert all(0.0 <= value < 1.0 for value in values)


def test_negative_seed_is_twos_complement():
    assert uniform(-1, 3, 5) == uniform(2**64 - 1, 3, 5)


def test_uniform_looks_uniform():
    values = [uniform(7, 0, position) for position in range(4000)]
    buckets = [sum(1 for value in values if int(value * 10) == i) for i in range(10)]
    chi_square = sum((count - 400) ** 2 / 400 for count in buckets)
    assert chi_square < 27.9  # 0.999 quantile of chi-square with 9 degrees of freedom

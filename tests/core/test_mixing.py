"""Random bits from counters."""

from baton.core.mixing import mix64


def test_they_are_those_of_splitmix64() -> None:
    """As its authors' program prints them for this seed: a token that is drawn again, here or
    elsewhere, is the same one."""
    found = [mix64(1234567, n) for n in range(5)]
    assert found == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]

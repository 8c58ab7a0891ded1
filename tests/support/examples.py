"""How many examples a property test tries."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Try ``count`` examples in ``make test``, and in ``make check`` the share that its profile names.

    A plain ``max_examples`` goes before the profile's and would be tried whole in both.
    """
    return settings(max_examples=max(count * settings.default.max_examples // 100, 10))

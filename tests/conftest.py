"""What concerns all tests."""

from __future__ import annotations

from importlib.util import find_spec

from hypothesis import HealthCheck, settings

# The command line is an extra: without it, there is nothing to test.
collect_ignore = [] if find_spec("click") else ["test_inspect.py", "test_serve.py"]

# How long something takes is no matter of right or wrong, least of all under the sanitizers.
settings.register_profile(
    "untimed", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

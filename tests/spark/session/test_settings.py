"""What a session that Watersmeet makes is set to."""

from __future__ import annotations

from watersmeet.spark.session import settings


def test_a_local_session_listens_on_this_machine_alone() -> None:
    made = settings("local[2]", {})
    assert {made["spark.driver.bindAddress"], made["spark.driver.host"]} == {"127.0.0.1"}
    assert made["spark.ui.enabled"] == "false"
    # On a cluster executors must reach the driver, and the address is the user's choice.
    assert "spark.driver.bindAddress" not in settings("spark://host:7077", {})

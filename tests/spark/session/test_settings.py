"""What a session that Watersmeet makes is set to."""

from __future__ import annotations

from watersmeet.spark.session import CLUSTER, cluster_settings, settings, settings_when_submitted


def test_a_local_session_listens_on_this_machine_alone() -> None:
    made = settings("local[2]", {})
    assert {made["spark.driver.bindAddress"], made["spark.driver.host"]} == {"127.0.0.1"}
    assert made["spark.ui.enabled"] == "false"
    # On a cluster executors must reach the driver, and the address is the user's choice.
    assert "spark.driver.bindAddress" not in settings("spark://host:7077", {})


def test_a_session_on_a_cluster_notices_silent_executors_unless_others_have_set_how() -> None:
    assert cluster_settings("spark://host:7077", {}) == CLUSTER
    assert not cluster_settings("local-cluster[2,1,640]", {})
    made = settings_when_submitted({"spark.master": "yarn", "spark.network.timeout": "600s"}, None, {})
    assert "spark.storage.blockManagerHeartbeatTimeoutMs" not in made
    assert made["spark.network.timeoutInterval"] == "5s"
    theirs = {"spark.stage.maxConsecutiveAttempts": "4"}
    assert settings_when_submitted(theirs, "yarn", {})["spark.stage.maxConsecutiveAttempts"] == "4"

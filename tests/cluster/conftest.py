"""The servers of these tests."""

from tests.cluster.hdfs import hdfs
from tests.cluster.s3 import s3
from tests.cluster.yarn import environment, yarn

__all__ = ["environment", "hdfs", "s3", "yarn"]

"""The servers of these tests."""

from tests.cluster.hdfs import hdfs
from tests.cluster.s3 import s3

__all__ = ["hdfs", "s3"]

"""Packages and digests of formats that are not part of Spark.

A registry need not have every package of every version: these are known to be there, and to work with one another. All
that is needed is listed, so that nothing is fetched besides.

Every jar that is fetched by a coordinate has its SHA-256 here, by file name; a registry, mirror or cache with another
file under that name is not trusted. A new coordinate needs its digest: ``sha256sum`` of the file, compared with the
registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watersmeet.logical.nodes import Script

JARS = "spark.jars"
"""The prefix of settings that add jars to a session. Only a new session applies them."""

_CLIENT = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


@dataclass(frozen=True)
class Connector:
    """The packages and settings that add a format to a version of Spark.

    ``packages``: all that are needed, the first of them the connector itself. ``settings``: what a session must be set
    to besides, from its start on.
    """

    packages: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The name of the connector without its version and that of Scala, as its file begins.

        >>> Connector(("org.apache.spark:spark-avro_2.13:4.1.1",)).name
        'spark-avro'
        """
        return self.packages[0].split(":")[1].partition("_")[0]


def _kafka(version: str) -> Connector:
    return Connector((f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}", *_CLIENT))


def _avro(version: str) -> Connector:
    return Connector((f"org.apache.spark:spark-avro_2.13:{version}",))


EXTENSIONS = "spark.sql.extensions"
"""The setting that names extensions of Spark SQL; several, separated by commas."""
_DELTA = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_ICEBERG = {EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}


def _delta(version: str) -> Connector:
    return Connector((f"io.delta:delta-spark_2.13:{version}", f"io.delta:delta-storage:{version}"), _DELTA)


def _delta_with_kernel(spark: str, version: str, jackson: str) -> Connector:
    """Delta since 4.4: it has a jar for each version of Spark, and reads tables with its kernel."""
    others = [f"io.delta:{name}:{version}" for name in ("delta-storage", "delta-kernel-api", "delta-kernel-defaults")]
    jdk8 = f"com.fasterxml.jackson.datatype:jackson-datatype-jdk8:{jackson}"
    return Connector((f"io.delta:delta-spark_{spark}_2.13:{version}", *others, jdk8), _DELTA)


def _iceberg(spark: str, version: str) -> Connector:
    return Connector((f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{version}",), _ICEBERG)


CONNECTORS: Mapping[str, Mapping[str, Connector]] = {
    "kafka": {"4.0": _kafka("4.0.3"), "4.1": _kafka("4.1.3"), "4.2": _kafka("4.2.0"), "4.3": _kafka("4.2.0")},
    # The registry has no version for 4.2 and 4.3; that of 4.1 was seen to read all types and to write on 4.3.
    "avro": {"4.0": _avro("4.0.2"), "4.1": _avro("4.1.1"), "4.2": _avro("4.1.1"), "4.3": _avro("4.1.1")},
    "delta": {"4.0": _delta("4.0.0"), "4.1": _delta("4.1.0"), "4.2": _delta_with_kernel("4.2", "4.4.0", "2.21.2")},
    "iceberg": {"4.0": _iceberg("4.0", "1.10.0"), "4.1": _iceberg("4.1", "1.11.0")},
}
"""By format, and by the version of Spark."""


def connector_of(format_: str, spark: str) -> Connector | None:
    """The connector that adds a format to a version of Spark; None if the format is built in or unknown.

    >>> connector_of("Kafka", "4.3.0").packages[0]
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    return CONNECTORS.get(format_.lower(), {}).get(".".join(spark.split(".")[:2]))


def connectors_of(formats: Iterable[str], spark: str, present: Sequence[str] = ()) -> list[Connector]:
    """The connectors of those formats for a version of Spark, except those ``present``: coordinates, or file names.

    >>> connectors_of(["json", "kafka"], "4.3.0", ["/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar"])
    []
    """
    connectors = (connector_of(format_, spark) for format_ in dict.fromkeys(name.lower() for name in formats))
    return [
        connector
        for connector in connectors
        if connector is not None and not any(connector.name in text for text in present)
    ]


def formats_in(script: Script) -> list[str]:
    """The formats of all sources and sinks of a script."""
    histories = [source.history for source in script.sources if source.history is not None]
    declared = (*script.sources, *histories, *script.sinks)
    return [each.format for each in declared if each.format is not None]


# ruff: noqa: E501 - a file and its digest are one line


JAR_DIGESTS: Mapping[str, str] = {
    "argparse4j-0.7.0.jar": "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    "audience-annotations-0.12.0.jar": "ffb101fc066360ff3c77457c927fd7967fb096a6ee9e046ab7071447d8208efc",
    "caffeine-2.9.3.jar": "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    "commons-beanutils-1.9.4.jar": "7d938c81789028045c08c065e94be75fc280527620d5bd62b519d5838532368a",
    "commons-cli-1.4.jar": "fd3c7c9545a9cdb2051d1f9155c4f76b1e4ac5a57304404a6eedb578ffba7328",
    "commons-collections-3.2.2.jar": "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
    "commons-digester-2.1.jar": "e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d",
    "commons-io-2.14.0.jar": "e35d1df7232568ed4b81d9a9ed94a0159b3ff6cf1915cc21eef5cb55d7b157a2",
    "commons-logging-1.2.jar": "daddea1ea0be0f56978ab3006b8ac92834afeefbd9b7e4e6316fca57df0fa636",
    "commons-pool2-2.12.0.jar": "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
    "commons-validator-1.7.jar": "4d74f4ce4fb68b2617edad086df6defdf9338467d2377d2c62e69038e1c4f02f",
    "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-spark_2.13-4.0.0.jar": "538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e",
    "delta-spark_2.13-4.1.0.jar": "9b05d7a82196ee1f1073733a45a2faae59161e52b86ae918fe6742fad6eaf036",
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.0.0.jar": "9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d",
    "delta-storage-4.1.0.jar": "6d0520ffcc35b582369f92c23fa24e14a5bb935cf6e31ed7f47c5046ae17cb25",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "error_prone_annotations-2.10.0.jar": "a249d4d25dfb86d41e6c82fc335df580189f0c9feeabdc53233fc1e5060724a1",
    "iceberg-spark-runtime-4.0_2.13-1.10.0.jar": "0480f1248e0a8b50ae2a730d7ad3e1a727351c362ca63f4a0c35182087a49323",
    "iceberg-spark-runtime-4.1_2.13-1.11.0.jar": "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242",
    "jackson-annotations-2.16.2.jar": "d1cdd269ebaa753d1842933194e17d61958f058952d63e03dbfb3d1d78a6926e",
    "jackson-core-2.16.2.jar": "4f43e2f1430b2d2413e8e5a3d79138e57e891d6a961b18c28ac90859639d8664",
    "jackson-databind-2.16.2.jar": "53b6025d98c357068296e4b134242443a248c2c582800879f1c4ea93b54bafa6",
    "jackson-dataformat-csv-2.16.2.jar": "01a04610def154c50369e8bcd7c5ae1401579f591aa55e88f05093447e24d490",
    "jackson-datatype-jdk8-2.16.2.jar": "3e9b1b59f638b487b5ae0e2f4190fc98f72b0bf661324e7dfc71a69f6b9d4e29",
    "jackson-datatype-jdk8-2.21.2.jar": "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7",
    "jackson-module-scala_2.13-2.16.2.jar": "1154f6dc8643739c0c3ef4c2a7901ca752b5cca7ebe1908d405ced701a8f3764",
    "jopt-simple-5.0.4.jar": "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    "jose4j-0.9.4.jar": "9012aa4c20319d35159030c3bdecade66863030a98338bfdf73a5238849fb9d9",
    "kafka-clients-3.9.1.jar": "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    "kafka-group-coordinator-3.9.1.jar": "fd30310533df51b17d14beb8eb8c9006a9ebb90b536c319776429e413f622a69",
    "kafka-group-coordinator-api-3.9.1.jar": "cb267d841def1172d8db24a830936f1c6aaf29c3de5bdbc5bbc42b67d8cb82c0",
    "kafka-metadata-3.9.1.jar": "35c35118d4abb0b747ad68d1e0be00d5bd02206b462ad76ebbcd85b33436f13a",
    "kafka-raft-3.9.1.jar": "0d4236cf868f8668c74c49bec4bed41e400bb13d6d381a0f8e9843585b2f159f",
    "kafka-server-3.9.1.jar": "02b5a92645865e3152e9d1d829f6d4c4b4272f637b7fe4a2b00cabcbcd8df6f4",
    "kafka-server-common-3.9.1.jar": "99f1f5f81e9d39cfbe5c96ab8e3854be8deca465937192c9a6e2f231678d31f6",
    "kafka-storage-3.9.1.jar": "a3041e6192a37e5508519d776f8af93b74d3fd23174b03e270c0394f1c77b59f",
    "kafka-storage-api-3.9.1.jar": "f466777625641d4bca1314d80206eafa9e2494326496ad626489ba0a0ef479fc",
    "kafka-tools-api-3.9.1.jar": "c365c872ffc9a04886f248c5fd90067829ed4064fcd8fe5e12611b163cd053b4",
    "kafka-transaction-coordinator-3.9.1.jar": "45b852f2e6e501d4dbdd43b97c4057e6cb6827b76e5aabcffcae8b8e2918554f",
    "kafka_2.13-3.9.1.jar": "5631c61356d55611c158291a69ad028f3c4fed5d0a610c62a0853c65c89d10f6",
    "lz4-java-1.8.0.jar": "d74a3334fb35195009b338a951f918203d6bbca3d1d359033dc33edd1cadc9ef",
    "metrics-core-2.2.0.jar": "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    "metrics-core-4.1.12.1.jar": "cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9",
    "netty-buffer-4.1.105.Final.jar": "cc1b0108a60b1eb69bd01a10922851a166c58972cc0683f2116a9e8e7ecdaf0b",
    "netty-codec-4.1.105.Final.jar": "c4f62480b408fb835b454c74cf6394a4c7088ffdaec78742fcece816c46bb58e",
    "netty-common-4.1.105.Final.jar": "399a8045fb43861afb7fc1ef3371f95a0b176692fb268f4867cff4957e63fd25",
    "netty-handler-4.1.105.Final.jar": "5a6945cf1de374628b37ab1c35a4c47c2f5616db3a94b150720641477112be8e",
    "netty-resolver-4.1.105.Final.jar": "7202edd076a1edab50fdb0f3e54f56a02129b326296d9f35f4194f8cfb9b96ef",
    "netty-transport-4.1.105.Final.jar": "be9b8a2f86685a876e469c904cb9fce53a1e826e178d44d2b1d92f6a99054737",
    "netty-transport-classes-epoll-4.1.105.Final.jar": "a43bf94f784eb759c14f0b0c7e1c5985a64879e8c7ab21ba7c0c80f7a9382b30",
    "netty-transport-native-epoll-4.1.105.Final.jar": "61f09ce16f0fd25e57a0a732f8fb79344f6b95051d88ac50a28874ad92e6d149",
    "netty-transport-native-unix-common-4.1.105.Final.jar": "7db91b72aae19e1cdca13c7fa76d57db20cbaf5b1e770563909a4437c63eb5cb",
    "paranamer-2.8.jar": "688cb118a6021d819138e855208c956031688be4b47a24bb615becc63acedf07",
    "pcollections-4.0.1.jar": "1f82766d7c3221930854033bebff5073ea46b43f27326074bbe15d148c18bfb3",
    "scala-collection-compat_2.13-2.10.0.jar": "bb10091bd55131a5327bdeddede74e5d8a695acab24a97567111784f2f427299",
    "scala-java8-compat_2.13-1.0.2.jar": "90d5b13656be93fb779b8d7c723efa2498a34af06273bb5204afb65f85a20c1b",
    "scala-library-2.13.15.jar": "8e4dbc3becf70d59c787118f6ad06fab6790136a0699cd6412bc9da3d336944e",
    "scala-logging_2.13-3.9.5.jar": "87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545",
    "scala-reflect-2.13.15.jar": "78d0cc350e1ee42d87c6e11cf5b0dc7bf0b70829c00aa38f27bfb019d439dc11",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "snappy-java-1.1.10.5.jar": "0f3f1857ed33116583f480b4df5c0218836c47bfbc9c6221c0d73f356decf37b",
    "spark-avro_2.13-4.0.2.jar": "fd102b6c6754f72f53a01ac882f0da2b1a6f9f02127647ac3e1f0ca951d4433b",
    "spark-avro_2.13-4.1.1.jar": "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
    "spark-sql-kafka-0-10_2.13-4.0.3.jar": "6591c1556daee42a76e0bce3307c6b924df890142354e84ab38b546bbab27f89",
    "spark-sql-kafka-0-10_2.13-4.1.3.jar": "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    "zookeeper-3.8.4.jar": "2d77b152039e7f85dc5438a9304febff86a2f3e55c88976a8be309af39028e97",
    "zookeeper-jute-3.8.4.jar": "93e854b55d731e745bafec187e2e7bf3389fd2a88e2fc8d1a3c1b9110284b284",
    "zstd-jni-1.5.6-4.jar": "793ca8734aa15687e7e64564eab8b6ae9ee2720eae27aa663074682144b1c386",
}

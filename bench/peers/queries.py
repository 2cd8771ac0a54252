"""The queries of the comparison in the SQL of each system, and the columns of their results that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.data import LAG_SECONDS, SIDES
from bench.peers.data import TABLE_ROWS

WATERSMEET, FLINK, PATHWAY, SPARK = PEERS = ("watersmeet", "flink", "pathway", "spark")
WITHIN = 60
CORES = 2
"""Those of every system; Watersmeet takes as many files in a batch, one at least of each stream, a task each."""
TABLE = "side"
"""The table of q13. Flink joins a table of files in event time alone, so its rows have a time, before all bids."""
_PERSON = "id BIGINT, name STRING, email STRING, card STRING, city STRING, state STRING, `at` {time}, extra STRING"
_AUCTION = (
    "id BIGINT, item STRING, description STRING, initial_bid BIGINT, reserve BIGINT, `at` {time}, expires {time}, "
    "seller BIGINT, category BIGINT, extra STRING"
)
_BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `at` {time}, extra STRING"
_SIDE = "id BIGINT, ts {time}, amount DOUBLE, `count` INT"
STREAMS: Mapping[str, tuple[str, str, int]] = {
    "person": (_PERSON, "at", 4),
    "auction": (_AUCTION, "at", 4),
    "bid": (_BID, "at", 4),
    TABLE: ("`key` BIGINT, `value` STRING, `at` {time}", "at", 0),
    **dict.fromkeys(SIDES, (_SIDE, "ts", LAG_SECONDS)),
}
"""The columns of each stream, its event time, and the lag of its watermark in seconds."""


@dataclass(frozen=True)
class PeerQuery:
    """A query: its streams, the SQL of Watersmeet and of Flink, and the columns whose values must be the same.

    ``tables``: those of its streams that Watersmeet reads as tables, by their key. ``peers``: the systems that run it.
    ``rows``: the rows, or events, of the timed run: a minute for Flink, except for q7 and q9, where Flink keeps every
    bid and the heap limits their number.
    """

    name: str
    about: str
    streams: Sequence[str]
    ours: str
    flink: str
    columns: Sequence[str]
    tables: Sequence[str] = ()
    peers: Sequence[str] = (WATERSMEET, FLINK)
    rows: int = 20_000_000

    def our_script(self, folder: Path, format_: str) -> str:
        """The script of Watersmeet over the files of a folder, of which a batch has one for each core."""
        declared: list[str] = []
        files = max(1, CORES // len([name for name in self.streams if name != TABLE]))
        for name in self.streams:
            columns, time, lag = STREAMS[name]
            kind, facet = "STREAM", f"WATERMARK FOR `{time}` AS `{time}` - INTERVAL {lag} SECONDS"
            if name in self.tables:
                kind, facet = "TABLE", f"PRIMARY KEY (`{'key' if name == TABLE else 'id'}`)"
            more = "static 'true'" if name == TABLE else f"maxFilesPerTrigger '{files}'"
            declared.append(
                f"CREATE {kind} `{name}` ({columns.format(time='TIMESTAMP')}, {facet})"
                f" USING {format_} OPTIONS (path '{folder / name}', {more});"
            )
        return "\n".join([*declared, self.ours])

    def flink_script(self, folder: Path, format_: str) -> list[str]:
        """The statements of Flink that declare the streams over the files of a folder."""
        declared: list[str] = []
        for name in self.streams:
            columns, time, lag = STREAMS[name]
            key = ", PRIMARY KEY (`key`) NOT ENFORCED" if name == TABLE else ""
            declared.append(
                f"CREATE TABLE `{name}` ({columns.format(time='TIMESTAMP(3)')},"
                f" WATERMARK FOR `{time}` AS `{time}` - INTERVAL '{lag}' SECOND{key})"
                f" WITH ('connector' = 'filesystem', 'path' = 'file://{folder / name}', 'format' = '{format_}')"
            )
        return declared


_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(`at`), INTERVAL '10' SECOND))"
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(`at`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"

QUERIES: Mapping[str, PeerQuery] = {
    query.name: query
    for query in (
        PeerQuery(
            "interval",
            f"two streams by key within {WITHIN} s",
            SIDES,
            "SELECT STREAM l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount"
            f" FROM `left` l JOIN `right` r WITHIN {WITHIN} seconds ON l.id = r.id;",
            "SELECT l.id, l.ts, l.amount, r.ts AS right_ts, r.amount AS right_amount FROM `left` l JOIN `right` r ON"
            f" l.id = r.id AND r.ts BETWEEN l.ts - INTERVAL '{WITHIN}' SECOND AND l.ts + INTERVAL '{WITHIN}' SECOND",
            ("id", "amount", "right_amount"),
            peers=PEERS,
            rows=8_000_000,
        ),
        PeerQuery(
            "q3",
            "sellers of three states with auctions of a category",
            ("person", "auction"),
            "SELECT STREAM p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id"
            " WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');",
            "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id"
            " WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
            ("name", "city", "state", "id"),
            ("person",),
            rows=200_000_000,
        ),
        PeerQuery(
            "q4",
            "the average of the winning prices of each category",
            ("auction", "bid"),
            "CREATE VIEW winning AS SELECT TABLE a.id, a.category, max(b.price) AS final FROM auction a JOIN bid b"
            " ON a.id = b.auction AND b.at BETWEEN a.at AND a.expires GROUP BY a.id, a.category;"
            " SELECT TABLE category, avg(final) AS final FROM winning GROUP BY category;",
            "SELECT category, AVG(CAST(final AS DOUBLE)) AS final FROM (SELECT MAX(b.price) AS final, a.category"
            " FROM auction a, bid b WHERE a.id = b.auction AND b.`at` BETWEEN a.`at` AND a.expires"
            " GROUP BY a.id, a.category) GROUP BY category",
            ("category", "final"),
        ),
        PeerQuery(
            "q5",
            "the auctions with most bids of each sliding window",
            ("bid",),
            "CREATE VIEW bids_per_window AS SELECT TABLE auction, window_start AS since, count(*) AS n"
            f" FROM {_HOP} GROUP BY auction, window_start, window_end;"
            " SELECT TABLE auction, n FROM bids_per_window"
            " QUALIFY RANK() OVER (PARTITION BY since ORDER BY n DESC) = 1;",
            "SELECT a.auction, a.num AS n FROM (SELECT auction, count(*) AS num, window_start AS s, window_end AS e"
            f" FROM {_HOP} GROUP BY auction, window_start, window_end) a JOIN (SELECT max(c.num) AS most, c.s, c.e FROM"
            f" (SELECT count(*) AS num, window_start AS s, window_end AS e FROM {_HOP}"
            " GROUP BY auction, window_start, window_end) c GROUP BY c.s, c.e) m"
            " ON a.s = m.s AND a.e = m.e AND a.num >= m.most",
            ("auction", "n"),
            rows=16_000_000,
        ),
        PeerQuery(
            "q7",
            "the highest bid of each window",
            ("bid",),
            "SELECT TABLE window_end, max(price) AS price, max_by(auction, price) AS auction, max_by(bidder, price) AS"
            f" bidder FROM {_TUMBLE.format('bid')} GROUP BY window_start, window_end;",
            "SELECT b.auction, b.price, b.bidder FROM bid b JOIN (SELECT MAX(price) AS most, window_end AS e"
            f" FROM {_TUMBLE.format('bid')} GROUP BY window_start, window_end) m ON b.price = m.most"
            " WHERE b.`at` BETWEEN m.e - INTERVAL '10' SECOND AND m.e",
            ("auction", "price", "bidder"),
            rows=4_000_000,
        ),
        PeerQuery(
            "q8",
            "people who open auctions in the window in which they come",
            ("person", "auction"),
            f"SELECT STREAM p.id, p.name FROM {_TUMBLE.format('person')} p"
            f" LEFT SEMI JOIN {_TUMBLE.format('auction')} a"
            " ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end;",
            "SELECT p.id, p.name FROM (SELECT id, name, window_start AS s, window_end AS e"
            f" FROM {_TUMBLE.format('person')} GROUP BY id, name, window_start, window_end) p JOIN (SELECT seller,"
            f" window_start AS s, window_end AS e FROM {_TUMBLE.format('auction')}"
            " GROUP BY seller, window_start, window_end) a ON p.id = a.seller AND p.s = a.s AND p.e = a.e",
            ("id", "name"),
            rows=200_000_000,
        ),
        PeerQuery(
            "q9",
            "the winning bid of each auction",
            ("auction", "bid"),
            "SELECT TABLE a.id, a.seller, max(b.price) AS final, max_by(b.bidder, b.price) AS bidder FROM auction a"
            " JOIN bid b ON a.id = b.auction AND b.at BETWEEN a.at AND a.expires GROUP BY a.id, a.seller;",
            "SELECT id, seller, bidder, price AS final FROM (SELECT a.id, a.seller, b.bidder, b.price,"
            " ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`at` ASC) AS place FROM auction a, bid b"
            " WHERE a.id = b.auction AND b.`at` BETWEEN a.`at` AND a.expires) WHERE place <= 1",
            ("id", "seller", "bidder", "final"),
            rows=8_000_000,
        ),
        PeerQuery(
            "q13",
            "bids with what a table has for them",
            ("bid", TABLE),
            "SELECT STREAM b.auction, b.bidder, b.price, s.`value`"
            f" FROM bid b JOIN {TABLE} s ON b.auction % {TABLE_ROWS} = s.`key`;",
            f"SELECT b.auction, b.bidder, b.price, s.`value` FROM bid b JOIN {TABLE} FOR SYSTEM_TIME AS OF b.`at` AS s"
            f" ON MOD(b.auction, {TABLE_ROWS}) = s.`key`",
            ("auction", "bidder", "price", "value"),
            (TABLE,),
        ),
        PeerQuery(
            "q20",
            "bids with their auctions, of a category",
            ("auction", "bid"),
            "SELECT STREAM b.auction, b.bidder, b.price, a.item, a.category"
            " FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10;",
            "SELECT b.auction, b.bidder, b.price, a.item, a.category FROM bid b JOIN auction a ON b.auction = a.id"
            " WHERE a.category = 10",
            ("auction", "bidder", "price", "item", "category"),
            ("auction",),
        ),
    )
}

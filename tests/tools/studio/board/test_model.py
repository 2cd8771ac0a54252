"""What lies on the board, and what it answers: without a browser."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.case_files import case_file
from tests.tools.studio.board.conftest import STORIES

from watersmeet.operators import FAMILIES
from watersmeet.tools.studio.board.answer import BoardView, evaluate_board, export_case
from watersmeet.tools.studio.board.model import Board, BoardBatch, WrongBoardError, board_from_case
from watersmeet.tools.studio.board.server import build_catalog, open_board
from watersmeet.tools.testing import parse_case, read_case, run_case

ROOT = Path(__file__).parents[4]
STORY = STORIES / "interval.yaml"
SQL = "CREATE STREAM a ({}, t BIGINT, WATERMARK FOR t AS t - 0); SELECT STREAM v, t FROM a;"


def became(said: dict[str, Any]) -> dict[tuple[int, str, int], str]:
    return {(row["batch"], row["source"], row["row"]): row["what"] for row in said["rows"]}


def test_stories_of_every_family_exist_and_are_true() -> None:
    assert {path.stem for path in STORIES.glob("*.yaml")} == set(FAMILIES)
    for path in STORIES.glob("*.yaml"):
        for on in ("kernel", "reference"):
            result = run_case(read_case(path), on)
            assert result.status == "passed", result.detail


@pytest.mark.parametrize("family", FAMILIES)
def test_a_story_is_answered_with_its_rows_and_its_picture(family: str) -> None:
    board = open_board(STORIES / f"{family}.yaml")
    said = evaluate_board(board, BoardView())
    places = {(n, s, r) for n, b in enumerate(board.batches) for s, rows in b.rows.items() for r in range(len(rows))}
    assert set(became(said)) == places
    assert said["picture"].count('class="lane') == len(said["rows"])
    assert all(row["reasons"] for row in said["rows"])


@pytest.mark.parametrize("folder", ["tests/cases", "examples"])
def test_every_case_and_every_example_can_be_opened(folder: str) -> None:
    """All of them stand on the shelf; of the many cases every fifth is opened, since reading YAML takes its time."""
    shelf = [entry for entry in build_catalog(ROOT / folder) if entry.group != "stories"]
    files = [path for path in (ROOT / folder).rglob("*.yaml") if path.name != "watersmeet.yml"]
    assert set(files) <= {entry.path for entry in shelf}
    for entry in shelf if folder == "examples" else shelf[::5]:
        assert open_board(entry.path).sql


@pytest.mark.parametrize(
    "name",
    [
        "interval/drop-oldest",
        "union/follows-the-slowest",
        "changelog/keys-of-all-types",
        "changelog/foreign-key",
        "interval/ends-of-timestamps",
        "interval/idle-side",
    ],
)
def test_a_case_that_is_saved_is_the_case_that_was_opened(name: str) -> None:
    """Its rows give what the case expects, whatever its types."""
    case = read_case(case_file(name))
    again = parse_case(export_case(board_from_case(case)))
    assert run_case(again, "kernel").status == "passed"
    batches = (
        replace(one, rows=other.rows, input_watermarks=other.input_watermarks, now=other.now, restart=other.restart)
        for one, other in zip(case.batches, again.batches, strict=True)
    )
    result = run_case(replace(case, batches=tuple(batches)), "kernel")
    assert result.status == "passed", result.detail


def test_a_project_begins_with_the_rows_of_its_files() -> None:
    board = open_board(ROOT / "examples" / "shop")
    said = evaluate_board(board, BoardView())
    assert board.batches[0].rows["customers"][0][0] == "+"
    assert len(said["queries"]) > 1
    assert "picture" in said


def test_of_several_queries_one_is_played_and_saved() -> None:
    board = open_board(ROOT / "examples" / "shop")
    names = evaluate_board(board, BoardView())["queries"]
    other = replace(board, query=names[-1])
    assert evaluate_board(other, BoardView())["query"] == names[-1]
    assert len([line for line in export_case(other).splitlines() if line.strip().startswith("INSERT INTO")]) == 1


def test_a_row_that_comes_a_batch_later_is_late_and_it_is_said_why() -> None:
    board = open_board(STORY)
    # The watermark of the deliveries is 09:15 after batch 1, so that what happened at 08:40 comes too late in batch 2.
    first, second, third = board.batches
    row = first.rows["deliveries"][0]
    batches = (
        replace(first, rows={**first.rows, "deliveries": ()}),
        second,
        replace(third, rows={"deliveries": (*third.rows["deliveries"], row)}),
    )
    said = evaluate_board(replace(board, batches=batches), BoardView())
    assert became(evaluate_board(board, BoardView()))[0, "deliveries", 0] == "matched, expired"
    assert became(said)[2, "deliveries", 1] == "late"
    assert became(said)[0, "orders", 0] == "padded"
    reasons = next(row["reasons"] for row in said["rows"] if (row["batch"], row["row"]) == (2, 1))
    assert "late by 35 min" in " ".join(reasons)


def test_a_step_shows_what_is_known_by_then() -> None:
    said = evaluate_board(open_board(STORY), BoardView(step=1))
    assert became(said)[0, "orders", 1] == "alive"
    assert len(said["results"]["batches"]) == 1
    assert max(batch for batch, _, _ in became(said)) == 0


def test_refusals_have_their_condition_place_and_hint() -> None:
    board = open_board(STORY)
    said = evaluate_board(replace(board, sql=board.sql.replace("d.courier", "d.curier")), BoardView())
    (refusal,) = said["refusals"]
    assert (refusal["condition"], refusal["hint"]) == ("UNKNOWN_COLUMN", "did you mean `courier`?")
    assert board.sql.replace("d.courier", "d.curier")[slice(*refusal["span"])] == "d.curier"
    assert "picture" not in said
    assert [source["name"] for source in said["sources"]] == ["orders", "deliveries"]


def test_a_board_without_a_query_says_what_to_write() -> None:
    assert "SELECT STREAM" in evaluate_board(Board(), BoardView())["note"]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (BoardBatch(now="soon"), "`now` is 'soon'"),
        (BoardBatch(marks={"deliveries": "soon"}), "'soon' is not a watermark of `d.t`"),
        (BoardBatch(marks={"nothing": "5"}), "`input_watermarks` names `nothing`"),
    ],
)
def test_marks_and_clocks_that_cannot_be_read_are_refused(batch: BoardBatch, said: str) -> None:
    (refusal,) = evaluate_board(replace(open_board(STORY), batches=(batch,)), BoardView())["refusals"]
    assert said in refusal["message"]


def test_values_that_no_cell_holds_are_refused_and_not_left_out() -> None:
    board = Board(sql=SQL.format("v VARIANT"), batches=(BoardBatch({"a": (("1", "2"),)}),))
    assert [refusal["condition"] for refusal in evaluate_board(board, BoardView())["refusals"]] == ["UNKNOWN_TYPE"]
    board = Board(sql=SQL.format("v INT"), batches=(BoardBatch({"a": (("x", "2"),)}),))
    with pytest.raises(WrongBoardError, match="x is not a value of type INT"):
        export_case(board)


def test_a_limit_that_is_reached_is_reported_as_the_refusal_it_is() -> None:
    board = open_board(STORY)
    said = evaluate_board(replace(board, sql="SET watersmeet.state.max_rows = 1;\n" + board.sql), BoardView())
    assert [refusal["condition"] for refusal in said["refusals"]] == ["STATE_LIMIT"]


def test_expressions_for_spark_alone_are_reported_as_such() -> None:
    board = open_board(STORY)
    said = evaluate_board(replace(board, sql=board.sql.replace("o.item,", "md5(o.item) AS item,")), BoardView())
    assert "Only Spark can evaluate md5" in said["note"]
    assert "picture" not in said


def test_sql_on_a_board_opens_nothing_that_it_names(tmp_path: Path) -> None:
    names = ("data.csv", "message.desc", "key")
    for name in names:
        (tmp_path / name).write_text("id\n1\n")
    topic = "kafka OPTIONS (subscribe 'x', kafka.bootstrap.servers '127.0.0.1:9', value.format"
    sources = (
        f"a USING csv OPTIONS (path '{tmp_path}', header 'true')",
        f"a (id INT) USING csv OPTIONS (path '{tmp_path}', sep '${{file:{tmp_path}/key}}')",
        f"a USING {topic} 'avro', schema.registry.url 'http://127.0.0.1:9')",
        f"a USING {topic} 'protobuf', value.descriptor '{tmp_path}/message.desc', value.message 'm')",
        f"a USING delta OPTIONS (path '{tmp_path}')",
    )
    events: list[str] = []
    is_watched = True

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        is_file = event in ("open", "os.listdir", "os.scandir") and str(tmp_path) in str(arguments[0])
        if is_watched and (is_file or event in ("socket.connect", "socket.getaddrinfo")):
            events.append(event)

    # A hook stays until the process ends, so it is only switched off.
    sys.addaudithook(record)
    for source in sources:
        sink = f"CREATE SINK s USING json OPTIONS (path '{tmp_path}/out')"
        sql = f"CREATE STREAM {source}; {sink}; INSERT INTO s SELECT STREAM * FROM a;"
        board = Board("b", sql, batches=(BoardBatch({"a": (("1",),)}),))
        assert evaluate_board(board, BoardView())["refusals"] == []
        export_case(board)
    assert events == []
    (tmp_path / "key").read_text()
    is_watched = False
    assert events == ["open"], "the hook sees files that are opened"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("STRING", "a, b", "a, b"),
        ("STRING", "", "NULL"),
        ("STRING", '""', '""'),
        ("STRING", "5", "5"),
        ("STRING", "[1]", "[1]"),
        ("INT", "5", "5"),
        ("BOOLEAN", "true", "true"),
        ("DECIMAL(10,2)", "1.5", "1.50"),
        ("TIMESTAMP", "2026-03-02 08:00", "2026-03-02 08:00:00"),
        ("DATE", "2026-03-02", "2026-03-02"),
        ("ARRAY<INT>", "[1, null]", "[1, null]"),
        ("STRUCT<a: INT>", "{a: 1}", "{a: 1}"),
    ],
)
def test_cells_are_typed_as_they_are_shown(kind: str, text: str, shown: str) -> None:
    board = Board(sql=SQL.format(f"v {kind}"), batches=(BoardBatch({"a": ((text, "1"),)}),))
    said = evaluate_board(board, BoardView())
    assert said["wrong"] == []
    assert said["results"]["batches"][0]["rows"] == [[shown, "1"]]


@pytest.mark.parametrize(("kind", "text"), [("INT", "x"), ("TIMESTAMP", "soon"), ("BOOLEAN", "1"), ("ARRAY<INT>", "[")])
def test_a_cell_that_is_no_value_is_found(kind: str, text: str) -> None:
    board = Board(sql=SQL.format(f"v {kind}"), batches=(BoardBatch({"a": (("", "1"), (text, "2"))}),))
    said = evaluate_board(board, BoardView())
    assert [(cell["row"], cell["column"]) for cell in said["wrong"]] == [(1, 0)]
    assert text in said["wrong"][0]["message"]
    assert "picture" not in said

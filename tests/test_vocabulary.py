"""The names of `src` are words of the field: no banned word, verbs and nouns for functions, one meaning per class name.

Functions and classes of the benchmark, the fault injection, the documents, the examples and the tests follow the same
rules. Names of tests begin with their subject.

`vocabulary_exceptions.txt` lists the names that do not comply yet. A line whose name complies now, or is gone, must go,
too, so the list only shrinks.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import watersmeet

ROOT = Path(watersmeet.__file__).parent
TESTS = Path(__file__).parent
EXCEPTIONS = Path(__file__).with_name("vocabulary_exceptions.txt")

BANNED = frozenset({
    "told", "tell", "asked", "apart", "beside", "alike", "fates", "flights", "fed", "met", "kept", "lives",
    "firsts", "together", "settled", "shelf", "elsewhere", "past", "spare", "leaving", "crossing",
})  # fmt: skip
"""Words that have a term of the field: side output, retention, operator chaining, lineage."""

IRREGULAR = frozenset({
    "begun", "bought", "brought", "built", "caught", "chosen", "done", "drawn", "driven", "eaten", "fallen",
    "forgotten", "found", "given", "gone", "grown", "held", "hidden", "known", "laid", "left", "lost", "made",
    "meant", "met", "paid", "said", "seen", "sent", "shown", "sought", "spent", "spoken", "stood", "taken",
    "taught", "thought", "thrown", "told", "understood", "woken", "worn", "written", "kept", "broken",
    "bidden", "heard", "led", "slept", "sold", "won",
})  # fmt: skip
NOT_PARTICIPLES = frozenset({
    "need", "needs", "feed", "feeds", "seed", "embed", "speed", "shed", "exceed", "proceed", "succeed",
    "bleed", "breed", "bed", "red", "string", "mapping", "ordering", "padding", "setting", "settings",
    "heading", "ring", "nothing", "anything", "king", "ping", "sibling", "siblings", "thing", "things",
    "bring", "sling", "spring", "warning", "warnings", "timing", "timings", "encoding", "meaning",
    "remaining", "rounding",
})  # fmt: skip
ADVERBS = frozenset({
    "along", "apart", "again", "alike", "already", "aside", "away", "beside", "elsewhere", "inside",
    "together",
})  # fmt: skip

PROTOCOLS = frozenset({"tell"})
"""Methods that Python's own protocols name: `tell` of a file."""


OTHER_TREES = ("bench", "deploy", "docs", "examples", "faults", "tests")
"""Folders whose functions and classes have words of the field, too."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

OTHER_FOLDERS = frozenset(
    {Path("api"), Path("bench"), Path("cluster"), Path("deploy"), Path("matrix"), Path("schedulers")}
)
"""Folders of tests that no package has: the calls of `api.py`, the benchmark, storages, and each version of Spark."""


def words(name: str) -> list[str]:
    """The words of an identifier in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def is_participle(word: str) -> bool:
    """Whether a function that starts with this word is named by a state in place of an action."""
    if word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR or word in ADVERBS or (len(word) > 3 and word.endswith(("ed", "ing")))


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its path."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def identifiers(tree: ast.Module) -> Iterator[str]:
    """All names that a module gives, of functions, classes, arguments, fields and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """The functions and classes of a module, each with its name after those of the ones around it."""

    def visit(node: ast.AST, around: str) -> Iterator[tuple[str, Definition]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{around}{child.name}", child
                yield from visit(child, f"{around}{child.name}.")
            else:
                yield from visit(child, around)

    return visit(tree, "")


def functions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The functions of a module, with the classes and functions around them."""
    for qualified, node in definitions(tree):
        if not isinstance(node, ast.ClassDef):
            yield qualified, node.name


def names_with_banned_words() -> set[str]:
    found = {
        f"banned {path} {name}"
        for path, tree in trees().items()
        for name in identifiers(tree)
        if BANNED & set(words(name)) and name not in PROTOCOLS
    }
    modules = {path for path in trees() if BANNED & set(words(path))}
    return found | {f"module {path}" for path in modules}


def participles() -> set[str]:
    return {
        f"participle {path} {qualified}"
        for path, tree in trees().items()
        for qualified, name in functions(tree)
        if not name.startswith("__") and is_participle((words(name) or [""])[0])
    }


def classes_of_several_modules() -> set[str]:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path)
    return {f"class {name} {' '.join(sorted(paths))}" for name, paths in places.items() if len(paths) > 1}


def offences() -> set[str]:
    return names_with_banned_words() | participles() | classes_of_several_modules()


def test_names_are_words_of_the_field() -> None:
    excepted = set(EXCEPTIONS.read_text("utf-8").splitlines())
    assert offences() - excepted == set(), "use a term of the field, a verb, a noun, or a class name of its own"


def is_data_set(node: Definition) -> bool:
    """Whether a function declares a data set of a pipeline, which is named after it."""
    return any(ast.unparse(decorator).startswith("dp.") for decorator in node.decorator_list)


def is_named_by_state(node: Definition) -> bool:
    """Whether a participle names a function, or a participle alone a class."""
    named = words(node.name)
    if not named or node.name.startswith("__") or is_data_set(node):
        return False
    return is_participle(named[0]) and (len(named) == 1 or not isinstance(node, ast.ClassDef))


@pytest.mark.parametrize("folder", OTHER_TREES)
def test_other_trees_are_words_of_the_field(folder: str) -> None:
    paths = sorted((TESTS.parent / folder).rglob("*.py"))
    names = {str(path): [*definitions(ast.parse(path.read_text("utf-8")))] for path in paths}
    modules = [path for path in names if BANNED & set(words(path.removeprefix(str(TESTS.parent))))]
    offences = [
        f"{path} {qualified}"
        for path, nodes in names.items()
        for qualified, node in nodes
        if BANNED & set(words(node.name)) or is_named_by_state(node)
    ]
    assert modules + offences == [], "use a term of the field, a verb or a noun"


NO_SUBJECTS = frozenset({
    "it", "they", "who", "whatever", "nobody", "what", "nothing", "only", "there",
    "if", "when", "where", "how", "which",
})  # fmt: skip
"""Words with which no name of a test begins: they leave open what the test is about."""


def test_tests_are_named_by_their_subject() -> None:
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        for _, name in functions(ast.parse(path.read_text("utf-8")))
        if name.startswith("test_")
    ]
    assert len(names) > 1_500
    assert [name for name in names if BANNED & set(words(name)) or words(name)[1] in NO_SUBJECTS] == []


def test_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    missing = {str(folder) for folder in folders if not (ROOT / folder).is_dir() and folder not in OTHER_FOLDERS}
    assert missing == set(), "name the folder of a test after the package in `src`"


def test_exceptions_only_shrink() -> None:
    excepted = EXCEPTIONS.read_text("utf-8").splitlines()
    assert excepted == sorted(set(excepted))
    assert set(excepted) - offences() == set(), "these comply now: remove them"

"""A project: a folder with ``watersmeet.yml`` and SQL files, or one SQL file.

The fields of ``watersmeet.yml`` are those of a pipeline of Spark's Declarative Pipelines: ``name``, ``storage``,
``libraries``, ``configuration``, ``catalog`` and ``database`` (or ``schema``). All SQL files of a project are read as
one script, in the order of their names, so what one file declares another may use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from watersmeet.catalog import Amount, Source, Watermark
from watersmeet.errors import Place, Refusal, WatersmeetError, did_you_mean, refuse
from watersmeet.formats.columns import NoColumnsError, SourceColumns, columns_of, load_columns
from watersmeet.formats.protobuf.descriptor import DESCRIPTOR
from watersmeet.formats.registry import OPTIONS as REGISTRY
from watersmeet.formats.registry import URL
from watersmeet.locations import (
    Storage,
    anchor_references,
    find_missing,
    has_scheme,
    hint_for_missing,
    local_path,
    references_in,
    resolve_references,
)
from watersmeet.schema import time_type_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from watersmeet.logical.nodes import Script


_MERGE = "tag:yaml.org,2002:merge"


class DoubledKeyError(yaml.YAMLError):
    """A key that stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    """Reads what `yaml.safe_load` reads, and refuses keys that stand twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, str(key.value)), key.start_mark.line + 1
            if name in lines:
                raise DoubledKeyError(f"the key `{key.value}` appears twice, in lines {lines[name]} and {line}")
            lines[name] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """Parse a text in YAML.

    >>> read_yaml("{name: shop, storage: here}")
    {'name': 'shop', 'storage': 'here'}
    """
    return yaml.load(text, _Loader)


SPEC_NAME = "watersmeet.yml"
Sends = Literal["resolved", "nothing resolved"]
"""The options that a schema registry named by a script may get: options with their references resolved, or only options
without references. Commands that people also use to look at scripts of others send nothing resolved."""


class Glob(BaseModel):
    """A set of files: a path, or a folder followed by ``/**`` for all SQL files under it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    include: str


class Library(BaseModel):
    """One entry of ``libraries``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    glob: Glob


class Spec(BaseModel):
    """The content of ``watersmeet.yml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    storage: str = "storage"
    libraries: tuple[Library, ...] = (Library(glob=Glob(include="sql/**")),)
    configuration: dict[str, str] = {}
    catalog: str | None = None
    database: str | None = Field(default=None, validation_alias=AliasChoices("database", "schema"))

    @field_validator("configuration", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Spark's settings are texts; YAML reads ``true`` and ``8`` as something else."""
        if not isinstance(value, dict):
            return value
        return {
            str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in cast("dict[Any, Any]", value).items()
        }


@dataclass(frozen=True)
class ScriptFile:
    """An SQL file: its name as a person would write it, and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Project:
    """A project that could be read. ``storage`` holds checkpoints, relative paths are relative to ``root``."""

    root: Path
    name: str
    storage: str
    files: tuple[ScriptFile, ...]
    configuration: Mapping[str, str] = field(default_factory=dict[str, str])
    catalog: str | None = None
    database: str | None = None

    @property
    def script_name(self) -> str:
        """The name of the script that all files together are."""
        return self.files[0].name if len(self.files) == 1 else self.name

    @property
    def text(self) -> str:
        """The text of all files, one after the other."""
        return "".join(file.text for file in self.files)

    @property
    def settings_from_root(self) -> dict[str, str]:
        """The Spark settings in ``configuration``; references to files start at the project."""
        return {name: anchor_references(value, self.root.absolute()) for name, value in self.configuration.items()}

    def check_settings(self) -> None:
        """Refuse settings with references that cannot be resolved."""
        missing_values = [
            (name, reason) for name, value in self.settings_from_root.items() for reason in find_missing(value)
        ]
        if missing_values:
            problems = (
                {"name": f"The setting {name} in {SPEC_NAME}", "reason": reason, "hint": hint_for_missing(reason)}
                for name, reason in missing_values
            )
            raise WatersmeetError(Refusal("MISSING_REFERENCE", parameters) for parameters in problems)

    def relocate(self, error: WatersmeetError) -> WatersmeetError:
        """The same refusals, each with its place in the file that the user wrote."""
        return WatersmeetError(replace(refusal, place=self.in_file(refusal.place)) for refusal in error.refusals)

    def in_file(self, place: Place | None) -> Place | None:
        """The same place in the file that it lies in."""
        if place is None or place.text != self.text:
            return place
        start = 0
        for file in self.files:
            if place.start < start + len(file.text) or file is self.files[-1]:
                return Place(file.name, file.text, place.start - start, place.end - start)
            start += len(file.text)
        return place


def open_project(path: Path) -> Project:
    """The project that a folder is or a SQL file stands for; refuses what cannot be read.

    A SQL file below a folder with ``watersmeet.yml`` runs with the settings of that project, alone.
    """
    if not path.exists():
        raise refuse(
            "FILE_NOT_FOUND", path=path, hint=f"`watersmeet init {path.with_suffix('')}` makes a project there."
        )
    if path.is_dir():
        return _from_folder(path)
    if path.name in (SPEC_NAME, "watersmeet.yaml"):
        return _from_folder(path.parent)
    above = next((folder for folder in path.absolute().parents if (folder / SPEC_NAME).is_file()), None)
    only = (ScriptFile(str(path), _read_text(path)),)
    if above is None:
        return Project(path.parent, path.stem, f"{path.stem}.storage", only)
    return _project(above, _read_spec(above / SPEC_NAME), only)


def resolve_paths(script: Script, root: Path) -> Script:
    """The script with the folders in the options of its sources and sinks made absolute, starting at ``root``."""
    return _with_options(script, lambda options: _absolute_options(options, root))


def root_references(script: Script, root: Path) -> Script:
    """The script with references to files, and with paths of descriptors, that start at ``root``."""
    return _with_options(script, lambda options: _root_options(options, root))


def _root_options(options: Mapping[str, str], root: Path) -> Mapping[str, str]:
    at_root = {name: anchor_references(value, root) for name, value in options.items()}
    # Descriptors are read here, wherever Spark is.
    here = {name: value for name, value in at_root.items() if name.lower() == DESCRIPTOR}
    return {**at_root, **_absolute_options(here, root)}


def fill_columns(
    script: Script, root: Path, storage: Storage | None = None, *, sends: Sends = "resolved"
) -> tuple[Script, list[Refusal]]:
    """The script with the columns of sources that declare none, as their data has them; and those that have none.

    Paths start at ``root``. In ``storage`` are the columns of queries that have started before, which they keep.
    """
    sources, refusals = list[Source](), list[Refusal]()
    for source in script.sources:
        try:
            sources.append(_with_columns(source, root, storage, sends))
        except NoColumnsError as error:
            sources.append(source)
            parameters = {"source": source.name, "reason": str(error), "format": str(source.format)}
            kind = source.kind.upper()
            refusals.append(Refusal("UNKNOWN_COLUMNS", {**parameters, "kind": kind}, script.place(source.span)))
    return replace(script, sources=tuple(sources)), refusals


def with_columns(script: Script) -> Script:
    """The script with the columns of sources that declare none; paths start at the folder of the process."""
    filled, refusals = fill_columns(script, Path())
    if refusals:
        raise WatersmeetError(refusals)
    return filled


def _with_columns(source: Source, root: Path, storage: Storage | None, sends: Sends) -> Source:
    if source.fields or source.format is None:
        return source
    placed = replace(source, options=_absolute_options(source.options, root))
    if not any(reason for value in placed.options.values() for reason in find_missing(value)):
        placed = replace(placed, options=resolve_references(placed.options))
    stored_fields = load_columns(storage, placed) if storage is not None else ()
    if not stored_fields and sends == "nothing resolved":
        _check_sent(source)
    columns = SourceColumns(stored_fields, "the first start") if stored_fields else columns_of(placed)
    filled = replace(source, fields=columns.fields, read_from=columns.file)
    watermarks = (replace(m, lag=_zero(filled, m)) if m.lag.value == 0 else m for m in source.watermarks)
    return replace(filled, watermarks=tuple(watermarks))


def _check_sent(source: Source) -> None:
    """Raise if the columns are in a registry that would be sent what references stand for."""
    sent = [
        source.lowercase_options[name] for name in (*sorted(REGISTRY), "subscribe") if name in source.lowercase_options
    ]
    references = [reference for value in sent for reference in references_in(value)]
    if URL in source.lowercase_options and references:
        raise NoColumnsError(
            f"they are in a schema registry, and only `watersmeet run` and `watersmeet check --deep` send "
            f"`{references[0]}` over the network"
        )


def _zero(source: Source, watermark: Watermark) -> Amount:
    """No lag, in the unit of a column whose type was not known when the declaration was read."""
    field = source.field(watermark.column)
    return Amount(0, is_interval=field is None or time_type_of(field.type) != "integer")


def _with_options(script: Script, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Script:
    sources = tuple(source.with_options(change) for source in script.sources)
    return replace(script, sources=sources, sinks=tuple(replace(s, options=change(s.options)) for s in script.sinks))


def absolute_path(path: str, root: Path) -> str:
    """A path that starts at ``root`` unless it is absolute or names a file system.

    >>> absolute_path("data/orders", Path("/srv/shop")), absolute_path("s3a://bucket/orders", Path("/srv/shop"))
    ('/srv/shop/data/orders', 's3a://bucket/orders')
    """
    return path if has_scheme(path) else str((root / path).absolute())


def _absolute_options(options: Mapping[str, str], root: Path) -> Mapping[str, str]:
    def in_project(name: str, value: str) -> str:
        if name.lower() not in ("path", "sourcearchivedir", DESCRIPTOR) or any(find_missing(value)):
            return value
        return absolute_path(resolve_references({name: value})[name], root)

    return {name: in_project(name, value) for name, value in options.items()}


def _from_folder(folder: Path) -> Project:
    spec_path = folder / SPEC_NAME
    if not spec_path.is_file():
        hint = f"`watersmeet init {folder}` makes a project; a single SQL file needs none: `watersmeet run query.sql`."
        raise refuse("WRONG_PROJECT", path=folder, reason=f"it has no {SPEC_NAME}", hint=hint)
    spec = _read_spec(spec_path)
    includes = [library.glob.include for library in spec.libraries]
    paths = sorted({path for include in includes for path in _find_files(folder, include)})
    if not paths:
        shown = ", ".join(f"`{include}`" for include in includes) or "`libraries`"
        hint = "write a query, for example in sql/join.sql, and name its folder under `libraries`."
        raise refuse("WRONG_PROJECT", path=spec_path, reason=f"no SQL file matches {shown}", hint=hint)
    return _project(folder, spec, tuple(ScriptFile(str(path), _read_text(path)) for path in paths))


def _project(root: Path, spec: Spec, files: tuple[ScriptFile, ...]) -> Project:
    return Project(root, spec.name, spec.storage, files, spec.configuration, spec.catalog, spec.database)


def _find_files(folder: Path, include: str) -> Iterable[Path]:
    if Path(include).is_absolute() or ".." in Path(include).parts:
        raise _leads_out(folder, f"`{include}`")
    pattern = f"{include}/*" if include.endswith("**") else include
    files = [path for path in folder.glob(pattern) if path.suffix == ".sql" and path.is_file()]
    for path in files:
        # Also by a link, of which the pattern says nothing.
        if not path.resolve().is_relative_to(folder.resolve()):
            raise _leads_out(folder, f"{path}, which `{include}` matches,")
    return files


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """The files below a folder that match a pattern, sorted; not those in folders such as ``.venv`` and ``.git``."""
    files = (path for path in folder.rglob(pattern) if path.is_file())
    return sorted(path for path in files if not any(p.startswith(".") for p in path.relative_to(folder).parts[:-1]))


def _leads_out(folder: Path, subject: str) -> WatersmeetError:
    hint = 'write a path that starts at the project, for example `include: "sql/**"`, and keep the files there.'
    return refuse("WRONG_PROJECT", path=folder / SPEC_NAME, reason=f"{subject} leads out of the project", hint=hint)


def _read_spec(path: Path) -> Spec:
    try:
        content: object = read_yaml(_read_text(path))
    except DoubledKeyError as error:
        raise refuse("WRONG_PROJECT", path=path, reason=str(error), hint="keep one of them.") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        raise refuse("WRONG_PROJECT", path=path, reason=f"it is not YAML ({reason})", hint="correct it.") from error
    try:
        return Spec.model_validate(content if content is not None else {})
    except ValidationError as error:
        raise WatersmeetError(_refusal(path, detail) for detail in error.errors()) from error


def _refusal(path: Path, detail: ErrorDetails) -> Refusal:
    where = [str(part) for part in detail["loc"]]
    name = ".".join(where)
    if detail["type"] == "extra_forbidden":
        names = {1: [*Spec.model_fields, "schema"], 3: ["glob"], 4: ["include"]}.get(len(where), [])
        reason, hint = f"there is no field `{name}`", did_you_mean(where[-1], names)
    elif detail["type"] == "missing":
        reason, hint = f"the field `{name}` is missing", f"add `{where[-1]}: ...`."
    else:
        reason = f"`{name}`: {detail['msg']}" if name else "it is not a mapping of fields"
        hint = 'for example: `name: shop` and `libraries: [{glob: {include: "sql/**"}}]`.'
    return Refusal("WRONG_PROJECT", {"path": str(path), "reason": reason, "hint": hint})


def _read_text(path: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark.
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(
            "WRONG_PROJECT", path=path, reason=f"it cannot be read ({error})", hint="use UTF-8 text."
        ) from error
    return text if text.endswith("\n") or not text else f"{text}\n"


def storage_location(project: Project) -> str:
    """The place of the project's checkpoints: a path of this machine, or the address of a folder elsewhere."""
    return local_path(absolute_path(project.storage, project.root))


def has_local_storage(project: Project) -> bool:
    """Whether the project's checkpoints lie on this machine."""
    return storage_location(project).startswith("/")


def storage_folder(project: Project) -> Path:
    """The folder of the project's checkpoints on this machine."""
    location = storage_location(project)
    if not has_local_storage(project):
        hint = "run the command without Spark Connect, or name a folder, for example `storage: storage`."
        reason = f"`storage` is {location}, which this command cannot reach"
        raise refuse("WRONG_PROJECT", path=project.root, reason=reason, hint=hint)
    return Path(location)

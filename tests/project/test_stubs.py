"""The stubs that tools/stubs.py writes agree with the extensions: types are checked against nothing else."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import logclient._ext
from tests.support import ROOT
from tools import extensions

pytestmark = pytest.mark.unit

FOLDER = Path(logclient._ext.__path__[0])
PREFIX = "logclient._ext."
MODULES = sorted(
    m.name.removeprefix(PREFIX)
    for m in pkgutil.walk_packages(logclient._ext.__path__, PREFIX)
    if not m.ispkg and not m.name.endswith(extensions.RUNTIME)
)


def public(names: set[str]) -> set[str]:
    return {n for n in names if not n.startswith("_")}


def stub(name: str) -> ast.Module:
    return ast.parse(FOLDER.joinpath(*name.split(".")).with_suffix(".pyi").read_text(encoding="utf-8"))


def names_of(body: list[ast.stmt]) -> set[str]:
    """Return the names that a module or class body of a stub defines; names only for types begin with an
    underscore."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                found |= {a.asname for a in aliases if a.asname and a.asname == a.name}  # re-exported
            case _:
                pass
    return public(found)


def module_names(module: ModuleType) -> set[str]:
    """Return the public names of a module, without its imports."""
    others = [importlib.import_module(f"logclient._ext.{n}") for n in MODULES]
    mine = names_of(stub(module.__name__.removeprefix(PREFIX)).body)
    found = set()
    for name in public(set(vars(module))):
        value = getattr(module, name)
        home = getattr(value, "__module__", None)
        foreign = callable(value) and isinstance(home, str) and home != module.__name__
        shared = any(o is not module and vars(o).get(name) is value for o in others)  # a constant
        if name in mine or not (inspect.ismodule(value) or foreign or shared):
            found.add(name)
    return found


def test_extensions_are_built() -> None:
    assert set(extensions.modules(ROOT / "_ext")) <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_stubs_name_what_the_extensions_have(name: str) -> None:
    module = importlib.import_module(f"logclient._ext.{name}")
    assert names_of(stub(name).body) == module_names(module)


@pytest.mark.parametrize("name", MODULES)
def test_stubs_have_the_members_of_each_class(name: str) -> None:
    module = importlib.import_module(f"logclient._ext.{name}")
    for node in stub(name).body:
        cls = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if not inspect.isclass(cls) or issubclass(cls, tuple):
            continue
        assert isinstance(node, ast.ClassDef)
        real = public({n for c in cls.__mro__[:-1] if c.__module__ == cls.__module__ for n in vars(c)})
        said = names_of(node.body)
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Name) and inspect.isclass(getattr(module, base.id, None)):
                said |= public(set(vars(getattr(module, base.id))))
        assert said == real, node.name


@pytest.mark.parametrize("name", MODULES)
def test_stubs_have_the_parameters_of_each_function(name: str) -> None:
    """In that order, with defaults in the same places."""
    module = importlib.import_module(f"logclient._ext.{name}")
    pairs: list[tuple[str, ast.FunctionDef, object]] = []
    for node in stub(name).body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            pairs.append((node.name, node, getattr(module, node.name, None)))
        elif isinstance(node, ast.ClassDef):
            cls = getattr(module, node.name, None)
            pairs += [
                (f"{node.name}.{f.name}", f, getattr(cls, f.name, None))
                for f in node.body
                if isinstance(f, ast.FunctionDef) and not f.decorator_list and not f.name.startswith("__")
            ]
    for where, node, function in pairs:
        try:
            real = inspect.signature(function)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue  # a C function without a signature
        args = node.args
        said = [a.arg for a in (*args.posonlyargs, *args.args)]
        parameters = real.parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        # Since 3.13 a C method of one argument has a signature too: it calls the argument `object`, and
        # what can only be given by position has no name that a caller could use.
        assert len(said) == len(positional), where
        for said_name, parameter in zip(said, positional, strict=True):
            assert parameter.kind is parameter.POSITIONAL_ONLY or said_name == parameter.name, where
        assert {a.arg for a in args.kwonlyargs} == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert len(args.defaults) == sum(p.default is not p.empty for p in positional), where

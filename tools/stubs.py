"""Write the stubs (`.pyi`) of the extensions from their sources, by which type checkers know them.

A stub has the signatures, annotations and docstrings that stand in the `.pyx` and `.pxd`:

- A type of C is its counterpart in Python (`uint64_t` is `int`, `bint` is `bool`), an extension type itself.
  Where that says too little, an annotation says more: `bytes key: bytes | None = None`. Cython ignores
  annotations (`annotation_typing=False` in setup.py).
- A function without an annotation of its result returns None. A property must have one.
- An attribute (`cdef readonly`, `cdef public`) may have an annotation and a docstring in the lines behind it.
- Names that only annotations use need no import: `HOMES` says where they come from.

setup.py calls this module for every build; `python -m tools.stubs` does only that.
"""

import builtins
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from Cython.CodeWriter import ExpressionWriter
from Cython.Compiler.Main import Context
from Cython.Compiler.Options import CompilationOptions, default_options
from Cython.Compiler.Scanning import FileSourceDescriptor

from tools import extensions

INTEGER = re.compile(r"u?int\d+_t|s?size_t|Py_ssize_t|int|long|short|char")
HOMES = {
    "collections.abc": ("Callable", "Iterable", "Mapping", "Sequence"),
    "contextvars": ("ContextVar",),
    "types": ("TracebackType",),
    "typing": ("Any", "Final", "Generic", "NamedTuple", "Self", "TypeVar", "final"),
    "_typeshed": ("ReadableBuffer", "WriteableBuffer"),
    "logclient._ext.decoder": ("BatchDecoder", "Events"),
    "logclient._ext.inflight": ("InflightBatches",),
    "logclient._ext.pump": ("CompiledPump",),
    "logclient._ext.tracebacks": ("ExceptionFormatter",),
    "logclient.delivery.contract": ("Core",),
    "logclient.client": ("Sink",),
    "logclient.delivery.producer": ("Producer",),
    "logclient.records.sampling": ("Sampling",),
    "logclient.records.spans": ("Spans",),
}
MODULES = {"logging": "logging", "np": "numpy", "npt": "numpy.typing", "socket": "socket", "ssl": "ssl"}

# A decoder returns the columns of its protocol, a subclass of the columns that all have.
DECODER, COLUMNS = "BatchDecoder", "Events"
RESULT = f'_{COLUMNS} = TypeVar("_{COLUMNS}", bound={COLUMNS}, covariant=True)'

# Special methods that a stub names, with the results that have no annotation.
SPECIAL = {"__init__": "None", "__len__": "int", "__enter__": "", "__exit__": "None", "__getitem__": ""}


class Untyped(Exception):
    """A source leaves a type open."""


def indent(text: str) -> str:
    """Indent by one level, but for empty lines."""
    return textwrap.indent(text, "    ")


def docstring(text: str | None) -> str:
    """Return a docstring as it stands in a source, without indentation; "" for None."""
    if text is None:
        return ""
    first, _, rest = text.partition("\n")
    whole = first.strip() + ("\n" + textwrap.dedent(rest).rstrip() + "\n" if rest.strip() else "")
    mark = "r" if "\\" in whole else ""
    return f'{mark}"""{whole}"""\n'


class Stub:
    """The stub of one extension.

    Args:
        module: its `.pyx` as Cython's parser reads it.
        declarations: likewise its `.pxd`; None: it has none.
        name: its dotted name below `logclient._ext`.
    """

    def __init__(self, module: Any, declarations: Any | None, name: str) -> None:
        self.name = name
        self.imported: dict[str, str] = {}
        self.used: set[str] = set()
        self.written: set[str] = set()
        self.classes: dict[str, list[Any]] = {}
        nodes = list(flatten(module.body))
        declared = list(flatten(declarations.body)) if declarations else []
        for node in [*declared, *nodes]:
            if type(node).__name__ in ("FromCImportStatNode", "FromImportStatNode"):
                self.note_import(node)
            elif type(node).__name__ in ("CClassDefNode", "PyClassDefNode"):
                self.classes.setdefault(class_name(node), []).append(node)
        self.columns = [name for name, found in self.classes.items() if COLUMNS in base_names(found[-1])]
        parts = [self.module_level(node) for node in [*declared, *nodes]]
        body = "\n".join(part for part in parts if part).replace(']\n\n"""', ']\n"""')
        self.text = docstring(module.doc) + self.imports() + "\n" + body

    def note_import(self, node: Any) -> None:
        """Note where names come from that annotations may use."""
        if type(node).__name__ == "FromCImportStatNode":
            for imported in node.imported_names:
                self.imported[str(imported[1])] = str(node.module_name)
        else:
            for imported, _ in node.items:
                self.imported[str(imported)] = str(node.module.module_name.value)

    def imports(self) -> str:
        """Return the imports of all names that the stub uses."""
        homes = {name: home for home, names in HOMES.items() for name in names}
        lines: set[str] = set()
        found: dict[str, list[str]] = {}
        for name in sorted(self.used - set(self.classes) - set(vars(builtins))):
            if name == f"_{COLUMNS}":
                continue
            if name in MODULES:
                whole = MODULES[name]
                lines.add(f"import {whole}" + ("" if whole == name else f" as {name}"))
                continue
            home = self.imported.get(name) or homes.get(name)
            if home is None:
                raise Untyped(f"{self.name}: tools/stubs.py does not know the name {name}")
            found.setdefault(home, []).append(name)
        lines |= {f"from {home} import {', '.join(names)}" for home, names in found.items()}
        return "\n" + "\n".join(sorted(lines)) + "\n" if lines else ""

    def use(self, annotation: str) -> str:
        """Return an annotation, and note its names."""
        text = re.sub(r'"[^"]*"', "", annotation)
        self.used |= set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
        return annotation

    def type_of(self, base: Any, where: str) -> str:
        """Return the counterpart of a type of C."""
        base, _ = unqualified(base)
        if type(base).__name__ == "MemoryViewSliceTypeNode":
            item, constant = unqualified(base.base_type_node)
            if item.name == "uint8_t":
                return self.use("ReadableBuffer" if constant else "WriteableBuffer")
            return self.use(f"npt.NDArray[np.{str(item.name).removesuffix('_t')}]")
        name = getattr(base, "name", None)
        if name == "void":
            return "None"
        if name == "bint":
            return "bool"
        if name in ("double", "float"):
            return "float"
        if name and INTEGER.fullmatch(name):
            return "int"
        if name in ("bytes", "memoryview", "str") or name in self.classes or name in self.imported:
            return self.use(str(name))
        raise Untyped(f"{self.name}: {where} needs an annotation")

    def module_level(self, node: Any) -> str:
        """Return what a statement of a module defines; "" for nothing that is public."""
        match type(node).__name__:
            case "DefNode" if not node.name.startswith("_"):
                return self.function(node, "")
            case "CClassDefNode" | "PyClassDefNode":
                name = class_name(node)
                if name.startswith("_") or name in self.written:
                    return ""
                self.written.add(name)
                applied = [each.decorator for each in node.decorators or []]
                if any(getattr(decorator, "attribute", "") == "internal" for decorator in applied):
                    return ""
                return self.class_(self.classes[name])
            case "CFuncDefNode" if node.overridable:
                return self.c_function(node, "")
            case "CEnumDefNode" if node.create_wrapper:
                return "".join(f"{item.name}: {self.use('Final')}[int]\n" for item in node.items)
            case "SingleAssignmentNode" if type(node.lhs).__name__ == "NameNode":
                name = str(node.lhs.name)
                if not name.isupper() or name.startswith("_"):
                    return ""
                return f"{name}: {self.use('Final')}[{self.constant(node.rhs, name)}]\n"
            case "SingleAssignmentNode" if type(node.lhs).__name__ == "IndexNode":  # of globals()
                return f"{node.lhs.index.value}: {self.use('Final')}[int]\n"
            case "ExprStatNode" if type(node.expr).__name__ == "UnicodeNode":
                return docstring(str(node.expr.value))
        return ""

    def constant(self, node: Any, name: str) -> str:
        """Return the type of a constant: a number, but for what shows that it is none."""
        match type(node).__name__:
            case "TypecastNode":
                return self.type_of(node.base_type, name)
            case "UnicodeNode":
                return "str"
            case "PrimaryCmpNode":
                return "bool"
            case "TupleNode":
                return f"tuple[{self.constant(node.args[0], name)}, ...]"
            case "DictNode":
                first = node.key_value_pairs[0]
                return f"dict[{self.constant(first.key, name)}, {self.constant(first.value, name)}]"
            case "SimpleCallNode" if type(node.function).__name__ == "AttributeNode":
                return "str"  # C's text, decoded
            case "SimpleCallNode":
                return {"bool": "bool", "tuple": "tuple[str, ...]"}[str(node.function.name)]
        return "int"

    def class_(self, nodes: list[Any]) -> str:
        """Return a class from its declaration and its definition, or from one of them."""
        name = class_name(nodes[-1])
        bases: list[str] = []
        for node in nodes:
            for base in base_names(node):
                if base not in bases and base != "object":
                    bases.append(base)
        decorators = [each.decorator for node in nodes for each in node.decorators or []]
        final = any(getattr(decorator, "attribute", "") == "final" for decorator in decorators)
        if name == DECODER:
            bases.append(self.use(f"Generic[_{COLUMNS}]"))
            self.use("TypeVar")
        for base in bases:
            self.use(base)
        if DECODER in bases:
            own = [n for n in self.classes if n in self.columns] if final else []
            result = own[0] if own else COLUMNS
            bases[bases.index(DECODER)] = f"{DECODER}[{self.use(result)}]"
        body = [node for each in nodes for node in flatten(each.body)]
        inits = {node.name for node in body if type(node).__name__ == "DefNode"}
        parts: list[str] = []
        annotations: dict[str, str] = {}
        docs: dict[str, str] = {}
        for node, behind in zip(body, [*body[1:], None], strict=True):
            names: list[str] = []
            if type(node).__name__ == "CVarDefNode":
                names = [str(getattr(declarator, "name", "")) for declarator in node.declarators]
            elif type(node).__name__ == "SingleAssignmentNode":
                names = [str(node.lhs.name)]
            elif type(node).__name__ == "ExprStatNode" and getattr(node.expr, "annotation", None):
                names = [str(node.expr.name)]
                annotations[names[0]] = str(node.expr.annotation.string.value)
            if type(behind).__name__ == "ExprStatNode" and type(behind.expr).__name__ == "UnicodeNode":
                docs |= dict.fromkeys(names, str(behind.expr.value))
        for node in body:
            match type(node).__name__:
                case "DefNode":
                    if node.name == "__cinit__" and "__init__" in inits:
                        continue
                    parts.append(self.function(node, name))
                case "CFuncDefNode" if node.overridable:
                    parts.append(self.c_function(node, name))
                case "CVarDefNode" if node.visibility in ("public", "readonly"):
                    for declarator in node.declarators:
                        declared = str(declarator.name)
                        kind = annotations.get(declared)
                        kind = self.use(kind) if kind else self.type_of(node.base_type, f"{name}.{declared}")
                        parts.append(attribute(declared, kind, node.visibility, docs.get(declared)))
                case "SingleAssignmentNode" if not node.lhs.name.startswith("_"):
                    declared = str(node.lhs.name)
                    kind = annotations.get(declared) or self.constant(node.rhs, declared)
                    parts.append(attribute(declared, self.use(kind), "readonly", docs.get(declared)))
        if any(base == "NamedTuple" for base in bases):
            parts += [f"{field}: {self.use(kind)}\n" for field, kind in annotations.items()]
        doc = next((node.doc for node in reversed(nodes) if node.doc is not None), None)
        text = docstring(doc) + ("\n" if doc is not None and any(parts) else "")
        text += "".join(part for part in parts if part)
        head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        prefix = f"@{self.use('final')}\n" if final else ""
        if name == DECODER:
            prefix = RESULT + "\n\n" + prefix
        return f"{prefix}{head}\n{indent(text or '...' + chr(10))}"

    def function(self, node: Any, owner: str) -> str:
        """Return a function or a method; "" for one that a stub does not name."""
        name = str(node.name)
        applied = [each.decorator for each in node.decorators or []]
        decorators = [str(getattr(decorator, "name", "")) or setter(decorator) for decorator in applied]
        if name == "__cinit__":
            name = "__init__"
        elif name == "__getbuffer__":
            return "def __buffer__(self, flags: int, /) -> memoryview: ...\n"
        elif name.startswith("__") and name not in SPECIAL:
            return ""
        where = f"{owner}.{name}".strip(".")
        words = self.parameters(node, owner, where)
        if node.return_type_annotation is not None:
            result = self.use(str(node.return_type_annotation.string.value))
        elif "property" in decorators:
            raise Untyped(f"{self.name}: the property {where} needs an annotation")
        else:
            result = SPECIAL.get(name) or "None"
        head = "".join(f"@{decorator}\n" for decorator in decorators if decorator)
        head += f"def {name}({', '.join(words)}) -> {result}:"
        doc = docstring(node.doc)
        return f"{head}\n{indent(doc)}\n" if doc else f"{head} ...\n"

    def c_function(self, node: Any, owner: str) -> str:
        """Return a function or a method that C and Python call (`cpdef`)."""
        name = str(node.declarator.base.name)
        where = f"{owner}.{name}".strip(".")
        words = self.parameters(node.declarator, owner, where)
        head = f"def {name}({', '.join(words)}) -> {self.type_of(node.base_type, where)}:"
        return f"{head}\n{indent(docstring(node.doc))}\n"

    def parameters(self, node: Any, owner: str, where: str) -> list[str]:
        """Return the parameters of a function."""
        words = []
        starred = False
        star, stars = getattr(node, "star_arg", None), getattr(node, "starstar_arg", None)
        for number, arg in enumerate(node.args):
            if arg.kw_only and not starred:
                starred = True
                words.append(self.star("*", star, where) if star else "*")
            name = str(arg.declarator.name) or str(arg.base_type.name)
            if number == 0 and owner and name in ("self", "cls"):
                words.append(name)
                continue
            default = None if arg.default is None else literal(arg.default)
            if arg.annotation is not None:
                kind = self.use(str(arg.annotation.string.value))
            else:
                kind = self.type_of(arg.base_type, f"{name} of {where}")
                if default == "None":
                    kind += " | None"
            words.append(f"{name}: {kind}" + ("" if default is None else f" = {default}"))
            if number + 1 == getattr(node, "num_posonly_args", 0):
                words.append("/")
        if star and not starred:
            words.append(self.star("*", star, where))
        if stars:
            words.append(self.star("**", stars, where))
        return words

    def star(self, stars: str, arg: Any, where: str) -> str:
        """Return a parameter that takes any number of arguments."""
        if arg.annotation is None:
            raise Untyped(f"{self.name}: {stars}{arg.name} of {where} needs an annotation")
        return f"{stars}{arg.name}: {self.use(str(arg.annotation.string.value))}"


def flatten(node: Any) -> Iterator[Any]:
    """Yield statements one by one, those of included parts in their place."""
    if type(node).__name__ == "StatListNode":
        for inner in node.stats:
            yield from flatten(inner)
    elif type(node).__name__ == "CompilerDirectivesNode":
        yield from flatten(node.body)
    else:
        yield node


def unqualified(base: Any) -> tuple[Any, bool]:
    """Return a type of C without `const`, and whether it had that."""
    qualified = hasattr(base, "base_type") and not hasattr(base, "name")
    return (base.base_type, True) if qualified else (base, False)


def class_name(node: Any) -> str:
    """Return the name of a class."""
    return str(node.class_name if type(node).__name__ == "CClassDefNode" else node.name)


def base_names(node: Any) -> list[str]:
    """Return the names of the bases of a class."""
    if node.bases is None:
        return []
    calls = [base.function if type(base).__name__ == "SimpleCallNode" else base for base in node.bases.args]
    return ["NamedTuple" if base.name == "namedtuple" else str(base.name) for base in calls]


def attribute(name: str, kind: str, visibility: str, doc: str | None) -> str:
    """Return an attribute that C has."""
    if visibility == "public":
        return f"{name}: {kind}\n{docstring(doc)}"
    body = f"\n{indent(docstring(doc))}" if doc else " ...\n"
    return f"@property\ndef {name}(self) -> {kind}:{body}"


def setter(decorator: Any) -> str:
    """Return a decorator that makes a setter of a property; "" for any other."""
    if type(decorator).__name__ == "AttributeNode" and decorator.attribute == "setter":
        return f"{decorator.obj.name}.setter"
    return ""


def literal(node: Any) -> str:
    """Return a default as it stands in the source; "..." for one that C alone can tell."""
    if type(node).__name__ == "TupleNode":
        return "(" + "".join(f"{literal(item)}, " for item in node.args) + ")"
    text = str(ExpressionWriter().write(node))
    return "..." if re.match(r"[A-Za-z]", text) and text not in ("None", "True", "False", "b''") else text


def parse(path: Path, name: str) -> Any:
    """Read a file with Cython's parser."""
    options = CompilationOptions(default_options, language_level=3)
    context = Context.from_options(options)
    scope = context.find_module(name, need_pxd=False)
    source = FileSourceDescriptor(str(path))
    return context.parse(source, scope, pxd=path.suffix == ".pxd", full_module_name=name)


def write(folder: Path) -> None:
    """Write the stubs beside the sources, where they are missing or older, and delete those without a source.

    Args:
        folder: `_ext` of a tree.
    """
    for name, stale in extensions.modules(folder, ".pyi").items():
        if name not in extensions.modules(folder):
            stale.unlink()
    for name, pyx in extensions.modules(folder).items():
        pxd, target = pyx.with_suffix(".pxd"), pyx.with_suffix(".pyi")
        sources = [path for path in (pyx, pxd, *extensions.parts(pyx), Path(__file__)) if path.exists()]
        if target.exists() and target.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
            continue
        stub = Stub(parse(pyx, name), parse(pxd, name) if pxd.exists() else None, name)
        target.write_text(stub.text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "_ext")

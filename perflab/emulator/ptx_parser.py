"""Reads PTX: the module, then the body of each function. `ptx.parse` is the way in."""

from __future__ import annotations

import re
from dataclasses import replace

from perflab.emulator.ptx import (
    Address,
    Arguments,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Place,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from perflab.emulator.ptx_tokens import Tokens, immediate

_BITS = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16, "tf32": 32} | {
    f"{kind}{bits}": bits for kind in "busf" for bits in (8, 16, 32, 64, 128)
}
_SPECIAL = re.compile(
    r"%((n?tid|n?ctaid|(is_explicit_)?cluster\w*|nclusterid)(\.[xyzw])?|laneid|n?warpid|n?smid|gridid|lanemask_\w+"
    r"|clock(64|_hi)?|pm\d+(_64)?|globaltimer(_lo|_hi)?|envreg\d+|\w+_smem_(size|offset_\w+)|current_graph_exec)"
)
_MOST_REGISTERS = 1_000_000  # far beyond what ptxas takes; damaged text must not fill the memory
_NAME = re.compile(r"[A-Za-z_$%][\w$%.]*")
_VECTORS = {".v2": 2, ".v4": 4}
_SPACES = (".global", ".const", ".shared", ".local", ".param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_THREAD_LIMITS = (".maxntid", ".reqntid")


class Parser(Tokens):
    """Modules, variables and the heads of functions."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.files = {int(number): name for number, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.MULTILINE)}

    def module(self) -> Module:
        target, functions, variables = "", dict[str, Function](), dict[str, Variable]()
        while word := self.take():
            if word in _LINKAGE:
                continue
            if word == ".target":
                target = self.take()
                while self.accept(","):
                    self.take()
            elif word in (".version", ".address_size"):
                self.take()
            elif word == ".file":
                self.file_entry()
            elif word == ".section":
                self.skip_to("{")
                self.skip_braces()
            elif word in (".entry", ".func"):
                function = self.function(word == ".entry")
                if function.body or function.name not in functions:
                    functions[function.name] = function
            elif word in _SPACES:
                variable = self.variable(word[1:])
                self.expect(";")
                variables[variable.name] = variable
            elif word in (".pragma", ".alias"):
                self.skip_to(";")
                self.take()
            else:
                self.at -= 1
                raise self.error("a function, a variable or a directive")
        return Module(target, functions, variables)

    def file_entry(self) -> None:
        self.at += 2
        while self.accept(","):
            self.take()

    def variable(self, space: str) -> Variable:
        """[.align n] .type name[dimensions] = initial: what comes between the space and the semicolon."""
        align, kind, count = 0, "", 1
        while (word := self.words[self.at])[:1] == ".":
            self.at += 1
            if word == ".align":
                align = self.number()
            elif word == ".ptr":
                self.pointee()
            elif word == ".attribute":
                self.skip_to(")")
                self.take()
            elif word in _VECTORS:
                count = _VECTORS[word]
            elif word[1:] in _BITS:
                kind = word[1:]
            else:
                self.at -= 1
                raise self.error("the type of a variable")
        if not kind:
            raise self.error("the type of a variable")
        name, element_bytes = self.take(), max(_BITS[kind] // 8, 1)
        align = align or element_bytes * count
        while self.accept("["):
            count *= 0 if self.words[self.at] == "]" else self.number()
            self.expect("]")
        size = element_bytes * count
        initial = self.initial(element_bytes, size) if self.accept("=") else None
        return Variable(name, space, align, size or len(initial or b""), initial)

    def pointee(self) -> None:
        """.ptr .global .align 16: what a parameter points to."""
        if self.words[self.at] in _SPACES:
            self.take()
        if self.accept(".align"):
            self.number()

    def initial(self, element_bytes: int, size: int) -> bytes:
        """A number, or numbers in (nested) braces."""
        content, depth = bytearray(), 0
        while True:
            if self.accept("{"):
                depth += 1
            elif self.accept("}"):
                depth -= 1
            elif not self.accept(","):
                if not re.match("[-0-9]", self.words[self.at]):
                    raise self.error("a number (addresses in initialisers are not supported)")
                content += (self.number() & ((1 << 8 * element_bytes) - 1)).to_bytes(element_bytes, "little")
            if not depth:
                return bytes(content.ljust(size, b"\0"))

    def function(self, entry: bool) -> Function:
        results = self.parameters()
        name = self.take()
        parameters = self.parameters()
        limit = None
        while self.words[self.at].startswith("."):
            directive = self.take()
            size = 1
            while self.words[self.at][:1].isdigit() or self.words[self.at] == ",":
                word = self.take()
                size *= int(word) if word.isdigit() else 1
            if directive in _THREAD_LIMITS:
                limit = size if limit is None else min(limit, size)
            elif directive == ".pragma":
                self.skip_to(";")
                self.take()
        if self.accept(";"):
            return Function(name, entry, parameters, results, {}, (), (), limit)
        self.expect("{")
        body = _Body(self)
        body.read()
        return Function(name, entry, parameters, results, body.registers, tuple(body.variables), tuple(body.items), limit)

    def parameters(self) -> tuple[Variable, ...]:
        """( .param …, … ) or nothing."""
        found: list[Variable] = []
        if self.accept("("):
            while not self.accept(")"):
                if self.words[self.at] not in (".param", ".reg"):
                    raise self.error(".param")
                self.take()
                found.append(self.variable("param"))
                self.accept(",")
        return tuple(found)


# ---------------------------------------------------------------- the body of a function
class _Body:
    """Reads one { … }: `items`, `registers` and `variables` fill up. Names of inner scopes get the scope's number behind."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        self.items: list[Instruction | Label] = []
        self.registers: dict[str, int] = {}
        self.variables: list[Variable] = []
        self.names: list[dict[str, Operand]] = [{}]  # innermost scope last
        self.path = [0]  # numbers of the open scopes
        self.scopes = 0
        self.labels: dict[tuple[int, str], str] = {}  # those of inner scopes
        self.branches: list[tuple[int, tuple[int, ...]]] = []
        self.place: Place | None = None
        self.places: dict[tuple[int, int, int], Place] = {}  # (file, line, column) -> the last .loc that said so
        self.real: dict[tuple[str, Place | None], Place] = {}  # the last place with a line, by file and by where inlined

    def read(self) -> None:
        """From after the opening brace to the closing one."""
        parser, words = self.parser, self.parser.words
        while True:
            word = parser.take()
            if word == ".loc":
                self.location()
            elif word == "{":
                self.scopes += 1
                self.path.append(self.scopes)
                self.names.append({})
            elif word == "}":
                self.path.pop()
                self.names.pop()
                if not self.path:
                    break
            elif word == ";":
                continue
            elif word[:1] == ".":
                self.directive(word)
            elif words[parser.at] == ":" and _NAME.fullmatch(word):
                parser.at += 1
                self.label(word)
            else:
                parser.at -= 1
                self.items.append(self.instruction())
        if self.labels:
            self.resolve_labels()

    def location(self) -> None:
        """.loc file line column [, function_name label [+ n], inlined_at file line column]."""
        parser = self.parser
        file, line, column = parser.number(), parser.number(), parser.number()
        outer = None
        while parser.accept(","):
            if parser.accept("function_name"):
                parser.take()
                if parser.accept("+"):
                    parser.number()
            else:
                parser.expect("inlined_at")
                at = (parser.number(), parser.number(), parser.number())
                outer = self.places.get(at) or Place(parser.files.get(at[0], str(at[0])), at[1])
        name = parser.files.get(file, str(file))
        if line:
            self.place = self.real[name, outer] = self.places[file, line, column] = Place(name, line, outer)
        else:  # made up by the compiler: counts for the line before it, of the same function where there is one
            self.place = self.real.get((name, outer)) or outer or self.place or Place(name, 0)

    def directive(self, word: str) -> None:
        parser = self.parser
        if word == ".reg":
            self.declare_registers()
        elif word in _SPACES:
            while True:
                variable = parser.variable(word[1:])
                unique = self.unique(variable.name)
                self.variables.append(replace(variable, name=unique))
                self.names[-1][variable.name] = Symbol(unique)
                if not parser.accept(","):
                    break
            parser.expect(";")
        elif word == ".file":
            parser.file_entry()
        elif word == ".pragma":
            parser.skip_to(";")
        else:
            parser.at -= 1
            raise parser.error("an instruction or a directive of a function")

    def declare_registers(self) -> None:
        """.reg .b32 %r<9>, %q; declares %r0 … %r8 and %q."""
        parser = self.parser
        bits = _BITS.get(parser.take()[1:])
        if bits is None:
            parser.at -= 1
            raise parser.error("the type of a register")
        names = self.names[-1]
        while not parser.accept(";"):
            stem = parser.take()
            if not _NAME.fullmatch(stem):
                parser.at -= 1
                raise parser.error("the name of a register")
            each = [stem]
            if parser.accept("<"):
                count = parser.number()
                if count > _MOST_REGISTERS:
                    parser.at -= 1
                    raise parser.error(f"at most {_MOST_REGISTERS:,} registers of one name")
                each = [f"{stem}{n}" for n in range(count)]
                parser.expect(">")
            for name in each:
                unique = self.unique(name)
                self.registers[unique] = bits
                names[name] = Register(unique)
            parser.accept(",")

    def unique(self, name: str) -> str:
        return f"{name}.{self.path[-1]}" if self.path[-1] else name

    def label(self, name: str) -> None:
        parser = self.parser
        if parser.words[parser.at] in (".branchtargets", ".callprototype"):
            parser.skip_to(";")
            return
        if self.path[-1]:
            self.labels[self.path[-1], name] = self.unique(name)
        self.items.append(Label(self.unique(name)))

    def resolve_labels(self) -> None:
        """Labels of inner scopes are seen only there: give branches the name that the innermost scope knows."""
        for index, path in self.branches:
            branch = self.items[index]
            assert isinstance(branch, Instruction)
            (target,) = branch.operands
            assert isinstance(target, Label)
            known = [self.labels[scope, target.name] for scope in path if (scope, target.name) in self.labels]
            if known:
                self.items[index] = replace(branch, operands=(Label(known[-1]),))

    # ------------------------------------------------------------ instructions
    def instruction(self) -> Instruction:
        parser, words = self.parser, self.parser.words
        first = parser.at
        guard = self.guard() if parser.accept("@") else None
        opcode, *modifiers = parser.take().split(".")
        while words[parser.at][:1] == ".":
            modifiers.append(parser.take()[1:])
        if not opcode.isidentifier():
            parser.at -= 1
            raise parser.error("an instruction")
        if opcode == "bra":
            operands: tuple[Operand, ...] = (Label(parser.take()),)
            self.branches.append((len(self.items), tuple(self.path)))
        elif opcode == "call":
            operands = self.call()
        else:
            operands = tuple(self.list_until(";"))
            parser.at -= 1
        parser.expect(";")
        text = " ".join(parser.text[parser.starts[first] : parser.starts[parser.at - 1] + 1].split())
        place = self.place or Place("ptx", parser.line(first))  # no .loc: the line of PTX itself
        return Instruction(opcode, tuple(modifiers), operands, guard, place, text)

    def guard(self) -> Guard:
        negated = self.parser.accept("!")
        register = self.operand()
        if not isinstance(register, Register) or self.registers[register.name] != 1:
            self.parser.at -= 1
            raise self.parser.error("a predicate register")
        return Guard(register.name, negated)

    def call(self) -> tuple[Operand, ...]:
        """(results), name, (arguments): empty Arguments where there are none."""
        parser = self.parser
        results: Operand = Arguments(())
        if parser.accept("("):
            results = Arguments(tuple(self.list_until(")")))
            parser.expect(",")
        name = self.operand()
        arguments: Operand = Arguments(())
        if parser.accept(",") and parser.accept("("):
            arguments = Arguments(tuple(self.list_until(")")))
        parser.skip_to(";")  # the prototype of an indirect call
        return results, name, arguments

    def list_until(self, end: str) -> list[Operand]:
        found: list[Operand] = []
        words, parser = self.parser.words, self.parser
        if parser.accept(end):
            return found
        while True:
            found.append(self.operand())
            word = words[parser.at]
            parser.at += 1
            if word == end:
                return found
            if word != ",":
                parser.at -= 1
                raise parser.error(f'"," or "{end}"')

    def operand(self) -> Operand:
        parser = self.parser
        word = parser.take()
        known = self.named(word)
        if known is not None:
            if parser.words[parser.at] == "|":
                parser.at += 1
                return Pair(known, self.operand())
            if isinstance(known, Symbol) and parser.words[parser.at] in ("+", "-"):
                return Symbol(known.name, self.offset())
            return known
        if word == "[":
            return self.address()
        if word == "{":
            return Vector(tuple(self.list_until("}")))
        if word == "(":
            return Arguments(tuple(self.list_until(")")))
        if word == "!":
            register = self.operand()
            if isinstance(register, Register):
                return Negated(register)
        if word == "-":
            value = self.operand()
            if isinstance(value, Immediate):
                sign = 1 << {"f32": 31, "f64": 63}.get(value.kind, 0)
                return replace(value, value=-value.value if value.kind == "int" else value.value ^ sign)
        parser.at -= 1
        raise parser.error("an operand")

    def named(self, word: str) -> Operand | None:
        """What a word or number stands for; None for a mark."""
        for names in reversed(self.names):
            if word in names:
                return names[word]
        first = word[:1]
        if first.isdigit():
            return immediate(word)
        if word == "_":
            return Sink()
        if word == "WARP_SZ":
            return Immediate("int", 32)
        if first == "%":
            if not _SPECIAL.fullmatch(word):
                self.parser.at -= 1
                raise self.parser.error("a declared register or a special one")
            return Special(word[1:])
        return Symbol(word) if _NAME.fullmatch(word) else None

    def offset(self) -> int:
        """+8, +-8 or -8."""
        parser = self.parser
        return parser.number() if parser.accept("+") else parser.number() if parser.words[parser.at] == "-" else 0

    def address(self) -> Address:
        base = self.operand()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        elif isinstance(base, Register | Immediate):
            offset = self.offset()
        else:
            raise self.parser.error("a register, a variable or a number before this")
        self.parser.expect("]")
        return Address(base, offset)

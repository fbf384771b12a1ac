"""Finds sums and products of plain numbers that a formula leaves unevaluated. Takes linear time for any text."""

import re
from dataclasses import dataclass
from enum import Enum


_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d*)?|\.\d+|\*\*|[^\s$]", re.DOTALL)
_TIMES = {"*", "\\cdot", "\\times", "\\ast", "\\bullet"}
_OVER = {"/", "\\div", "\\over"}
_SIGNS = {"+", "-", "\\pm", "\\mp"}
_CLOSERS = {"{": "}", "(": ")", "[": "]", "\\{": "\\}"}
_ENDS = set(_CLOSERS.values())
_BETWEEN = set(", ; : & \\\\ = < > \\leq \\le \\geq \\ge \\lt \\gt \\neq \\ne \\in \\cup \\to \\approx \\equiv".split())
_STOPS = _BETWEEN | _ENDS | {"\\choose"}  # tokens that end a sum
_PERCENT = {"%", "\\%"}
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(a?r?c?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt)(?![A-Za-z])")
_FUNCTIONS = {
    f"\\{name}" for name in "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp".split()
}
_CONSTANT = _FUNCTIONS | _TIMES | _OVER | {"\\pi", "\\sqrt", "\\frac", "e", "i"}  # in |2π - 7|
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  # units and words, which are not factors
_MOST_DEPTH = 50


class Kind(Enum):
    NUMBER = "a plain number: 3, -0.5, 3/4, 1 1/2, 1.5*10^3"
    CLOSED = "a power, a factorial or a binomial of plain numbers"
    IMAGINARY = "i"
    COMPLEX = "a + bi"
    TUPLE = "a list in brackets"
    OTHER = "anything else: letters, roots, pi"


_RATIONAL = {Kind.NUMBER, Kind.CLOSED}
_UNREAL = {Kind.COMPLEX, Kind.IMAGINARY}
_NUMERIC = _RATIONAL | _UNREAL


@dataclass
class Part:
    """A piece of a formula. `text`: the digits of a bare number; `split`: it is a fraction; `group`: in brackets."""

    kind: Kind
    text: str = ""
    split: bool = False
    negative: bool = False
    group: bool = False


@dataclass
class Findings:
    """`plain`: sums or products of plain numbers; `closed`: those with powers, factorials or binomials in them."""

    plain: bool = False
    closed: bool = False


def arithmetic(text: str) -> Findings:
    """The unevaluated arithmetic in a formula, or in any of several formulas with commas between them."""
    text = _WORD.sub(r" \\unit\g<0> ", _FUNCTION.sub(r"\\\1", _ENVIRONMENT.sub(" & ", text)))
    parser = _Parser(_TOKEN.findall(text))
    parser.group(None)
    return parser.found


def _without_number(tokens: list[str]) -> tuple[str, ...]:
    """A term without the number that it begins with, which may not be a base: 2^n and 3^n differ."""
    if len(tokens) > 1 and tokens[0][0].isdigit() and tokens[1] not in {"^", "**", "!", "_", *_OVER}:
        tokens = tokens[2:] if tokens[1] in _TIMES else tokens[1:]
    return () if all(token[0].isdigit() for token in tokens) else tuple(tokens)


class _Parser:
    """A recursive descent parser that accepts any tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.found, self.depth = tokens, 0, Findings(), 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def skip(self, *tokens: str) -> bool:
        """Reads the next token if it is one of these."""
        found = self.peek() in tokens
        self.at += found
        return found

    def group(self, end: str | None) -> Part:
        """The sums up to a closing bracket, which is read too; several sums are a tuple."""
        self.depth += 1
        parts, commas = [self.sum()], 0
        while self.at < len(self.tokens):
            token = self.peek()
            self.at += 1
            if token == end or {token, end} == {")", "]"}:  # a half-open interval
                break
            commas += token in {",", ";", "&"}
            if token == "\\choose":
                parts = [Part(Kind.CLOSED)]
                self.sum()
            elif token not in _ENDS:
                parts.append(self.sum())
        self.depth -= 1
        if commas:
            return Part(Kind.TUPLE)
        return parts[0] if len(parts) == 1 else Part(Kind.OTHER)

    def sum(self) -> Part:
        terms: list[Part] = []
        rests: set[tuple[str, ...]] = set()
        sign, signs = "", 0
        while self.at < len(self.tokens):
            token = self.peek()
            if self.skip(*_SIGNS):
                signs += 1
                self.found.plain |= signs > 1
                sign = token
                continue
            if token in _STOPS:
                break
            begin = self.at
            term = self.term()
            if self.at == begin:  # a sign without a term
                self.at += 1
                continue
            self.found.plain |= sign == "-" and term.negative and term.kind is Kind.NUMBER
            term.negative ^= sign == "-"
            rest = _without_number(self.tokens[begin : self.at])
            self.found.plain |= rest in rests  # x - x, 3x - x
            if any(token not in _CLOSERS and token not in _ENDS and token[:5] != "\\unit" for token in rest):
                rests.add(rest)
            terms.append(term)
            sign, signs = "", 0
        return self.added(terms)

    def added(self, terms: list[Part]) -> Part:
        if not terms:
            return Part(Kind.OTHER)
        if len(terms) == 1:
            return terms[0]
        kinds = [term.kind for term in terms]
        numbers, closed = kinds.count(Kind.NUMBER), kinds.count(Kind.CLOSED)
        zero = any(term.text and not term.text.strip("0.") for term in terms)
        self.found.plain |= numbers > 1 or zero or Kind.TUPLE in kinds
        self.found.closed |= closed > 0 and numbers + closed > 1
        if numbers + closed == len(kinds):
            return Part(Kind.CLOSED)
        return Part(Kind.COMPLEX if set(kinds) <= _NUMERIC - {Kind.CLOSED} else Kind.OTHER)

    def term(self) -> Part:
        """Factors, with or without signs between them."""
        factors: list[tuple[str, Part]] = []
        sign = ""
        while self.at < len(self.tokens):
            token = self.peek()
            if self.skip(*_TIMES, *_OVER):
                sign = "/" if token in _OVER else "*"
                self.found.plain |= token == "\\div"
                self.skip("-")  # 3 \cdot -2
                continue
            if token in _SIGNS or token in _STOPS:
                break
            factors.append((sign, self.factor()))
            sign = ""
        return self.multiplied(factors)

    def multiplied(self, factors: list[tuple[str, Part]]) -> Part:
        if not factors:
            return Part(Kind.OTHER)
        whole = factors[0][1]
        numbers = int(whole.kind is Kind.NUMBER)
        others = [part for _, part in factors if part.text != "\\unit"]
        self.found.plain |= len(others) > 1 and any(part.text and not part.text.strip("0.") for part in others)
        for i, (sign, part) in enumerate(factors[1:], 1):
            pair = {whole.kind, part.kind}
            numbers += part.kind is Kind.NUMBER
            self.found.plain |= Kind.TUPLE in pair and whole.text != "\\letter"
            self.found.plain |= pair <= _UNREAL or (sign != "/" and part.text == "1")
            self.found.plain |= sign == "/" and part.kind in _UNREAL and whole.kind in _NUMERIC
            if i == 1 and whole.text == "1" and sign != "/" and part.text != "\\power of ten":
                self.found.plain |= sign == "*" or part.group
            if pair == {Kind.NUMBER}:
                mixed = not sign and part.split and whole.text.isdigit() and i == 1
                fraction = sign == "/" and not whole.split and not part.split
                self.found.plain |= not mixed and not fraction
                whole = Part(Kind.NUMBER, split=True, negative=whole.negative)
            elif whole.kind is Kind.NUMBER and sign == "*" and part.text == "\\power of ten":
                whole = Part(Kind.NUMBER, negative=whole.negative)
            elif pair <= _RATIONAL:
                self.found.closed |= sign != "/"
                whole = Part(Kind.CLOSED, text=part.text)
            elif pair == {Kind.NUMBER, Kind.IMAGINARY}:
                whole = Part(Kind.IMAGINARY)
            else:
                self.found.plain |= numbers > 1 and part.kind is Kind.NUMBER and sign != "/"  # 2x3
                whole = Part(Kind.OTHER, text=part.text if part.text == "\\letter" else "")
        return whole

    def factor(self) -> Part:
        token = self.peek()
        self.at += 1
        part = Part(Kind.OTHER)
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            part = Part(Kind.NUMBER, text=token)
        elif token in _CLOSERS and self.depth < _MOST_DEPTH:
            part = self.group(_CLOSERS[token])
            part.group = token != "{"
        elif token in {"|", "\\lvert", "\\vert"}:
            self.absolute()
        elif token == "\\frac":
            part = self.fraction()
        elif token == "\\binom":
            self.argument()
            self.found.plain |= self.argument().text in {"0", "1"}
            part = Part(Kind.CLOSED)
        elif token == "\\sqrt":
            if self.skip("["):
                self.group("]")
            self.argument()
        elif token in _FUNCTIONS:
            self.operand()
        elif token[:5] == "\\unit":
            part = Part(Kind.OTHER, text="\\unit")
        elif token == "i":
            part = Part(Kind.IMAGINARY)
        elif token not in _PERCENT and (token.isalpha() or token[0] == "\\"):
            part = Part(Kind.OTHER, text="\\letter")
        return self.with_marks(part)

    def with_marks(self, part: Part) -> Part:
        """A factor with the powers, indices and marks after it."""
        while self.at < len(self.tokens):
            if self.skip("^", "**"):
                if self.skip("\\circ"):
                    continue
                degrees = self.tokens[self.at : self.at + 3] == ["{", "\\circ", "}"]
                self.skip("-")
                power, group = self.argument(digit=False), part.group
                part = part if degrees else self.raised(part, power)
                part.group = group
            elif self.skip("_"):
                plain, closed = self.found.plain, self.found.closed
                self.argument()
                self.found = Findings(plain, closed)  # an index is part of a name
                part = Part(Kind.OTHER, text="\\letter")
            elif self.skip("!"):
                part = Part(Kind.CLOSED, text="!") if part.kind in _RATIONAL else Part(Kind.OTHER)
            elif not self.skip("'", *_PERCENT):
                break
        return part

    def operand(self) -> None:
        """The operand of a function, after the power or base of the function itself."""
        while self.skip("^", "_", "**"):
            self.argument(digit=False)
        if self.peek() and self.peek() not in _BETWEEN | _ENDS and self.depth < _MOST_DEPTH:
            self.depth += 1
            self.skip("-", "+")
            if self.peek() and self.peek() not in _ENDS:
                self.factor()
            self.depth -= 1

    def raised(self, base: Part, power: Part) -> Part:
        if base.kind in _UNREAL and power.kind is Kind.NUMBER:
            self.found.plain = True
        if base.kind not in _RATIONAL or power.kind not in _RATIONAL:
            return Part(Kind.OTHER)
        if base.kind is Kind.CLOSED:
            return Part(Kind.OTHER if power.split else Kind.CLOSED)
        self.found.plain |= base.text == "1" or (power.text in {"0", "1"} and base.text != "10")
        if power.split or "." in power.text:
            return Part(Kind.OTHER)  # a root
        return Part(Kind.CLOSED, text="\\power of ten" if base.text == "10" else "")

    def argument(self, *, digit: bool = True) -> Part:
        """The argument of a command or a power: a group, or one token, which may be a single digit of a number."""
        token = self.peek()
        if self.skip("{", "("):
            return self.group(_CLOSERS[token]) if self.depth < _MOST_DEPTH else Part(Kind.OTHER)
        if not token or token in _ENDS:
            return Part(Kind.OTHER)
        if digit and token[0].isdigit() and len(token) > 1:  # \frac12 is a half
            self.tokens[self.at] = token[1:]
            return Part(Kind.NUMBER, text=token[0])
        self.at += 1
        return Part(Kind.NUMBER, text=token) if token[0].isdigit() else Part(Kind.OTHER)

    def fraction(self) -> Part:
        above, below = self.argument(), self.argument()
        rational = {above.kind, below.kind} <= _RATIONAL
        self.found.closed |= above.text == below.text == "!"
        self.found.plain |= below.kind in _UNREAL and above.kind in _NUMERIC
        self.found.plain |= below.kind in _UNREAL and above.kind in _NUMERIC
        self.found.plain |= above.text == "0" and below.kind is not Kind.NUMBER
        self.found.plain |= below.text == "1" or (rational and (above.split or below.split))
        if above.kind is below.kind is Kind.NUMBER:
            return Part(Kind.NUMBER, split=True, negative=above.negative)
        return Part(Kind.CLOSED if rational else Kind.OTHER)

    def absolute(self) -> None:
        """Reads what stands between bars, if the second bar is near."""
        rest = self.tokens[self.at : self.at + 200]
        end = next((i for i, token in enumerate(rest) if token in {"|", "\\rvert", "\\vert"}), None)
        if end is not None:
            known = all(token in _CONSTANT or not token.lstrip("\\")[:1].isalpha() for token in rest[:end])
            self.found.plain |= known or _Parser(rest[:end]).group(None).kind in _NUMERIC
            self.at += end + 1

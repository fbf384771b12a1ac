"""Whether a formula leaves sums and products of plain numbers to its reader. One pass over it, whatever it is."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d*)?|\.\d+|\*\*|[^\s$]", re.DOTALL)
_TIMES = {"*", "\\cdot", "\\times", "\\ast", "\\bullet"}
_OVER = {"/", "\\div", "\\over"}
_ENDS = {"}": "{", ")": "(", "]": "[", "\\}": "\\{"}
_BETWEEN = set(", ; : & \\\\ = < > \\leq \\le \\geq \\ge \\lt \\gt \\neq \\ne \\in \\cup \\to \\approx \\equiv".split())
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(a?r?c?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt)(?![A-Za-z])")
_FUNCTIONS = {
    f"\\{name}" for name in "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp".split()
}
# units and words are no factors
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MOST_DEPTH = 50


class Kind(Enum):
    NUMBER = "a plain number: 3, -0.5, 3/4, 1 1/2, 1.5*10^3"
    CLOSED = "a power, a factorial or a binomial of plain numbers"
    IMAGINARY = "i"
    COMPLEX = "a + bi"
    TUPLE = "what has commas in brackets"
    OTHER = "all else: letters, roots, pi"


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
    """`plain`: sums or products of plain numbers; `closed`: such with powers, factorials or binomials in them."""

    plain: bool = False
    closed: bool = False


def arithmetic(text: str) -> Findings:
    """What a formula, or each of several with commas between them, leaves to be worked out."""
    text = _WORD.sub(r" \\unit ", _FUNCTION.sub(r"\\\1", _ENVIRONMENT.sub(" & ", text)))
    reader = _Reader([found.group() for found in _TOKEN.finditer(text)])
    reader.group(None)
    return reader.found


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.found, self.depth = tokens, 0, Findings(), 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def group(self, end: str | None) -> Part:
        """What stands up to a closing bracket, which is read too: its sums, of which several are a tuple."""
        self.depth += 1
        parts, commas = [self.sum()], 0
        while self.at < len(self.tokens):
            token = self.peek()
            self.at += 1
            if token == end:
                break
            commas += token in {",", ";", "&"}
            if token == "\\choose":
                parts = [Part(Kind.CLOSED)]
                self.sum()
            elif token in _BETWEEN:
                parts.append(self.sum())
            elif token in _ENDS:  # of another bracket: an interval that is half open
                if _ENDS.get(end or "") in {"(", "["} and token in {")", "]"}:
                    break
            else:
                parts.append(self.sum())
        self.depth -= 1
        if commas:
            return Part(Kind.TUPLE)
        return parts[0] if len(parts) == 1 else Part(Kind.OTHER)

    def sum(self) -> Part:
        terms: list[Part] = []
        sign, signs = "", 0
        while self.at < len(self.tokens):
            token = self.peek()
            if token in {"+", "-", "\\pm", "\\mp"}:
                self.at += 1
                signs += 1
                self.found.plain |= signs > 1
                sign = token
                continue
            if token in _BETWEEN or token in _ENDS or token == "\\choose":
                break
            begin = self.at
            term = self.term()
            if self.at == begin:  # a sign that stands alone
                self.at += 1
                continue
            self.found.plain |= sign == "-" and term.negative and term.kind is Kind.NUMBER
            term.negative ^= sign == "-"
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
        simple = {Kind.NUMBER, Kind.IMAGINARY, Kind.COMPLEX}
        return Part(Kind.COMPLEX if set(kinds) <= simple else Kind.OTHER)

    def term(self) -> Part:
        """Factors, with signs between them or none."""
        factors: list[tuple[str, Part]] = []
        sign = ""
        while self.at < len(self.tokens):
            token = self.peek()
            if token in _TIMES or token in _OVER:
                sign = "/" if token in _OVER else "*"
                self.found.plain |= token == "\\div"
                self.at += 1
                if self.peek() == "-":  # 3 \cdot -2
                    self.at += 1
                continue
            if token in {"+", "-", "\\pm", "\\mp", "\\choose"} or token in _BETWEEN or token in _ENDS:
                break
            part = self.factor()
            if part is None:
                break
            factors.append((sign, part))
            sign = ""
        return self.multiplied(factors)

    def multiplied(self, factors: list[tuple[str, Part]]) -> Part:
        if not factors:
            return Part(Kind.OTHER)
        whole = factors[0][1]
        numbers = int(whole.kind is Kind.NUMBER)
        for i, (sign, part) in enumerate(factors[1:], 1):
            pair = {whole.kind, part.kind}
            rational = pair <= {Kind.NUMBER, Kind.CLOSED}
            numbers += part.kind is Kind.NUMBER
            self.found.plain |= Kind.TUPLE in pair and whole.text != "\\letter"
            self.found.plain |= pair <= {Kind.COMPLEX, Kind.IMAGINARY} or (sign != "/" and part.text == "1")
            if i == 1 and whole.text == "1" and sign != "/" and part.text != "\\power of ten":
                self.found.plain |= sign == "*" or part.group
            if pair == {Kind.NUMBER}:
                mixed = not sign and part.split and whole.text.isdigit() and i == 1
                fraction = sign == "/" and not whole.split and not part.split
                self.found.plain |= not mixed and not fraction
                whole = Part(Kind.NUMBER, split=True, negative=whole.negative)
            elif whole.kind is Kind.NUMBER and sign == "*" and part.text == "\\power of ten":
                whole = Part(Kind.NUMBER, negative=whole.negative)
            elif rational:
                self.found.closed |= sign != "/" and {whole.text, part.text} != {"!"}
                whole = Part(Kind.CLOSED, text=part.text)
            elif pair == {Kind.NUMBER, Kind.IMAGINARY}:
                whole = Part(Kind.IMAGINARY)
            else:
                self.found.plain |= numbers > 1 and part.kind is Kind.NUMBER and sign != "/"  # 2x3
                whole = Part(Kind.OTHER, text=part.text if part.text == "\\letter" else "")
        return whole

    def factor(self) -> Part | None:
        token = self.peek()
        self.at += 1
        part = Part(Kind.OTHER)
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            part = Part(Kind.NUMBER, text=token)
        elif token in {"{", "(", "[", "\\{"} and self.depth < _MOST_DEPTH:
            inner = self.group({v: k for k, v in _ENDS.items()}[token])
            part = Part(inner.kind, inner.text, inner.split, inner.negative, group=token != "{")
        elif token in {"|", "\\lvert", "\\vert"}:
            part = self.absolute()
        elif token == "\\frac":
            part = self.fraction()
        elif token == "\\binom":
            self.argument()
            self.found.plain |= self.argument().text in {"0", "1"}
            part = Part(Kind.CLOSED)
        elif token == "\\sqrt":
            if self.peek() == "[":
                self.at += 1
                self.group("]")
            self.argument()
        elif token in _FUNCTIONS:
            self.operand()
        elif token == "i":
            part = Part(Kind.IMAGINARY)
        elif token == "\\unit" or token in {"%", "\\%"}:
            pass
        elif token.isalpha() or token[0] == "\\":
            part = Part(Kind.OTHER, text="\\letter")
        return self.behind(part, token)

    def behind(self, part: Part, token: str) -> Part:
        """Powers, indices and marks behind a factor."""
        while self.at < len(self.tokens):
            mark = self.peek()
            if mark in {"^", "**"}:
                self.at += 1
                if self.peek() == "\\circ":
                    self.at += 1
                    continue
                degrees = self.tokens[self.at : self.at + 3] == ["{", "\\circ", "}"]
                if self.peek() == "-":
                    self.at += 1
                power, group = self.argument(digit=False), part.group
                part = part if degrees else self.raised(part, power)
                part.group = group
            elif mark == "_":
                self.at += 1
                plain, closed = self.found.plain, self.found.closed
                self.argument()
                self.found = Findings(plain, closed)  # the name of something
                part = Part(Kind.OTHER, text="\\letter")
            elif mark == "!":
                self.at += 1
                rational = part.kind in {Kind.NUMBER, Kind.CLOSED}
                part = Part(Kind.CLOSED, text="!") if rational else Part(Kind.OTHER)
            elif mark in {"'", "%", "\\%"}:
                self.at += 1
            else:
                break
        return part

    def operand(self) -> None:
        """What a function is taken of, with the power or base that the function itself has."""
        while self.peek() in {"^", "_", "**"}:
            self.at += 1
            self.argument(digit=False)
        if self.peek() and self.peek() not in _BETWEEN and self.peek() not in _ENDS and self.depth < _MOST_DEPTH:
            self.depth += 1
            self.at += self.peek() in {"-", "+"}
            if self.peek() and self.peek() not in _ENDS:
                self.factor()
            self.depth -= 1

    def raised(self, base: Part, power: Part) -> Part:
        if base.kind in {Kind.COMPLEX, Kind.IMAGINARY} and power.kind is Kind.NUMBER:
            self.found.plain = True
        if base.kind is Kind.NUMBER and power.kind in {Kind.NUMBER, Kind.CLOSED}:
            self.found.plain |= base.text == "1" or (power.text in {"0", "1"} and base.text != "10")
            if power.split or "." in power.text:
                return Part(Kind.OTHER)  # a root
            return Part(Kind.CLOSED, text="\\power of ten" if base.text == "10" else "")
        if base.kind is Kind.CLOSED and power.kind in {Kind.NUMBER, Kind.CLOSED} and not power.split:
            return Part(Kind.CLOSED)
        return Part(Kind.OTHER)

    def argument(self, *, digit: bool = True) -> Part:
        """Of a command or a power: a group, or one token, which may be a single digit of a number."""
        if self.peek() in {"{", "("}:
            self.at += 1
            end = "}" if self.tokens[self.at - 1] == "{" else ")"
            return self.group(end) if self.depth < _MOST_DEPTH else Part(Kind.OTHER)
        token = self.peek()
        if token and token not in _ENDS:
            if digit and token[0].isdigit() and len(token) > 1:  # \frac12 is a half
                self.tokens[self.at] = token[1:]
                return Part(Kind.NUMBER, text=token[0])
            self.at += 1
            return Part(Kind.NUMBER, text=token) if token[0].isdigit() else Part(Kind.OTHER)
        return Part(Kind.OTHER)

    def fraction(self) -> Part:
        above, below = self.argument(), self.argument()
        rational = {above.kind, below.kind} <= {Kind.NUMBER, Kind.CLOSED}
        self.found.plain |= below.text == "1" or (rational and (above.split or below.split))
        if above.kind is below.kind is Kind.NUMBER:
            return Part(Kind.NUMBER, split=True, negative=above.negative)
        return Part(Kind.CLOSED if rational else Kind.OTHER)

    def absolute(self) -> Part:
        """What stands between bars."""
        ends = {"|", "\\rvert", "\\vert"}
        for end in self._next(ends):
            inner = arithmetic_kind(self.tokens[self.at : end])
            self.found.plain |= inner in {Kind.NUMBER, Kind.CLOSED, Kind.COMPLEX, Kind.IMAGINARY}
            self.at = end + 1
            return Part(Kind.OTHER)
        return Part(Kind.OTHER)

    def _next(self, ends: set[str]) -> Iterator[int]:
        for i in range(self.at, min(len(self.tokens), self.at + 200)):
            if self.tokens[i] in ends:
                yield i
                return


def arithmetic_kind(tokens: list[str]) -> Kind:
    """The kind of a piece of a formula alone."""
    return _Reader(list(tokens)).group(None).kind

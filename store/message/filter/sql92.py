"""Parser of SQL92 filter expressions, with the grammar of RocketMQ's filter module.

    (a > 10 AND region IN ('x', 'y')) OR name NOT CONTAINS 'test' AND b IS NOT NULL

Property names are case-sensitive, keywords are not. NOT and signs bind more tightly than comparisons: write
`NOT (a > 10)`, not `NOT a > 10`. Unlike RocketMQ, this parser rejects text after a complete expression.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Set

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from store.message.filter import operands
from store.message.filter.java_values import INT_MAX, LONG_MAX
from store.message.filter.operands import ExpressionInvalid, Operand, Truth, ValueKind, literal, truth_of

CHARACTERS_MAX = 8_192
"""Maximum length of an expression, in characters."""
CONTAINS_MAX = 64
"""Maximum number of CONTAINS operators; each may take 0.1 ms for a property of 32 KB."""
TOKENS_PER_STEP = 50
_QUOTED_MAX = 30  # error messages quote at most this many characters of the expression

_GRAMMAR = r"""
?start: or_
?or_: and_ ("OR"i and_)*
?and_: equality ("AND"i equality)*
?equality: comparison
    | equality "=" comparison                           -> equal
    | equality _NOT_EQUAL comparison                    -> not_equal
    | equality "IS"i "NULL"i                            -> is_null
    | equality "IS"i "NOT"i "NULL"i                     -> is_not_null
?comparison: unary
    | comparison ORDER unary                            -> ordered
    | comparison "BETWEEN"i unary "AND"i unary          -> between
    | comparison "NOT"i "BETWEEN"i unary "AND"i unary   -> not_between
    | comparison "IN"i strings                          -> in_
    | comparison "NOT"i "IN"i strings                   -> not_in
    | comparison STRING_TEST STRING                     -> string_test
    | comparison "NOT"i STRING_TEST STRING              -> not_string_test
?unary: primary
    | "+" unary
    | MINUS unary                                       -> negation
    | NOT unary                                         -> not_
?primary: STRING                                        -> string
    | WHOLE_NUMBER                                      -> whole_number
    | FLOATING_POINT                                    -> floating_point
    | TRUE                                              -> true
    | FALSE                                             -> false
    | NULL                                              -> null
    | NAME                                              -> property
    | LEFT_PARENTHESIS or_ ")"                          -> parenthesized
strings: "(" STRING ("," STRING)* ")"

_NOT_EQUAL.1: "<>"
ORDER: "<=" | ">=" | "<" | ">"
MINUS: "-"
LEFT_PARENTHESIS: "("
NOT: "NOT"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
STRING_TEST.1: /(?:CONTAINS|STARTSWITH|ENDSWITH)(?![A-Za-z0-9_$])/i
STRING: /'(?:''|[^'])*'/
WHOLE_NUMBER: /0|[1-9][0-9]*[lL]?/
FLOATING_POINT.1: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
BLANKS: /[ \t\n\r\f]+/
LINE_COMMENT.1: /--[^\n\r]*[\n\r]/
BLOCK_COMMENT.1: "/*" /[^*]*\*+(?:[^*\/][^*]*\*+)*/ "/"
%ignore BLANKS
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

_NAMES = {
    "$END": "the end",
    "COMMA": "','",
    "EQUAL": "'='",
    "LEFT_PARENTHESIS": "'('",
    "LPAR": "'('",
    "MINUS": "'-'",
    "NAME": "a property",
    "ORDER": "<, <=, > or >=",
    "RPAR": "')'",
    "STRING": "a string",
    "STRING_TEST": "CONTAINS, ENDSWITH, STARTSWITH",
    "WHOLE_NUMBER": "a number",
    "_NOT_EQUAL": "'<>'",
}
"""Descriptions of tokens in error messages. A keyword is not listed: its token has the same name."""
# Error messages do not list these as expected tokens: they begin a number, which is listed.
_UNNAMED = {"FLOATING_POINT", "PLUS", "MINUS"}

# Matches CONTAINS, or skips a string or a comment.
_CONTAINS = re.compile(
    r"'(?:''|[^'])*'|--[^\n\r]*|/\*.*?\*/|(?P<contains>\bCONTAINS\b)", re.IGNORECASE | re.DOTALL
)


def compile_expression(expression: str) -> Truth:
    """Compile a filter expression to a function that evaluates it for one message.

    The argument of the returned function is the message's encoded property string, preceded by one 0x02 byte.
    The function returns True, False or None (null), and raises ValueError if a property cannot be converted
    for a comparison.

    Raises:
        ExpressionInvalid: The expression is invalid, longer than CHARACTERS_MAX, nested more than
            DEPTH_MAX deep, or has more than CONTAINS_MAX operators CONTAINS.
    """
    steps = compile_steps(expression)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            truth: Truth = done.value
            return truth


def compile_steps(expression: str) -> Generator[None, None, Truth]:
    """Compile an expression in steps of about a millisecond; see `compile_expression`."""
    if len(expression) > CHARACTERS_MAX:
        raise ExpressionInvalid(
            f"the expression has {len(expression):,} characters, over the limit of {CHARACTERS_MAX:,}: "
            "use a shorter one",
            CHARACTERS_MAX,
        )
    _check_contains(expression)
    try:
        return truth_of((yield from _parse(expression)))
    except UnexpectedCharacters as error:
        raise _unexpected(expression, error.pos_in_stream or 0, frozenset()) from None
    except UnexpectedToken as error:
        at_end = error.token.type == "$END"
        position = len(expression) if at_end else error.token.start_pos or 0
        raise _unexpected(expression, position, error.expected) from None


def _parse(expression: str) -> Generator[None, None, Operand]:
    try:
        return (yield from _parse_steps(expression))
    except UnexpectedToken:
        if "--" not in expression:
            raise
    # A comment at the end that no line end follows, as in `a = 1 -- x`. Tried second, because RocketMQ reads
    # `a = --1` as a number with two signs.
    return (yield from _parse_steps(f"{expression}\n"))


def _parse_steps(expression: str) -> Generator[None, None, Operand]:
    readers = operands.PropertyReaders()
    parser = _PARSER.parse_interactive(expression)
    _COMPILER.readers = readers
    for number, _ in enumerate(parser.iter_parse(), 1):
        if number % TOKENS_PER_STEP == 0:
            yield
            _COMPILER.readers = readers  # another expression may have been compiled meanwhile
    return parser.feed_eof()  # type: ignore[no-any-return, no-untyped-call]  # an Operand, from _Compiler


def _check_contains(expression: str) -> None:
    """Raise ExpressionInvalid if the evaluation for one message could take long."""
    places = [each.start() for each in _CONTAINS.finditer(expression) if each["contains"]]
    if len(places) > CONTAINS_MAX:
        raise ExpressionInvalid(
            f"there are {len(places)} CONTAINS operators, over the limit of {CONTAINS_MAX}: use fewer, or "
            "STARTSWITH or IN",
            places[CONTAINS_MAX],
        )


def _unexpected(expression: str, position: int, expected: Set[str]) -> ExpressionInvalid:
    rest = expression[position:]
    if not rest.strip():
        found = "the expression is incomplete" if expression.strip() else "the expression is empty"
    elif rest.startswith("'") and "'" not in rest[1:]:
        return ExpressionInvalid("a string is not closed: add ' at its end", position)
    else:
        found = f"unexpected {rest[:_QUOTED_MAX]!r}"
    names = sorted(_NAMES.get(each, each) for each in expected - _UNNAMED)
    return ExpressionInvalid(f"{found}: expected {', '.join(names)}" if names else found, position)


@v_args(inline=True)
class _Compiler(Transformer[Token, Operand]):
    """Builds the operands. For each grammar rule, Lark calls the method of the same name with its parts.

    `readers` are those of the expression that is being compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers = operands.PropertyReaders()

    def or_(self, *conditions: Operand) -> Operand:
        return operands.any_of(conditions)

    def and_(self, *conditions: Operand) -> Operand:
        return operands.all_of(conditions)

    def equal(self, left: Operand, right: Operand) -> Operand:
        return operands.equal(left, right)

    def not_equal(self, left: Operand, right: Operand) -> Operand:
        return operands.not_(operands.equal(left, right), left.position)

    def is_null(self, value: Operand) -> Operand:
        return operands.is_null(value)

    def is_not_null(self, value: Operand) -> Operand:
        return operands.not_(operands.is_null(value), value.position)

    def ordered(self, left: Operand, symbol: Token, right: Operand) -> Operand:
        return operands.ordered(left, symbol, right)

    def between(self, value: Operand, low: Operand, high: Operand) -> Operand:
        return operands.between(value, low, high)

    def not_between(self, value: Operand, low: Operand, high: Operand) -> Operand:
        return operands.not_between(value, low, high)

    def in_(self, value: Operand, strings: list[str]) -> Operand:
        return operands.in_strings(value, strings, is_negated=False)

    def not_in(self, value: Operand, strings: list[str]) -> Operand:
        return operands.in_strings(value, strings, is_negated=True)

    def strings(self, *strings: Token) -> list[str]:
        return list(map(_string_value, strings))

    def string_test(self, value: Operand, name: Token, part: Token) -> Operand:
        return operands.string_test(value, name.upper(), _string_value(part), is_negated=False)

    def not_string_test(self, value: Operand, name: Token, part: Token) -> Operand:
        return operands.string_test(value, name.upper(), _string_value(part), is_negated=True)

    def negation(self, sign: Token, value: Operand) -> Operand:
        return operands.negation(value, _position(sign))

    def not_(self, keyword: Token, value: Operand) -> Operand:
        return operands.not_(value, _position(keyword))

    def parenthesized(self, parenthesis: Token, value: Operand) -> Operand:
        return operands.parenthesized(value, _position(parenthesis))

    def string(self, token: Token) -> Operand:
        return literal(ValueKind.STRING, _string_value(token), _position(token))

    def whole_number(self, token: Token) -> Operand:
        digits = token.rstrip("lL")
        if len(digits) > len(str(LONG_MAX)) or (value := int(digits)) > LONG_MAX:
            raise ExpressionInvalid(
                f"the number {_short(token)} exceeds {LONG_MAX}, the largest long", _position(token)
            )
        return literal(ValueKind.INT if value <= INT_MAX else ValueKind.LONG, value, _position(token))

    def floating_point(self, token: Token) -> Operand:
        value = float(token)
        if value == 0:  # RocketMQ refuses numbers below Java's Double.MIN_VALUE
            raise ExpressionInvalid(
                f"the number {_short(token)} is 0 as a double, which RocketMQ rejects: write 0 as an integer",
                _position(token),
            )
        if value == float("inf"):
            raise ExpressionInvalid(
                f"the number {_short(token)} exceeds 1.8e308, the largest double", _position(token)
            )
        return literal(ValueKind.DOUBLE, value, _position(token))

    def true(self, token: Token) -> Operand:
        return literal(ValueKind.BOOLEAN, value=True, position=_position(token))

    def false(self, token: Token) -> Operand:
        return literal(ValueKind.BOOLEAN, value=False, position=_position(token))

    def null(self, token: Token) -> Operand:
        return literal(ValueKind.BOOLEAN, None, _position(token))

    def property(self, token: Token) -> Operand:
        return operands.property_of(self.readers.of(token), _position(token))


def _position(token: Token) -> int:
    return token.start_pos or 0


def _short(token: Token) -> str:
    return token if len(token) <= _QUOTED_MAX else f"{token[:_QUOTED_MAX]}…"


def _string_value(token: Token) -> str:
    return token[1:-1].replace("''", "'")


_COMPILER = _Compiler()
_PARSER = Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_COMPILER, maybe_placeholders=False)

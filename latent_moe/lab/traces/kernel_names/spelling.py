"""One spelling for a kernel's name, however the trace wrote it: mangled, decorated, with or without its return type.

Full demangling is not needed to tell what a kernel is. Of an Itanium-mangled name the nested parts are read by their
lengths and written with `::`, template arguments open with `<`, and literals are dropped; the rest stays as it is.
A name cut short keeps what it has.
"""

import re

_DECORATION = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd|\.\.\.|…)+$")
_RETURN = re.compile(r"^(?:void|static void) ")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\(\(anonymous|_GLOBAL__N_\d+(?:::)?")
_LITERAL = re.compile(r"L[a-z]n?\d+E")
_LENGTH = re.compile(r"\d+")


def plain(name: str) -> str:
    """The name in one spelling: no return type, no `.kd` or `[clone ...]`, nested names joined with `::`."""
    text = _DECORATION.sub("", name.strip())
    text = _RETURN.sub("", text)
    if text.startswith("_Z"):
        text = _readable(text)
    return _ANONYMOUS.sub("", text)


def _readable(mangled: str) -> str:
    text, out, at = _LITERAL.sub("_", mangled[2:]), [], 0
    nested = text.startswith("N")
    while match := _LENGTH.search(text, at):
        out.append(text[at : match.start()])
        begin, size = match.end(), int(match.group())
        part = text[begin : begin + size]
        at = begin + len(part)
        out.append("::" + part)
        # An I after a name opens its template arguments; a name that is not nested ends there.
        if text[at : at + 1] == "I":
            out.append("<")
        elif not nested and len(out) == 2:
            out.append("(")
    out.append(text[at:])
    return "".join(out).replace("N::", "", 1).removeprefix("::")

"""Reads the text form of a message: every problem of a text in one pass, each with its place.

The grammar is protobuf's text format (https://protobuf.dev/reference/protobuf/textformat-spec), without extensions.
The reader keeps its own stack, so nesting cannot exhaust Python's, and takes time linear in the text.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, Final

from descend.errors import TextError, nearest
from descend.graph.text.cursor import BLANK, FLOAT, SPACE, STRING, Cursor
from descend.graph.text.field_hints import FieldHints
from descend.graph.text.schema import ANY, PACKAGE, RANGES, FieldInfo, MessageInfo, message_info, pool
from descend.graph.text.source_map import Parsed, SourceMap, TextPosition
from descend.machine import gc_paused

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_PROBLEMS", "check_size", "most_bytes", "parse_text"]

MAX_BYTES: Final = 64 * 2**20  # the text of 100,000 layers is a tenth of this; values in bulk belong into .npy files
MAX_DEPTH: Final = 100  # protobuf's own limit for the binary form
MAX_PROBLEMS: Final = 100

_HEAD = re.compile(rf"{SPACE}([A-Za-z_][A-Za-z0-9_]*+){SPACE}(:?){SPACE}([{{<\[]?)")
_CLOSE = re.compile(rf"{SPACE}([}}>])")
_OPEN = re.compile(rf"{SPACE}([{{<])")
_ANY_HEAD = re.compile(rf"{SPACE}\[{SPACE}([A-Za-z0-9_.-]++/[A-Za-z0-9_./-]++){SPACE}\]{SPACE}:?{SPACE}([{{<])")
_VALUE = re.compile(rf"{SPACE}(?:({STRING})|([A-Za-z0-9_.+-]++))")
_LIST_STEP = re.compile(rf"{SPACE}([,\]])")
_SKIP = re.compile(rf"{SPACE}(?:{STRING}|([{{<\[])|([}}>\]])|[\"'][^\n]*+|[^\s{{}}<>\[\]\"'#]++)")
# A word, or signs in a row, or what other languages have as a comment, or the rest of a line behind a quote.
_JUNK = re.compile(
    rf"{SPACE}(?:{STRING}|[\"'][^\n]*+|//[^\n]*+|([{{<\[])|[A-Za-z0-9_.+-]++|[^\s{{}}<>\[\]\"'#A-Za-z0-9_.+/-]++|[\]/])"
)
_INT = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_SPECIAL = re.compile(r"-?(?:inf|infinity|nan)", re.IGNORECASE)
_BOOLS: Final = {
    "true": True,
    "True": True,
    "t": True,
    "1": True,
    "false": False,
    "False": False,
    "f": False,
    "0": False,
}
_CLOSING: Final = {"{": "}", "<": ">", "[": "]"}
_LARGEST_FLOAT32: Final = 3.4028235677973366e38  # from here on rounding to float32 gives infinity

_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv\\'\"?])|.)"
)
_LETTERS: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def parse_text(text: str | bytes, file: str, root: MessageInfo) -> Parsed:
    """Read a text as the message `root`.

    Raises:
        TextError: everything that is wrong with the text, in the order of the text.
    """
    decoded = _decoded(text, file)
    if BLANK.fullmatch(decoded) is not None:
        example = next(iter(root.fields), "")
        raise TextError(f"{file}:1:1: the text is empty; a {root.name} was expected, such as '{example} {{ ... }}'")
    with gc_paused():
        return _Reader(SourceMap(file, decoded), root).read()


def most_bytes() -> int:
    """The size that a text may have: MAX_BYTES, or what the variable DESCEND_MAX_TEXT_BYTES says.

    Raises:
        TextError: the variable is not a number.
    """
    said = os.environ.get("DESCEND_MAX_TEXT_BYTES", "")
    if said and not said.isdecimal():
        raise TextError(f"DESCEND_MAX_TEXT_BYTES is '{said}'; expected a number of bytes")
    return int(said) if said else MAX_BYTES


def check_size(size: int, file: str) -> None:
    """Refuse what is larger than `most_bytes`.

    Raises:
        TextError: it is.
    """
    limit = most_bytes()
    if size > limit:
        raise TextError(
            f"{file}: {size:,} bytes are more than the limit of {limit:,}; keep large values in a .npy file "
            f"(NumpyInitializer), or set the environment variable DESCEND_MAX_TEXT_BYTES={size}"
        )


def _decoded(text: str | bytes, file: str) -> str:
    try:
        data = text if isinstance(text, bytes) else text.encode()
        check_size(len(data), file)
        return data.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise TextError(
            f"{file}:{line}:{column}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
            "is this a binary file (.protobin)?"
        ) from None
    except UnicodeEncodeError as error:
        raise TextError(
            f"{SourceMap(file, error.object).at(error.start)}: half of a surrogate pair is not a character"
        ) from None


class _SyntaxProblem(Exception):
    """What is here is not allowed here; parsing continues after it."""

    def __init__(self, offset: int, problem: str) -> None:
        self.offset = offset
        self.problem = problem


class _Hopeless(_SyntaxProblem):
    """The text cannot be read beyond this place."""


class _ValueProblem(Exception):
    """A value that does not fit its field."""


class _Frame:
    """A message that is being read."""

    __slots__ = ("close", "field", "index", "info", "listed", "message", "owner", "place", "seen")

    def __init__(
        self,
        info: MessageInfo,
        message: Message,
        place: TextPosition,
        close: str,
        field: FieldInfo | None,
        index: int,
        owner: Message | None,
    ) -> None:
        self.info = info
        self.message = message
        self.place = place
        self.close = close  # the bracket that ends it
        self.field = field  # the field that holds it
        self.index = index  # which one of a repeated field, else -1
        self.owner = owner  # what takes the finished message, for a map entry or what is packed into an Any
        self.listed: FieldInfo | None = None  # the field whose list of messages in brackets is open
        self.seen: dict[str, int] = {}


class _Reader:
    def __init__(self, source: SourceMap, root: MessageInfo) -> None:
        self.source = source
        self.cursor = Cursor(source.text)
        self.problems: list[str] = []
        self.stack = [_Frame(root, root.new(), TextPosition(0), "", None, -1, None)]
        self.hints = FieldHints()

    def read(self) -> Parsed:
        bottom = self.stack[0]
        try:
            self._read_all()
        except _Hopeless as error:
            self.problems.append(f"{self.source.at(error.offset)}: {error.problem}")
        if self.problems:
            raise TextError(self.problems)
        return Parsed(bottom.message, self.source, bottom.place)

    def _read_all(self) -> None:
        """One step a turn, and from a mistake on to the next thing that can be read."""
        going = True
        while going:
            try:
                going = self._step(self.stack[-1])
            except _Hopeless:
                raise
            except _SyntaxProblem as error:
                self._problem(error.offset, error.problem)
                self._recover(self.stack[-1])

    def _step(self, frame: _Frame) -> bool:
        """A field, a step of a list of messages, or the end of a message; False at the end of the text."""
        if frame.listed is not None:
            self._list_of_messages(frame, frame.listed)
            return True
        before = self.cursor.position
        head = _HEAD.match(self.cursor.text, before)
        if head is not None:
            self.cursor.position = head.end()
            self._field(frame, head)
        elif self._ends(frame):
            if len(self.stack) == 1:
                return False
            self._close(self.stack.pop())
        elif (
            not (frame.info.full_name == ANY and self._packed(frame)) and self.cursor.position == before
        ):  # no stray bracket
            raise self._unexpected(frame)
        return True

    def _recover(self, frame: _Frame) -> None:
        """Step to a field of this message, to any field of another line, or to a bracket that may end the message."""
        frame.listed = None
        line_end = self.cursor.text.find("\n", self.cursor.position)
        while _CLOSE.match(self.cursor.text, self.cursor.position) is None:
            head = _HEAD.match(self.cursor.text, self.cursor.position)
            field = head is not None and (head.group(2) or head.group(3))
            if head is not None and field and (head[1] in frame.info.fields or -1 < line_end < head.start(1)):
                return
            junk = _JUNK.match(self.cursor.text, self.cursor.position)
            if junk is None:
                return
            if junk.group(1):
                self._skip_block(junk.start(1))
            else:
                self.cursor.position = junk.end()

    # What may be inside a message

    def _field(self, frame: _Frame, head: re.Match[str]) -> None:
        name, colon, bracket = head.groups()
        offset = head.start(1)
        field = frame.info.fields.get(name)
        if field is None:
            hint = self.hints.unknown_field(name, [one.info for one in self.stack], frame.close, frame.seen)
            self._problem(offset, f"{self._path()} has no field '{name}'{hint}")
            self._skip(head)
            return
        self._refuse_repetition(frame, field, offset)
        if field.kind == "message":
            self._message_field(frame, field, head)
        elif bracket and bracket != "[":
            self._problem(offset, f"{self._path(name)} is given a message; expected {field.expected}")
            self._skip(head)
        elif not colon:
            raise _SyntaxProblem(head.end(), f"{self._path(name)} needs a ':' and {field.expected}")
        elif bracket:
            self._list_of_scalars(frame, field, offset)
        else:
            self._scalar(frame, field, offset)

    def _message_field(self, frame: _Frame, field: FieldInfo, head: re.Match[str]) -> None:
        bracket, offset = head.group(3), head.start(1)
        if bracket == "[" and field.repeated:
            if not self.cursor.end_of_list():
                frame.listed = field
        elif bracket and bracket != "[":
            self._open(frame, field, offset, bracket)
        else:
            inside = "value: ..." if field.wrapped else "..."
            self._problem(offset, f"{self._path(field.name)} is a message; expected {field.name} {{ {inside} }}")
            self._skip(head)

    def _open(self, frame: _Frame, field: FieldInfo, offset: int, bracket: str) -> None:
        if len(self.stack) > MAX_DEPTH:
            raise _Hopeless(offset, f"nested deeper than the limit of {MAX_DEPTH} messages")
        place = TextPosition(offset)
        frame.place.parts.append((field.name, place))
        index, owner = -1, None
        container: Any = getattr(frame.message, field.name)
        if field.is_map:
            message, owner = field.message.new(), frame.message
        elif field.repeated:
            index = len(container)
            message = container.add()
        else:
            message = container
            message.SetInParent()
        self.stack.append(_Frame(field.message, message, place, _CLOSING[bracket], field, index, owner))

    def _packed(self, frame: _Frame) -> bool:
        """Enter the expanded form of an Any: [type.googleapis.com/NAME] { ... }."""
        head = _ANY_HEAD.match(self.cursor.text, self.cursor.position)
        if head is None:
            return False
        url, bracket = head.groups()
        offset = head.start(1)
        self.cursor.position = head.end()
        info = message_info(url.rpartition("/")[2])
        if info is None:
            names = [name.removeprefix(PACKAGE) for name in _top_level_names()]
            short = url.rpartition("/")[2].removeprefix(PACKAGE)
            self._problem(
                offset, f"{self._path()} names a message type '{url}' that does not exist{nearest(short, names)}"
            )
            self._skip_block(head.start(2))
        elif frame.seen:
            self._problem(offset, f"{self._path()} holds more than one message")
            self._skip_block(head.start(2))
        else:
            frame.seen[url] = offset
            place = TextPosition(offset)
            frame.place.parts.append((url, place))
            self.stack.append(_Frame(info, info.new(), place, _CLOSING[bracket], None, -1, frame.message))
        return True

    def _ends(self, frame: _Frame) -> bool:
        """Whether the message ends here. A bracket of the other form, which is a mistake, ends it too."""
        end = _CLOSE.match(self.cursor.text, self.cursor.position)
        if end is None:
            return not frame.close and BLANK.fullmatch(self.cursor.text, self.cursor.position) is not None
        if end.group(1) != frame.close:
            self._problem(end.start(1), self._unexpected(frame).problem)
        self.cursor.position = end.end()
        return bool(frame.close)

    def _close(self, frame: _Frame) -> None:
        """Put a finished message where it belongs and step to what follows it."""
        if frame.owner is not None:
            target: Any = frame.owner
            if frame.field is None:
                prefix = next(iter(self.stack[-1].seen)).rpartition("/")[0]
                target.Pack(frame.message, type_url_prefix=prefix, deterministic=True)
            else:
                entry: Any = frame.message
                getattr(target, frame.field.name)[entry.key] = entry.value
        outer = self.stack[-1]
        if outer.listed is None:
            if frame.field is not None:  # the content of an Any is followed by no separator
                self.cursor.separator()
        elif self.cursor.end_of_list():
            outer.listed = None
        else:
            self._comma(outer.listed)

    def _list_of_messages(self, frame: _Frame, field: FieldInfo) -> None:
        """The next message within `field: [{...}, {...}]`."""
        start = _OPEN.match(self.cursor.text, self.cursor.position)
        if start is None:
            raise _SyntaxProblem(
                self.cursor.next_offset(),
                f"{self._path(field.name)} needs a list of messages, as in [{{ ... }}, {{ ... }}]",
            )
        self.cursor.position = start.end()
        self._open(frame, field, start.start(1), start.group(1))

    def _comma(self, field: FieldInfo) -> None:
        step = _LIST_STEP.match(self.cursor.text, self.cursor.position)
        if step is None:
            raise _SyntaxProblem(self.cursor.next_offset(), f"{self._path(field.name)}: expected ',' or ']'")
        self.cursor.position = step.end()

    # Scalars

    def _scalar(self, frame: _Frame, field: FieldInfo, offset: int) -> None:
        value = self._value(field)
        self.cursor.separator()
        frame.place.parts.append((field.name, offset))
        if value is None:
            return
        if field.repeated:
            getattr(frame.message, field.name).append(value)
        else:
            setattr(frame.message, field.name, value)

    def _list_of_scalars(self, frame: _Frame, field: FieldInfo, offset: int) -> None:
        if not field.repeated:
            self._problem(offset, f"{self._path(field.name)} is given a list; expected {field.expected}")
            self._skip_block(self.cursor.position - 1)
            return
        frame.place.parts.append((field.name, offset))
        values: Any = getattr(frame.message, field.name)
        if (field.kind == "double" and self.cursor.plain_numbers(values)) or self.cursor.end_of_list():
            return
        while True:
            value = self._value(field)
            if value is not None:
                values.append(value)
            if self.cursor.end_of_list():
                return
            self._comma(field)

    def _value(self, field: FieldInfo) -> Any:
        """The scalar at this place, or None after noting why it does not fit `field`."""
        found = _VALUE.match(self.cursor.text, self.cursor.position)
        if found is None:
            raise self._no_value(field)
        self.cursor.position = found.end()
        quoted, bare = found.groups()
        try:
            return _text(self.cursor.joined(quoted), field) if quoted else _bare(bare, field)
        except _ValueProblem as error:
            self._problem(found.start(1) if quoted else found.start(2), f"{self._path(field.name)}: {error}")
            return None

    def _no_value(self, field: FieldInfo) -> _SyntaxProblem:
        offset = self.cursor.next_offset()
        if self.cursor.text.startswith(('"', "'"), offset):
            return _SyntaxProblem(offset, f"{self._path(field.name)}: a text in quotes that does not end on its line")
        return _SyntaxProblem(offset, f"{self._path(field.name)}: expected {field.expected}")

    # What goes wrong

    def _problem(self, offset: int, problem: str) -> None:
        self.problems.append(f"{self.source.at(offset)}: {problem}")
        if len(self.problems) >= MAX_PROBLEMS:
            raise _Hopeless(offset, f"stopped reading here, after {MAX_PROBLEMS} problems")

    def _refuse_repetition(self, frame: _Frame, field: FieldInfo, offset: int) -> None:
        """A field that is not a list may occur once, and of a oneof only one field may."""
        if field.repeated:
            return
        key = field.oneof or field.name
        first = frame.seen.setdefault(key, offset)
        if first == offset:
            return
        before = _HEAD.match(self.cursor.text, first)
        other = before.group(1) if before else field.name
        at = self._line(first)
        if other == field.name:
            self._problem(offset, f"{self._path(field.name)} is given twice, first at {at}; it is not a list")
        else:
            self._problem(
                offset, f"{self._path()} has '{field.name}' beside '{other}' at {at}; only one of them may stand"
            )

    def _unexpected(self, frame: _Frame) -> _SyntaxProblem:
        offset = self.cursor.next_offset()
        if offset >= len(self.cursor.text):
            return _Hopeless(
                offset,
                f"the text ends inside {self._path()}, opened at {self._line(frame.place.offset)}; "
                f"'{frame.close}' is missing",
            )
        expected = f"a field name or '{frame.close}'" if frame.close else "a field name"
        if self.cursor.text.startswith(("//", "/*"), offset):
            expected += " (a comment begins with '#')"
        if frame.info.full_name == ANY:
            expected = f"[type.googleapis.com/{PACKAGE}NAME] {{ ... }}"
        return _SyntaxProblem(offset, f"unexpected '{self.cursor.text[offset]}' in {self._path()}; expected {expected}")

    def _line(self, offset: int) -> str:
        """line:column of a place in the same file."""
        return self.source.at(offset).removeprefix(self.source.file + ":")

    def _path(self, name: str = "") -> str:
        """What encloses this place, such as model.layer[3].convolution."""
        parts = [
            frame.field.name + (f"[{frame.index}]" if frame.index >= 0 else "")
            if frame.field
            else f"[{frame.info.name}]"
            for frame in self.stack[1:]
        ]
        if name:
            parts.append(name)
        return ".".join(parts) or self.stack[0].info.name

    # Stepping over what has no place

    def _skip(self, head: re.Match[str]) -> None:
        """Step over the value of a field that is not wanted."""
        if head.group(3):
            self._skip_block(head.start(3))
            return
        found = _VALUE.match(self.cursor.text, self.cursor.position) if head.group(2) else None
        if found is None:
            raise _SyntaxProblem(
                self.cursor.next_offset(), f"expected ':' and a value, or '{{', after '{head.group(1)}'"
            )
        self.cursor.position = found.end()
        if found.group(1):
            self.cursor.joined(found.group(1))
        self.cursor.separator()

    def _skip_block(self, start: int) -> None:
        """Step over everything from the bracket at `start` to the one that closes it."""
        self.cursor.position = start
        depth = 0
        while True:
            token = _SKIP.match(self.cursor.text, self.cursor.position)
            if token is None:
                raise _Hopeless(
                    self.cursor.next_offset(),
                    f"the '{self.cursor.text[start]}' at {self.source.at(start)} is not closed",
                )
            self.cursor.position = token.end()
            depth += (token.group(1) is not None) - (token.group(2) is not None)
            if len(self.stack) + depth > MAX_DEPTH + 1:
                raise _Hopeless(token.start(1), f"nested deeper than the limit of {MAX_DEPTH} messages")
            if depth == 0:
                break
        self.cursor.separator()


def _top_level_names() -> list[str]:
    file = pool().FindFileByName("lbann.proto")
    files, waiting = {file.name: file}, [file]
    while waiting:
        for needed in waiting.pop().dependencies:
            if needed.name not in files:
                files[needed.name] = needed
                waiting.append(needed)
    return [message.full_name for found in files.values() for message in found.message_types_by_name.values()]


def _text(raw: str, field: FieldInfo) -> str | bytes:
    """The value of a quoted string."""
    if field.kind not in ("string", "bytes"):
        raise _ValueProblem(f"a text in quotes, {_shown(raw)}, is not {field.expected}{_without_quotes(raw, field)}")
    if field.kind == "string" and "\\" not in raw:
        return raw
    data = _ESCAPE.sub(_unescape, raw.encode())
    if field.kind == "bytes":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _ValueProblem(f"{_shown(raw)} is not valid UTF-8") from None


def _without_quotes(raw: str, field: FieldInfo) -> str:
    """How to write a quoted string, where it is values of the field: older files have lists as one text."""
    words = raw.split() if field.repeated else [raw]
    try:
        for word in words:
            _bare(word, field)
    except _ValueProblem:
        return ""
    listed = f"[{', '.join(words)}]" if len(words) > 1 else raw
    return f"; write {field.name}: {listed}" if words and len(listed) <= 80 else ""


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, digits, short, long, letter = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 255])
    if digits is not None:
        return bytes([int(digits, 16)])
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = short or long
    if code is None or int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
        raise _ValueProblem(f"'{match.group().decode(errors='replace')}' is not an escape")
    return chr(int(code, 16)).encode()


def _bare(token: str, field: FieldInfo) -> Any:
    """The value of a word or number without quotes."""
    kind = field.kind
    if kind in RANGES:
        return _integer(token, field)
    if kind in ("double", "float"):
        return _real(token, field)
    if kind == "bool" and token in _BOOLS:
        return _BOOLS[token]
    if kind == "enum":
        if token in field.enum:
            return field.enum[token]
        if _INT.fullmatch(token) and (number := _decoded_integer(token)) in field.enum.values():
            return number
        raise _ValueProblem(f"'{token}' is not {field.expected}{nearest(token, field.enum)}")
    raise _ValueProblem(f"'{token}' is not {field.expected}")


def _integer(token: str, field: FieldInfo) -> int:
    if _INT.fullmatch(token) is None:
        raise _ValueProblem(f"'{token}' is not an integer ({field.kind})")
    value = _decoded_integer(token)
    low, high = RANGES[field.kind]
    if value is None or not low <= value <= high:
        raise _ValueProblem(f"{_shown(token)} is outside the range of {field.kind}, {low} to {high}")
    return value


def _decoded_integer(token: str) -> int | None:
    """A decimal, octal (017) or hexadecimal number; None for one that is in no range."""
    digits = token.lstrip("-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    # Python refuses to convert decimals of over 4,300 digits, and none of that length is in range.
    return int(token, base) if len(digits) <= 64 else None


def _real(token: str, field: FieldInfo) -> float:
    if _SPECIAL.fullmatch(token):
        return float(token)
    if FLOAT.fullmatch(token):
        value = float(token.rstrip("fF"))
    else:
        raise _ValueProblem(f"'{token}' is not a number ({field.kind})")
    if math.isinf(value) or (field.kind == "float" and abs(value) >= _LARGEST_FLOAT32):
        raise _ValueProblem(f"{_shown(token)} is outside the range of {field.kind}")
    return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")

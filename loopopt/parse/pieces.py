"""A trace's text, cut between events into pieces that are JSON by themselves.

    {"schemaVersion": 1, "traceEvents": [ {...}, {...}, {...}, {...}, {...} ], "traceName": "x"}
                                        [-------------]-------------------]
     envelope: all but the events         piece 0       piece 1

The comma between two siblings becomes the `]` of one piece and the `[` of the next. The bytes `}` `,` `{` `"word"` `:`
(with any white space between) cannot begin inside a string of a valid text, because the quote would end that string and
no word can follow it; so their comma always lies between two siblings, at some depth. At a wrong depth a bracket of the
piece stays open and it does not decode: then its text is gone through bracket by bracket. Pieces that each decode are
together the array that was written, wherever the cuts are, so a wrong guess costs time but never a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loopopt.errors import TraceError
from loopopt.parse import schema
from loopopt.parse.reading import Text

CHUNK = 1 << 22
"""Bytes of text that are decoded at once; more only where one event is longer."""

Decode = Callable[[bytes], list[Any]]

_BLANK = b" \t\n\r"
_UTF8_MARK = b"\xef\xbb\xbf"
_STRING_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRING = re.compile(_STRING_TEXT, re.DOTALL)
# A lone quote is a string that does not end in the text at hand.
_BRACKET = re.compile(_STRING_TEXT + rb'|[\[\]{}"]', re.DOTALL)
_BRACKET_OR_COMMA = re.compile(_STRING_TEXT + rb'|[\[\]{},"]', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,\]}\[{":]+')
_SPACE = re.compile(rb"[ \t\n\r]*")
_BETWEEN = re.compile(rb'\}\s*(,)\s*\{\s*"\w+"\s*:')
_COMMA_AND_OBJECT = re.compile(rb"\s*(,)\s*\{")

# Bytes at the end of the buffer that are searched for the last boundary, first few, then more.
_WINDOWS = (1 << 12, 1 << 16)

# Of the `]` in the text, how many from the end are tried as the end of the events before it is looked for from the
# front; and how far from the end they may be.
_END_GUESSES = 16
_LONGEST_TAIL = 1 << 20


class _IncompleteError(Exception):
    """The text at hand ends before the value does."""


class _MalformedError(Exception):
    """What stands here is not JSON."""


class _EndedError(Exception):
    """The array ended before this place in the text."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class Pieces:
    """The decoded pieces of one trace; iterate once.

    Args:
        path: for errors.
        text: the file.
        decode: text of an array of events -> the events; raises msgspec's errors.
        restart: called when a second `traceEvents` begins; as in any decoder of JSON, the last one counts.
        chunk: bytes decoded at once.

    Attributes:
        envelope: the file without its events; filled at the end.
    """

    def __init__(self, path: str, text: Text, decode: Decode, restart: Callable[[], None], chunk: int = CHUNK) -> None:
        self.envelope = schema.Envelope(events=[])
        self._path = path
        self._text = text
        self._decode = decode
        self._restart = restart
        self._chunk = chunk
        self._bare = False
        self._buffer = bytearray()
        self._begin = 0  # offset of the buffer in the file
        self._eof = False
        self._piece = b""  # text of the piece given last
        self._piece_begin = 0
        self._events_before = 0  # events in the pieces before it
        self._rest = bytearray()  # text of the envelope
        self._gaps: list[tuple[int, int]] = []  # (place in the envelope, bytes left out before it)

    def __iter__(self) -> Iterator[list[Any]]:
        """Raises `TraceError` as `parse_trace` does."""
        self._fill(max(self._chunk, len(_UTF8_MARK)))
        if self._buffer.startswith(_UTF8_MARK):
            self._leave_out(len(_UTF8_MARK))
        self._leave_out_blank()
        if not self._buffer:
            reason = "empty; expected a JSON object or array (was it copied before it was written?)"
            raise TraceError(self._path, reason, 0)
        first = self._buffer[:1]
        self._bare = first == b"["
        if self._bare:
            yield from self._events()
        elif first == b"{":
            yield from self._members()
        else:
            self._keep(len(self._buffer))
        self._finish()

    def again(self, decode: Decode) -> list[Any]:
        """The piece given last, by another decoder."""
        return self._checked(decode, self._piece)

    def event_offset(self, index: int) -> int:
        """Offset in the file of an event of the piece given last."""
        return self._piece_begin + element_offset(self._piece, index)

    # ------------------------------------------------------------ the text at hand

    def _fill(self, size: int) -> None:
        """Have `size` bytes in the buffer, or all there are."""
        while len(self._buffer) < size and not self._eof:
            part = self._text.read(size - len(self._buffer))
            self._buffer += part
            self._eof = not part

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._begin += size

    def _keep(self, size: int) -> None:
        """Move bytes from the buffer to the envelope."""
        self._rest += self._buffer[:size]
        self._drop(size)

    def _leave_out(self, size: int) -> None:
        """Drop bytes that neither the envelope nor the events need."""
        self._gaps.append((len(self._rest), size))
        self._drop(size)

    def _leave_out_blank(self) -> None:
        while True:
            rest = self._buffer.lstrip(_BLANK)
            self._leave_out(len(self._buffer) - len(rest))
            if rest or self._eof:
                return
            self._fill(self._chunk)

    def _in_file(self, place: int) -> int:
        """Offset in the file of a place in the envelope."""
        return place + sum(size for gap, size in self._gaps if gap <= place)

    # ------------------------------------------------------------ the top level

    def _members(self) -> Iterator[list[Any]]:
        """The top-level object: events are cut into pieces, all else goes to the envelope."""
        ended = seen = False
        place = 1
        while not ended:
            try:
                found = self._member_if_whole(place)
            except _MalformedError:
                break
            if found is None:
                if self._eof:
                    break
                self._fill(2 * max(len(self._buffer), self._chunk))
                continue
            place, is_events, ended = found
            if is_events:
                self._keep(place)
                if seen:
                    self._restart()
                seen = True
                yield from self._events()
                place = 0
        # What could not be understood goes along: the decoder of the envelope says what is wrong with it.
        self._keep(place if ended else len(self._buffer))

    def _member_if_whole(self, place: int) -> tuple[int, bool, bool] | None:
        # A function of its own: the matches in the traceback of the error would keep the buffer from growing.
        try:
            return self._member(place)
        except _IncompleteError:
            return None

    def _member(self, place: int) -> tuple[int, bool, bool]:
        """Pass one member, with the comma before it, or the end of the object.

        Returns:
            Where it ends, False, and whether that is the end of the object; or where the events begin, True, False.
        """
        buffer = self._buffer
        place = self._blank(place)
        if buffer[place] == ord("}"):
            return place + 1, False, True
        if buffer[place] == ord(","):
            place = self._blank(place + 1)
        end = self._string(place)
        key = bytes(buffer[place:end])
        place = self._blank(end)
        if buffer[place] != ord(":"):
            raise _MalformedError
        place = self._blank(place + 1)
        if buffer[place] == ord("[") and _is_events(key):
            return place, True, False
        return self._value(place), False, False

    def _blank(self, place: int) -> int:
        """Where the white space ends."""
        found = _SPACE.match(self._buffer, place)
        if found is None or found.end() >= len(self._buffer):
            raise _IncompleteError
        return found.end()

    def _string(self, place: int) -> int:
        found = _STRING.match(self._buffer, place)
        if found is None:
            raise _IncompleteError if self._buffer[place] == ord('"') else _MalformedError
        return found.end()

    def _value(self, place: int) -> int:
        """Where the value ends. Only brackets and strings are looked at: its decoder checks the rest."""
        first = bytes(self._buffer[place : place + 1])
        if first == b'"':
            return self._string(place)
        if first in (b"[", b"{"):
            depth = 0
            for found in _BRACKET.finditer(self._buffer, place):
                token = found.group()
                if token in (b"[", b"{"):
                    depth += 1
                elif token in (b"]", b"}"):
                    depth -= 1
                    if not depth:
                        return found.end()
                elif len(token) == 1:
                    break
            raise _IncompleteError
        scalar = _SCALAR.match(self._buffer, place)
        if scalar is None:
            raise _MalformedError
        if scalar.end() >= len(self._buffer):
            raise _IncompleteError
        return scalar.end()

    def _finish(self) -> None:
        """Decode the envelope; nothing but white space may be left of the file."""
        self._leave_out_blank()
        # One character of what should not be there is enough for the decoder to refuse it.
        self._keep(min(1, len(self._buffer)))
        text = bytes(self._rest)
        try:
            if self._bare:
                schema.RAW_ARRAY.decode(text)
            else:
                self.envelope = schema.ENVELOPE.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            place = _place(err, text)
            raise _error(self._path, err, None if place is None else self._in_file(place)) from err

    # ------------------------------------------------------------ the events

    def _events(self) -> Iterator[list[Any]]:
        """From the `[` of the events, with which the buffer begins, to their `]`."""
        begin = self._begin
        self._events_before = 0
        size = self._chunk
        last = False
        while not last:
            self._fill(size)
            found = self._first_piece()
            if found is None:
                size = 2 * max(len(self._buffer), self._chunk)
                continue
            events, cut, last = found
            self._piece_begin = self._begin
            yield events
            self._events_before += len(events)
            self._drop(cut)
            if not last:
                self._buffer[0] = ord("[")
            size = self._chunk
        self._rest += b"[]"
        self._gaps.append((len(self._rest), self._begin - begin - 2))

    def _first_piece(self) -> tuple[list[Any], int, bool] | None:
        """Events at the beginning of the buffer, how many bytes they take, whether they are the last ones.

        None if more text is needed.
        """
        guess = self._guess_end() if self._eof else self._last_boundary()
        if guess is not None:
            try:
                return self._piece_up_to(guess), guess, self._eof
            except _EndedError as ended:
                return self._last_piece(ended.place)
            except _IncompleteError:
                pass
        if self._eof:
            return self._rest_of_file()
        comma, end = self._scan()
        if end is not None:
            return self._last_piece(end)
        if comma is None:
            return None
        try:
            return self._piece_up_to(comma), comma, False
        except (_EndedError, _IncompleteError):
            # Brackets of the wrong kind, which the decoder will name when it has all of the text.
            return None

    def _rest_of_file(self) -> tuple[list[Any], int, bool]:
        """The last piece, when it is not known where the events end."""
        try:
            return self._decoded(bytes(self._buffer)), len(self._buffer), True
        except _EndedError as ended:
            return self._last_piece(ended.place)
        except _IncompleteError as err:
            raise _torn(self._path, self._begin + len(self._buffer)) from err

    def _last_piece(self, place: int) -> tuple[list[Any], int, bool]:
        end = self._buffer.rfind(b"]", 0, place) + 1
        return self._checked(self._decode, bytes(self._buffer[:end])), end, True

    def _piece_up_to(self, cut: int) -> list[Any]:
        """Events before the comma at `cut`; in the last text, up to `cut`."""
        if self._eof:
            return self._decoded(bytes(self._buffer[:cut]))
        self._buffer[cut] = ord("]")
        try:
            return self._decoded(bytes(memoryview(self._buffer)[: cut + 1]))
        finally:
            self._buffer[cut] = ord(",")

    def _guess_end(self) -> int | None:
        """Just after a `]` from which on the text reads as the rest of the file."""
        end = len(self._buffer)
        for _ in range(_END_GUESSES):
            end = self._buffer.rfind(b"]", max(0, len(self._buffer) - _LONGEST_TAIL), end)
            if end < 0:
                return None
            tail = bytes(self._buffer[end + 1 :])
            if self._bare:
                return end + 1 if not tail.strip(_BLANK) else None
            try:
                schema.RAW.decode(b'{"":0' + tail)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                continue
            return end + 1
        return None

    def _last_boundary(self) -> int | None:
        """Place of the last comma in the buffer that is between two siblings."""
        for window in (*_WINDOWS, len(self._buffer)):
            found = None
            for found in _BETWEEN.finditer(self._buffer, max(0, len(self._buffer) - window)):  # noqa: B007
                pass
            if found is not None:
                return found.start(1)
        return None

    def _scan(self) -> tuple[int | None, int | None]:
        """Place of the last comma between two events, or just after the end of the array if it is in the buffer."""
        depth = 0
        after = 0
        for found in _BRACKET.finditer(self._buffer):
            token = found.group()
            if token in (b"[", b"{"):
                depth += 1
            elif token in (b"]", b"}"):
                depth -= 1
                if depth == 0:
                    return None, found.end()
                if depth == 1 and token == b"}" and _COMMA_AND_OBJECT.match(self._buffer, found.end()):
                    after = found.end()
            elif len(token) == 1:
                break
        comma = _COMMA_AND_OBJECT.match(self._buffer, after) if after else None
        return (comma.start(1) if comma else None), None

    # ------------------------------------------------------------ decoding and its errors

    def _decoded(self, text: bytes) -> list[Any]:
        """Decode a text that may be cut at a wrong place."""
        try:
            events = self._decode(text)
        except msgspec.ValidationError:
            return self._checked(self._decode, text)
        except msgspec.DecodeError as err:
            if "truncated" in str(err):
                raise _IncompleteError from err
            found = re.search(r"trailing characters \(byte (\d+)\)", str(err))
            if found:
                raise _EndedError(int(found.group(1))) from err
            return self._checked(self._decode, text)
        except (RecursionError, UnicodeDecodeError):
            return self._checked(self._decode, text)
        self._piece = text
        return events

    def _checked(self, decode: Decode, text: bytes) -> list[Any]:
        """Decode the text of a whole piece that begins where the buffer does."""
        try:
            events = decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            place = _place(err, text)
            offset = None if place is None else self._begin + place
            raise _error(self._path, err, offset, "" if self._bare else ".traceEvents", self._events_before) from err
        self._piece = text
        return events


def element_offset(text: bytes, index: int) -> int:
    """Place of an element in the text of a JSON array, which may be cut short after it."""
    depth = passed = 0
    for found in _BRACKET_OR_COMMA.finditer(text):
        token = found.group()
        if token in (b"[", b"{"):
            depth += 1
            if depth > 1 or index:
                continue
        elif token in (b"]", b"}"):
            depth -= 1
            continue
        elif token != b"," or depth != 1:
            continue
        else:
            passed += 1
        if passed == index:
            space = _SPACE.match(text, found.end())
            return space.end() if space else found.end()
    return 0


def _is_events(key: bytes) -> bool:
    if key == b'"traceEvents"':
        return True
    try:
        return b"\\" in key and msgspec.json.decode(key) == "traceEvents"
    except msgspec.MsgspecError:
        return False


def _place(err: Exception, text: bytes) -> int | None:
    """Where in the decoded text an error of msgspec is."""
    message = str(err)
    if isinstance(err, msgspec.ValidationError):
        found = re.search(r"\$\[(\d+)\]", message)
        return element_offset(text, int(found.group(1))) if found else None
    found = re.search(r"\(byte (\d+)\)", message)
    if found:
        return int(found.group(1))
    return len(text) if "truncated" in message else None


def _error(path: str, err: Exception, offset: int | None, array: str = "", before: int = 0) -> TraceError:
    """What an error of msgspec means for a trace.

    Args:
        path: of the trace.
        err: the error.
        offset: where it is in the file.
        array: path of the decoded array in the file.
        before: elements of that array in earlier pieces.
    """
    message = str(err)
    if isinstance(err, msgspec.ValidationError):
        message = re.sub(r"\$\[(\d+)\]", lambda m: f"${array}[{int(m.group(1)) + before}]", message)
        return TraceError(path, f"wrong field: {message}", offset)
    if isinstance(err, RecursionError):
        return TraceError(path, "values are nested too deeply; expected a Kineto trace", offset)
    if isinstance(err, UnicodeDecodeError):
        return TraceError(path, f"text that is not UTF-8: {err.reason}", offset)
    if "truncated" in message:
        return _torn(path, offset)
    return TraceError(path, "not valid JSON: " + re.sub(r"\s*\(byte \d+\)", "", message), offset)


def _torn(path: str, offset: int | None) -> TraceError:
    return TraceError(path, "torn: the JSON ends too early; expected more data", offset)
